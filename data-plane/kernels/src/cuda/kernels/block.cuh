// How kernels are declared, and sums over a block in an order that depends on the block's size alone.
#pragma once

#include "compat.cuh"

// A kernel under its own name: `KERNEL(name, most threads a block, (parameters), { body })`. One block at a time is
// enough: the compiler is not to spill registers for the sake of a second one.
#define KERNEL(name, threads, parameters, ...)                                           \
    extern "C" __global__ void __launch_bounds__(threads, 1) name parameters __VA_ARGS__ \
    WEIR_EXPORT(name)

constexpr uint32_t ALL_LANES = 0xffffffff;

// `combine` over the warp's values, the same bits in every lane.
template <class V, class Combine>
__device__ __forceinline__ V warp_reduce(V value, Combine combine) {
    for (int offset = 16; offset > 0; offset /= 2) value = combine(value, __shfl_xor_sync(ALL_LANES, value, offset));
    return value;
}

// `combine` over the block's values, the same bits in every thread. Whole warps only; every thread must call it.
template <class V, class Combine>
__device__ __forceinline__ V block_reduce(V value, Combine combine) {
    __shared__ V of_warps[32];
    value = warp_reduce(value, combine);
    __syncthreads();  // An earlier call may still be reading.
    if (threadIdx.x % 32 == 0) of_warps[threadIdx.x / 32] = value;
    __syncthreads();
    V total = of_warps[0];
    for (unsigned warp = 1; warp < blockDim.x / 32; ++warp) total = combine(total, of_warps[warp]);
    return total;
}

template <class V>
__device__ __forceinline__ V warp_sum(V value) {
    return warp_reduce(value, [](V a, V b) { return a + b; });
}
template <class V>
__device__ __forceinline__ V block_sum(V value) {
    return block_reduce(value, [](V a, V b) { return a + b; });
}
template <class V>
__device__ __forceinline__ V block_max(V value) {
    return block_reduce(value, [](V a, V b) { return a > b ? a : b; });
}
template <class V>
__device__ __forceinline__ V block_min(V value) {
    return block_reduce(value, [](V a, V b) { return a < b ? a : b; });
}
