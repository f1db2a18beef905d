// Runs a grid's blocks, and knows the kernels by name.
#pragma once
#include <optional>
#include <string>

#include "block.h"

namespace stand_in {

// Runs all blocks of the launch; says what is wrong with the kernel, if anything. One launch at a time.
std::optional<std::string> run_grid(const Launch& launch);

// The kernel that was registered under this name last.
const Kernel* find_kernel(const std::string& name);

}  // namespace stand_in
