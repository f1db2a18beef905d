// The GPU's side of compat.cuh: element types and instructions by PTX, for sm_80 and later.
#pragma once

#ifdef __CUDACC_RTC__
typedef unsigned char uint8_t;
typedef unsigned short uint16_t;
typedef unsigned int uint32_t;
typedef unsigned long long uint64_t;
typedef signed char int8_t;
typedef short int16_t;
typedef int int32_t;
typedef long long int64_t;
typedef unsigned long long uintptr_t;
#define INFINITY __int_as_float(0x7f800000)
#else
#include <math.h>
#include <stdint.h>
#endif

// One kernel is found by its name in the module: nothing to register here.
#define WEIR_EXPORT(name)

// The block's dynamic shared memory as an array of T.
#define DYN_SHARED(T, name)                                 \
    extern __shared__ __align__(128) unsigned char weir_dynamic_shared[]; \
    T* name = reinterpret_cast<T*>(weir_dynamic_shared)

// Element types: the bits alone. Arithmetic is done in f32.
struct bf16 { uint16_t bits; };
struct f16 { uint16_t bits; };
struct e4m3 { uint8_t bits; };

__device__ __forceinline__ float to_float(bf16 value) { return __uint_as_float(uint32_t(value.bits) << 16); }

__device__ __forceinline__ float to_float(f16 value) {
    float result;
    asm("cvt.f32.f16 %0, %1;" : "=f"(result) : "h"(value.bits));
    return result;
}

// Exact: with the sign aside, e4m3's exponent and mantissa are moved to where f16 has them, 2^8 too small; 0x7f is NaN.
__device__ __forceinline__ float to_float(e4m3 value) {
    f16 shifted;
    shifted.bits = uint16_t((value.bits & 0x80u) << 8 | (value.bits & 0x7fu) << 7);
    return (value.bits & 0x7fu) == 0x7fu ? __uint_as_float(0x7fffffffu) : to_float(shifted) * 256.0f;
}

// Rounds to nearest, ties to even. e4m3 saturates at ±448 and keeps NaN.
template <class T> __device__ __forceinline__ T from_float(float value);

template <> __device__ __forceinline__ bf16 from_float<bf16>(float value) {
    bf16 result;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(result.bits) : "f"(value));
    return result;
}

template <> __device__ __forceinline__ f16 from_float<f16>(float value) {
    f16 result;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(result.bits) : "f"(value));
    return result;
}

template <> __device__ __forceinline__ e4m3 from_float<e4m3>(float value) {
    e4m3 result;
#if __CUDA_ARCH__ >= 890
    uint16_t pair;
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(0.0f), "f"(value));
    result.bits = uint8_t(pair);
#else
    const uint32_t word = __float_as_uint(value);
    const uint32_t sign = word >> 24 & 0x80u;
    const uint32_t magnitude = word & 0x7fffffffu;
    uint32_t bits;
    if (magnitude > 0x7f800000u) bits = 0x7fu;
    else if (magnitude >= 0x43e00000u) bits = 0x7eu;                       // 448 and above
    else if (magnitude >= 0x3c800000u) {                                   // normal: 2^-6 and above
        const uint32_t rounded = magnitude + 0x7ffffu + (magnitude >> 20 & 1u);
        bits = (rounded >> 20) - (120u << 3);
    } else bits = __float2uint_rn(__uint_as_float(magnitude) * 512.0f);    // multiples of 2^-9
    result.bits = uint8_t(sign | bits);
#endif
    return result;
}

// Two values rounded to T and packed, `low` in the lower half.
template <class T> __device__ __forceinline__ uint32_t pack2(float low, float high);

template <> __device__ __forceinline__ uint32_t pack2<bf16>(float low, float high) {
    uint32_t result;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(result) : "f"(high), "f"(low));
    return result;
}

template <> __device__ __forceinline__ uint32_t pack2<f16>(float low, float high) {
    uint32_t result;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(result) : "f"(high), "f"(low));
    return result;
}

// c (16 x 8, f32) += a (16 x 16, row-major) · b (16 x 8, column-major), fragments as PTX lays them out over a warp.
template <class T> __device__ __forceinline__ void mma_m16n8k16(float (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]);

template <> __device__ __forceinline__ void mma_m16n8k16<bf16>(float (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%0,%1,%2,%3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

template <> __device__ __forceinline__ void mma_m16n8k16<f16>(float (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%0,%1,%2,%3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

__device__ __forceinline__ uint32_t shared_address(const void* pointer) {
    return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

// Loads 8 x 8 matrices of 16-bit elements from shared memory: lane i gives the address of row i % 8 of matrix i / 8,
// aligned to 16 bytes; lane l receives the elements 2 (l % 4) and 2 (l % 4) + 1 of row l / 4 of each matrix.
__device__ __forceinline__ void ldmatrix_x4(uint32_t (&r)[4], const void* row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(shared_address(row)) : "memory");
}

__device__ __forceinline__ void ldmatrix_x2(uint32_t (&r)[2], const void* row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0,%1}, [%2];"
                 : "=r"(r[0]), "=r"(r[1]) : "r"(shared_address(row)) : "memory");
}

// The same with each matrix transposed on the way.
__device__ __forceinline__ void ldmatrix_x4_trans(uint32_t (&r)[4], const void* row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(shared_address(row)) : "memory");
}

__device__ __forceinline__ void ldmatrix_x2_trans(uint32_t (&r)[2], const void* row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0,%1}, [%2];"
                 : "=r"(r[0]), "=r"(r[1]) : "r"(shared_address(row)) : "memory");
}

// Copies 16 bytes from global to shared memory, or writes 16 zeros where `inside` is false (`global` is not read then).
// The bytes are there for this thread after cp_async_wait, for others after a barrier that follows it.
__device__ __forceinline__ void cp_async16(void* shared, const void* global, bool inside = true) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
                 :: "r"(shared_address(shared)), "l"(global), "r"(inside ? 16 : 0) : "memory");
}

// Closes the group of this thread's copies since the last commit.
__device__ __forceinline__ void cp_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// Waits until at most the N youngest groups are under way.
template <int N> __device__ __forceinline__ void cp_async_wait() {
    asm volatile("cp.async.wait_group %0;" :: "n"(N) : "memory");
}
