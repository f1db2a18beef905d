// CUDA C++ on the CPU, for tests without a GPU: included by compat.cuh in place of the toolkit's headers.
//
// Needs C++20 and g++ or clang. A kernel's threads are fibers (thread.h), its blocks are run by the driver (block.cpp).
// Not modelled: the memory model between blocks beyond what atomics and orders of execution show, the cost of
// divergence, clusters, TMA and wgmma.
#pragma once
#include <stdint.h>

#include "async_copy.h"
#include "intrinsics.h"
#include "launch.h"
#include "mma.h"
#include "thread.h"
#include "types.h"
#include "warp.h"

#define __global__
#define __device__
#define __host__
#define __constant__ static
#define __forceinline__ inline
#define __noinline__ __attribute__((noinline))
#define __launch_bounds__(...)
#define __grid_constant__
#define __restrict__ __restrict
#define __align__(n) __attribute__((aligned(n)))

// One copy for each thread of the operating system, hence for each block under way; poisoned before each block.
#define __shared__ static thread_local

#define DYN_SHARED(T, name) T* name = reinterpret_cast<T*>(stand_in::current->block->dynamic_shared)

#define threadIdx (stand_in::current->index)
#define blockIdx (stand_in::current->block->index)
#define blockDim (stand_in::current->block->threads)
#define gridDim (stand_in::current->block->grid)
#define warpSize 32
