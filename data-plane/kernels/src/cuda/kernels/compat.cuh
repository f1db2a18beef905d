// What every kernel includes: one set of names for nvcc, for NVRTC and for the stand-in on the CPU.
//
// The names beyond CUDA's own are few: element types (bf16, f16, e4m3) with their conversions, tensor-core and
// asynchronous-copy instructions, dynamic shared memory and the export of a kernel by name. They need no header of
// the toolkit, so that NVRTC compiles these files on a machine which has the driver and libnvrtc only.
//
// A kernel is an `extern "C" __global__` function, by convention a thin one that calls a `__device__` template for
// its element types, followed by WEIR_EXPORT(name).
#pragma once

#ifdef WEIR_STAND_IN
#include "stand_in/cuda.h"
#else
#include "ptx.cuh"
#endif

// Conversions that are the same everywhere, over to_float and from_float<T> of either side.

__device__ __forceinline__ float to_float(float value) { return value; }

template <> __device__ __forceinline__ float from_float<float>(float value) { return value; }

// Two 16-bit elements of one register, the one at the lower address in the lower half.
template <class T> __device__ __forceinline__ float2 unpack2(uint32_t pair) {
    static_assert(sizeof(T) == 2, "a register holds two elements of 16 bits");
    T low, high;
    low.bits = static_cast<uint16_t>(pair);
    high.bits = static_cast<uint16_t>(pair >> 16);
    return make_float2(to_float(low), to_float(high));
}

// A value as an element of type T would keep it: rounds once, as a store and a load would.
template <class T> __device__ __forceinline__ float rounded(float value) { return to_float(from_float<T>(value)); }

__host__ __device__ constexpr uint32_t ceil_div(uint32_t a, uint32_t b) { return (a + b - 1) / b; }
