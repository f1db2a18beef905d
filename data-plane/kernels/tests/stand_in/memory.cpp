// Allocations, their red zones, and what is remembered of those given back.
#include "memory.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "sanitizer.h"

namespace stand_in {
namespace {

constexpr size_t ALIGNMENT = 256;
constexpr size_t RED_ZONE = 1024;
// NaN in every floating-point type, so that what is read past an end shows.
constexpr unsigned char POISON = 0xff;
constexpr size_t FREED_BYTES_MAX = size_t(64) << 20;

size_t padded(size_t bytes) { return (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT; }

// From the end of the bytes that were asked for to the end of what lies behind them.
size_t behind(size_t bytes) { return padded(bytes) - bytes + RED_ZONE; }

bool intact(const unsigned char* start, size_t bytes) {
    if (IS_SANITIZED) return true;  // The sanitizer itself watches them.
    return start[0] == POISON && std::memcmp(start, start + 1, bytes - 1) == 0;
}

}  // namespace

Memory::~Memory() { clear(); }

void* Memory::allocate(size_t bytes) {
    if (bytes > total - std::min(total, used_)) return nullptr;
    auto* base = static_cast<unsigned char*>(std::aligned_alloc(ALIGNMENT, padded(bytes) + 2 * RED_ZONE));
    if (!base) return nullptr;
    std::memset(base, POISON, padded(bytes) + 2 * RED_ZONE);
    auto* start = base + RED_ZONE;
    ASAN_POISON_MEMORY_REGION(base, RED_ZONE);
    ASAN_POISON_MEMORY_REGION(start + bytes, behind(bytes));
    live_[reinterpret_cast<uintptr_t>(start)] = {base, bytes};
    used_ += padded(bytes);
    return start;
}

bool Memory::release(void* pointer) {
    const auto found = live_.find(reinterpret_cast<uintptr_t>(pointer));
    if (found == live_.end()) return false;
    const auto extent = found->second;
    std::memset(pointer, POISON, extent.bytes);
    ASAN_POISON_MEMORY_REGION(pointer, extent.bytes);
    used_ -= padded(extent.bytes);
    freed_.insert(*found);
    freed_order_.push_back(found->first);
    freed_bytes_ += extent.bytes;
    live_.erase(found);
    while (freed_bytes_ > FREED_BYTES_MAX) forget_oldest();
    return true;
}

void Memory::forget_oldest() {
    const auto oldest = freed_.find(freed_order_.front());
    freed_order_.pop_front();
    freed_bytes_ -= oldest->second.bytes;
    ASAN_UNPOISON_MEMORY_REGION(oldest->second.base, padded(oldest->second.bytes) + 2 * RED_ZONE);
    std::free(oldest->second.base);
    freed_.erase(oldest);
}

void Memory::clear() {
    guards_.clear();
    while (!live_.empty()) release(reinterpret_cast<void*>(live_.begin()->first));
    while (!freed_.empty()) forget_oldest();
}

const std::map<uintptr_t, Memory::Extent>::value_type* Memory::find(const std::map<uintptr_t, Extent>& extents,
                                                                    const void* pointer) const {
    auto next = extents.upper_bound(reinterpret_cast<uintptr_t>(pointer));
    return next == extents.begin() ? nullptr : &*--next;
}

bool Memory::contains(const void* pointer, size_t bytes) const {
    const auto* found = find(live_, pointer);
    if (!found) return false;
    const size_t offset = reinterpret_cast<uintptr_t>(pointer) - found->first;
    return offset <= found->second.bytes && bytes <= found->second.bytes - offset;
}

std::optional<std::pair<uintptr_t, size_t>> Memory::range(const void* pointer) const {
    if (!contains(pointer, 1)) return {};
    const auto* found = find(live_, pointer);
    return std::pair{found->first, found->second.bytes};
}

bool Memory::stale(const void* pointer) const {
    const auto* found = find(freed_, pointer);
    return found && reinterpret_cast<uintptr_t>(pointer) - found->first < found->second.bytes;
}

bool Memory::guard(const void* pointer, size_t bytes) {
    if (!contains(pointer, bytes)) return false;
    const auto* start = static_cast<const unsigned char*>(pointer);
    guards_.push_back({start, std::vector<unsigned char>(start, start + bytes)});
    return true;
}

std::optional<std::string> Memory::damage() const {
    for (const auto& [start, extent] : live_) {
        const auto* end = reinterpret_cast<const unsigned char*>(start) + extent.bytes;
        if (!intact(end, behind(extent.bytes)))
            return "global memory behind an allocation of " + std::to_string(extent.bytes) + " bytes was written";
        if (!intact(extent.base, RED_ZONE))
            return "global memory before an allocation of " + std::to_string(extent.bytes) + " bytes was written";
    }
    for (const auto& guard : guards_) {
        if (std::memcmp(guard.start, guard.copy.data(), guard.copy.size()) == 0) continue;
        const auto differs = std::mismatch(guard.copy.begin(), guard.copy.end(), guard.start).second - guard.start;
        return "byte " + std::to_string(differs) + " of " + std::to_string(guard.copy.size()) +
               " guarded bytes of global memory was written";
    }
    return {};
}

}  // namespace stand_in
