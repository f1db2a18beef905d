// How kernels are declared, and sums over a block in an order that depends on the block's size alone.
#pragma once

#include "compat.cuh"

// A kernel under its own name: `KERNEL(name, most threads a block, (parameters), { body })`.
#define KERNEL(name, threads, parameters, ...)                                   \
    extern "C" __global__ void __launch_bounds__(threads) name parameters __VA_ARGS__ \
    WEIR_EXPORT(name)

constexpr uint32_t ALL_LANES = 0xffffffff;

// Sum over the warp, the same bits in every lane.
template <class V>
__device__ __forceinline__ V warp_sum(V value) {
    for (int offset = 16; offset > 0; offset /= 2) value += __shfl_xor_sync(ALL_LANES, value, offset);
    return value;
}

// Sum over the block, the same bits in every thread. Whole warps only; every thread must call it.
template <class V>
__device__ V block_sum(V value) {
    __shared__ V sums[32];
    value = warp_sum(value);
    __syncthreads();  // An earlier call may still be reading.
    if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = value;
    __syncthreads();
    V total = 0;
    for (unsigned warp = 0; warp < blockDim.x / 32; ++warp) total += sums[warp];
    return total;
}
