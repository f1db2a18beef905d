// A CUDA thread as the device code of the stand-in sees it, and the ways in which it waits for others.
//
// Every thread of a block is a fiber; a block runs on one thread of the operating system, so that nothing here needs a
// lock. A fiber runs until it waits for its block or for lanes of its warp. The functions without a body are in
// block.cpp, in the driver's shared object; the kernels' shared object finds them there.
#pragma once
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <vector>

#ifndef WEIR_STAND_IN_API
#define WEIR_STAND_IN_API __attribute__((visibility("default")))
#endif

struct dim3 {
    unsigned x, y, z;
    constexpr dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
};

namespace stand_in {

constexpr unsigned WARP = 32;
constexpr unsigned ALL_LANES = 0xffffffffu;

// What a lane hands to the others at a warp operation.
struct Slot {
    alignas(16) unsigned char bytes[64];
};

// A copy from global to shared memory that has been issued and has not landed.
struct PendingCopy {
    void* target;
    const void* source;  // null: sixteen zeros
    unsigned group;      // number of the group, counted by this thread
};

// Where a thread waits: the name of the operation and the line of the kernel for messages and comparison.
struct Place {
    const char* operation = nullptr;
    const char* file = nullptr;
    unsigned line = 0;
    bool operator==(const Place&) const = default;
};

struct Block;

struct Thread {
    dim3 index;
    unsigned linear = 0;
    Block* block = nullptr;
    std::vector<PendingCopy> copies;
    unsigned copy_group = 0;

    unsigned lane() const { return linear % WARP; }
};

// What is the same for all threads of a block.
struct Block {
    dim3 index, threads, grid;
    unsigned char* dynamic_shared = nullptr;
    size_t dynamic_bytes = 0;
};

// The thread that runs now on this thread of the operating system.
WEIR_STAND_IN_API extern constinit thread_local Thread* current;

// Ends the launch with an error that names the kernel, the block and the thread. Does not return.
[[noreturn]] WEIR_STAND_IN_API void fault(const char* what);

// Waits for all threads of the block; each gives a number and receives the sum and the count of those not zero.
struct Vote {
    unsigned nonzero;
};
WEIR_STAND_IN_API Vote wait_for_block(Place place, bool predicate);

// Runs once when all lanes of `mask` have come, over the slots of the warp (those of other lanes hold 0xff).
using Combine = void (*)(Slot (&slots)[WARP]);

// Hands `slot` to the lanes of `mask`, waits for them and returns all slots, after `combine` if one is given. The
// result is valid until this thread waits again.
WEIR_STAND_IN_API const Slot* wait_for_lanes(Place place, unsigned mask, const void* value, size_t size, Combine combine);

template <class T> T take(const Slot* slots, unsigned lane) {
    T value;
    std::memcpy(&value, slots[lane].bytes, sizeof(T));
    return value;
}

template <class T> const Slot* exchange(Place place, unsigned mask, const T& value, Combine combine = nullptr) {
    static_assert(sizeof(T) <= sizeof(Slot::bytes) && std::is_trivially_copyable_v<T>);
    return wait_for_lanes(place, mask, &value, sizeof(T), combine);
}

}  // namespace stand_in

// Sites are told apart by the caller's file and line, which default arguments take there.
#define WEIR_PLACE(operation) \
    stand_in::Place { operation, file, unsigned(line) }
#define WEIR_CALLER const char *file = __builtin_FILE(), int line = __builtin_LINE()
