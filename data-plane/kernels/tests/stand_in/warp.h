// Warp operations: shuffles and votes over the lanes of a mask, with CUDA's names and rules.
//
// Where CUDA says that a value is undefined (a lane outside the mask is read) the result's bytes are all 0xff, which
// is NaN in every floating-point type.
#pragma once
#include "thread.h"

namespace stand_in {

// The lane range [first, last] of `width` consecutive lanes in which a shuffle stays.
struct Segment {
    unsigned first, last;
    Segment(unsigned lane, int width) {
        if (width <= 0 || width > int(WARP) || (width & (width - 1))) fault("the width of a shuffle is no power of two up to 32");
        first = lane & ~(unsigned(width) - 1);
        last = first + unsigned(width) - 1;
    }
};

}  // namespace stand_in

template <class T> T __shfl_sync(unsigned mask, T value, int source, int width = 32, WEIR_CALLER) {
    const stand_in::Segment segment(stand_in::current->lane(), width);
    const auto* slots = stand_in::exchange(WEIR_PLACE("__shfl_sync"), mask, value);
    return stand_in::take<T>(slots, segment.first + (unsigned(source) & (unsigned(width) - 1)));
}

template <class T> T __shfl_xor_sync(unsigned mask, T value, int lane_mask, int width = 32, WEIR_CALLER) {
    const unsigned lane = stand_in::current->lane();
    const stand_in::Segment segment(lane, width);
    const auto* slots = stand_in::exchange(WEIR_PLACE("__shfl_xor_sync"), mask, value);
    const unsigned source = lane ^ unsigned(lane_mask);
    return stand_in::take<T>(slots, source > segment.last ? lane : source);
}

template <class T> T __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = 32, WEIR_CALLER) {
    const unsigned lane = stand_in::current->lane();
    const stand_in::Segment segment(lane, width);
    const auto* slots = stand_in::exchange(WEIR_PLACE("__shfl_down_sync"), mask, value);
    return stand_in::take<T>(slots, lane + delta > segment.last ? lane : lane + delta);
}

template <class T> T __shfl_up_sync(unsigned mask, T value, unsigned delta, int width = 32, WEIR_CALLER) {
    const unsigned lane = stand_in::current->lane();
    const stand_in::Segment segment(lane, width);
    const auto* slots = stand_in::exchange(WEIR_PLACE("__shfl_up_sync"), mask, value);
    return stand_in::take<T>(slots, lane < segment.first + delta ? lane : lane - delta);
}

inline unsigned __ballot_sync(unsigned mask, int predicate, WEIR_CALLER) {
    const auto* slots = stand_in::exchange(WEIR_PLACE("__ballot_sync"), mask, predicate);
    unsigned ballot = 0;
    for (unsigned lane = 0; lane < stand_in::WARP; ++lane)
        if ((mask >> lane & 1) && stand_in::take<int>(slots, lane)) ballot |= 1u << lane;
    return ballot;
}

inline int __any_sync(unsigned mask, int predicate, WEIR_CALLER) { return __ballot_sync(mask, predicate, file, line) != 0; }

inline int __all_sync(unsigned mask, int predicate, WEIR_CALLER) { return __ballot_sync(mask, predicate, file, line) == mask; }

inline void __syncwarp(unsigned mask = stand_in::ALL_LANES, WEIR_CALLER) {
    stand_in::exchange(WEIR_PLACE("__syncwarp"), mask, 0);
}

// The sum and its kin of sm_80's redux: 32-bit integers.
namespace stand_in {
template <class T, class F> T reduce(Place place, unsigned mask, T value, F combine) {
    const auto* slots = exchange(place, mask, value);
    T result = value;
    for (unsigned lane = 0; lane < WARP; ++lane)
        if ((mask >> lane & 1) && lane != current->lane()) result = combine(result, take<T>(slots, lane));
    return result;
}
}  // namespace stand_in

template <class T> T __reduce_add_sync(unsigned mask, T value, WEIR_CALLER) {
    return stand_in::reduce(WEIR_PLACE("__reduce_add_sync"), mask, value, [](T a, T b) { return T(a + b); });
}
template <class T> T __reduce_max_sync(unsigned mask, T value, WEIR_CALLER) {
    return stand_in::reduce(WEIR_PLACE("__reduce_max_sync"), mask, value, [](T a, T b) { return a < b ? b : a; });
}
template <class T> T __reduce_min_sync(unsigned mask, T value, WEIR_CALLER) {
    return stand_in::reduce(WEIR_PLACE("__reduce_min_sync"), mask, value, [](T a, T b) { return b < a ? b : a; });
}
inline unsigned __reduce_or_sync(unsigned mask, unsigned value, WEIR_CALLER) {
    return stand_in::reduce(WEIR_PLACE("__reduce_or_sync"), mask, value, [](unsigned a, unsigned b) { return a | b; });
}

// Barriers of the whole block. All threads must come to the same one; none may have returned.
inline void __syncthreads(WEIR_CALLER) { stand_in::wait_for_block(WEIR_PLACE("__syncthreads"), false); }

inline int __syncthreads_count(int predicate, WEIR_CALLER) {
    return int(stand_in::wait_for_block(WEIR_PLACE("__syncthreads_count"), predicate != 0).nonzero);
}
inline int __syncthreads_or(int predicate, WEIR_CALLER) {
    return stand_in::wait_for_block(WEIR_PLACE("__syncthreads_or"), predicate != 0).nonzero != 0;
}
inline int __syncthreads_and(int predicate, WEIR_CALLER) {
    return stand_in::wait_for_block(WEIR_PLACE("__syncthreads_and"), predicate == 0).nonzero == 0;
}
