// The device's memory: host memory between red zones, poisoned when new and when given back.
#pragma once
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace stand_in {

class Memory {
public:
    Memory() = default;
    Memory(const Memory&) = delete;
    Memory& operator=(const Memory&) = delete;
    ~Memory();

    // Bytes that the device says it has.
    size_t total = size_t(1) << 30;
    size_t used() const { return used_; }

    // Null if less than `bytes` are free. Aligned to 256 bytes, as cuMemAlloc's.
    void* allocate(size_t bytes);
    // False if `pointer` is not the start of an allocation.
    bool release(void* pointer);
    // Gives everything back.
    void clear();

    // Whether [pointer, pointer + bytes) lies inside one allocation.
    bool contains(const void* pointer, size_t bytes) const;
    // Start and bytes of the allocation that `pointer` lies in.
    std::optional<std::pair<uintptr_t, size_t>> range(const void* pointer) const;
    // Whether `pointer` lies in an allocation that was given back.
    bool stale(const void* pointer) const;

    // From now on these bytes must not change, until `unguard`. False if they are no device memory.
    bool guard(const void* pointer, size_t bytes);
    void unguard() { guards_.clear(); }

    // A red zone or guarded bytes that were written, in words.
    std::optional<std::string> damage() const;

private:
    struct Extent {
        unsigned char* base;
        size_t bytes;
    };
    struct Guard {
        const unsigned char* start;
        std::vector<unsigned char> copy;
    };

    const std::map<uintptr_t, Extent>::value_type* find(const std::map<uintptr_t, Extent>& extents, const void* pointer) const;
    void forget_oldest();

    std::map<uintptr_t, Extent> live_, freed_;
    // Starts of those given back, oldest first; kept so that their use is noticed.
    std::deque<uintptr_t> freed_order_;
    size_t freed_bytes_ = 0;
    size_t used_ = 0;
    std::vector<Guard> guards_;
};

}  // namespace stand_in
