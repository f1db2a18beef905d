// The blocks of a grid over a few threads of the operating system, and the table of kernels.
#include "grid.h"

#include <atomic>
#include <map>
#include <mutex>
#include <thread>

namespace stand_in {
namespace {

struct Table {
    std::mutex lock;
    // Never taken out again: a module stays loaded.
    std::map<std::string, Kernel> kernels;
};

Table& table() {
    static Table table;
    return table;
}

}  // namespace

void register_kernel(const Kernel& kernel) {
    std::lock_guard guard(table().lock);
    table().kernels[kernel.name] = kernel;
}

const Kernel* find_kernel(const std::string& name) {
    std::lock_guard guard(table().lock);
    const auto found = table().kernels.find(name);
    return found == table().kernels.end() ? nullptr : &found->second;
}

std::optional<std::string> run_grid(const Launch& launch) {
    // Kept from launch to launch for their stacks.
    static std::vector<std::unique_ptr<BlockRunner>> runners;
    const size_t blocks = size_t(launch.grid.x) * launch.grid.y * launch.grid.z;
    const size_t workers = std::min<size_t>(std::max(launch.schedule.workers, 1u), blocks);
    while (runners.size() < workers) runners.push_back(std::make_unique<BlockRunner>());

    std::mt19937_64 random(launch.schedule.seed);
    std::vector<unsigned> order;
    arrange(order, blocks, launch.schedule.order, random);
    std::atomic<size_t> next = 0;
    std::atomic<bool> failed = false;
    std::mutex lock;
    std::optional<std::string> first_error;
    const auto work = [&](BlockRunner& runner) {
        runner.begin(launch);
        for (size_t i; !failed && (i = next++) < blocks;) {
            const unsigned at = order[i];
            const auto x = launch.grid.x, y = launch.grid.y;
            if (auto error = runner.run(dim3(at % x, at / x % y, at / (x * y)))) {
                std::lock_guard guard(lock);
                if (!first_error) first_error = std::move(error);
                failed = true;
            }
        }
    };
    std::vector<std::jthread> helpers;
    for (size_t i = 1; i < workers; ++i) helpers.emplace_back(work, std::ref(*runners[i]));
    work(*runners[0]);
    helpers.clear();
    return first_error;
}

}  // namespace stand_in
