// cp.async: the bytes land at the wait and not before, and the target is poisoned meanwhile.
//
// A kernel that reads early, that issues a copy over bytes which others still read, or that changes the source while
// the copy is under way gets NaN or wrong bytes here, whatever a GPU would have done on that run.
#pragma once
#include "thread.h"

namespace stand_in {

inline void land(const PendingCopy& copy) {
    if (copy.source) std::memcpy(copy.target, copy.source, 16);
    else std::memset(copy.target, 0, 16);
}

// Lets the groups numbered below `first_pending` land.
inline void land_groups_before(unsigned first_pending) {
    auto& copies = current->copies;
    size_t landed = 0;
    while (landed < copies.size() && copies[landed].group < first_pending) land(copies[landed++]);
    copies.erase(copies.begin(), copies.begin() + long(landed));
}

}  // namespace stand_in

inline void cp_async16(void* shared, const void* global, bool inside = true) {
    const auto aligned = [](const void* pointer) { return reinterpret_cast<uintptr_t>(pointer) % 16 == 0; };
    if (!aligned(shared) || (inside && !aligned(global))) stand_in::fault("cp_async16: an address is not aligned to 16 bytes");
    std::memset(shared, 0xff, 16);
    auto* thread = stand_in::current;
    thread->copies.push_back({shared, inside ? global : nullptr, thread->copy_group});
}

inline void cp_async_commit() { ++stand_in::current->copy_group; }

template <int N> void cp_async_wait() {
    static_assert(N >= 0);
    const unsigned committed = stand_in::current->copy_group;
    stand_in::land_groups_before(committed > unsigned(N) ? committed - unsigned(N) : 0);
}
