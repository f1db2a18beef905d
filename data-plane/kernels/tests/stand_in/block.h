// Runs one block after another on one thread of the operating system.
#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "fibers.h"
#include "launch.h"
#include "thread.h"

namespace stand_in {

// In which order blocks, warps and lanes run between two waits. A missing barrier shows in some orders only.
enum class Order { forward, reverse, seeded };

struct Schedule {
    Order order = Order::forward;
    uint64_t seed = 0;
    // Threads of the operating system that share the blocks of a grid.
    unsigned workers = 2;
};

// One launch of a kernel, its arguments as cuLaunchKernel takes them.
struct Launch {
    Kernel kernel;
    dim3 grid, threads;
    size_t dynamic_bytes = 0;
    void* const* arguments = nullptr;
    Schedule schedule;
};

// 0 to count - 1 in the schedule's order.
void arrange(std::vector<unsigned>& indices, size_t count, Order order, std::mt19937_64& random);

struct Fiber : Thread {
    enum class State { ready, at_block, at_lanes, done };

    Context context;
    State state = State::ready;
    Place place;
    // At the block: this thread's vote.
    bool predicate = false;
    // At lanes: whom it waits for, what it hands them.
    unsigned mask = 0;
    Combine combine = nullptr;
    Slot handed;
};

// The bytes that only a kernel's mistakes reach, before and behind the block's dynamic shared memory.
class DynamicShared {
public:
    // `bytes` of poisoned memory between intact margins.
    unsigned char* prepare(size_t bytes);
    // Where a margin was written, relative to the memory's start.
    std::optional<long> damage() const;

private:
    static constexpr size_t MARGIN = 4096;
    std::unique_ptr<unsigned char[]> memory_;
    size_t capacity_ = 0;
    unsigned char* start_ = nullptr;
    size_t bytes_ = 0;
};

class BlockRunner {
public:
    // To be called on the thread that then calls `run` for some blocks of this launch.
    void begin(const Launch& launch);
    // Runs the block of this index; says what is wrong with the kernel, if anything.
    std::optional<std::string> run(dim3 index);

    Vote wait_for_block(Place place, bool predicate);
    const Slot* wait_for_lanes(Place place, unsigned mask, const void* value, size_t size, Combine combine);
    [[noreturn]] void fault(const char* what);
    void run_fiber();

private:
    void prepare(dim3 index);
    void advance();
    void advance_warp(unsigned warp);
    void resume(Fiber& fiber);
    bool release_lanes(unsigned warp);
    bool release_group(unsigned warp, const Fiber& leader);
    bool release_block();
    void leave(bool last);
    void blame(const std::string& what, const Fiber* fiber);
    std::string waiting() const;

    const Launch* launch_ = nullptr;
    // The static __shared__ variables of the kernel's module on this thread.
    unsigned char* static_shared_ = nullptr;
    size_t static_bytes_ = 0;
    Block block_;
    Stacks stacks_;
    DynamicShared shared_;
    Context scheduler_;
    std::vector<Fiber> fibers_;
    // What the lanes of each warp were handed last.
    struct Warp {
        Slot slots[WARP];
    };
    std::vector<Warp> warps_;
    Vote vote_{};
    std::mt19937_64 random_;
    std::vector<unsigned> warp_order_, lane_order_;
    std::optional<std::string> error_;
};

}  // namespace stand_in
