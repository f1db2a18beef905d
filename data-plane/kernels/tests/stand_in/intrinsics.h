// CUDA's arithmetic intrinsics and atomics, as far as kernels use them.
#pragma once
#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>

#include "types.h"

using std::isinf;
using std::isnan;
using std::max;
using std::min;

inline float __uint_as_float(unsigned bits) { return stand_in::bit_cast<float>(bits); }
inline float __int_as_float(int bits) { return stand_in::bit_cast<float>(bits); }
inline unsigned __float_as_uint(float value) { return stand_in::bit_cast<unsigned>(value); }
inline int __float_as_int(float value) { return stand_in::bit_cast<int>(value); }

inline float rsqrtf(float x) { return 1.0f / std::sqrt(x); }
inline float __expf(float x) { return std::exp(x); }
inline float __logf(float x) { return std::log(x); }
inline float __log2f(float x) { return std::log2(x); }
inline float __sinf(float x) { return std::sin(x); }
inline float __cosf(float x) { return std::cos(x); }
inline float __fdividef(float x, float y) { return x / y; }
inline float __frcp_rn(float x) { return 1.0f / x; }
inline float __frsqrt_rn(float x) { return float(1.0 / std::sqrt(double(x))); }
inline float __fsqrt_rn(float x) { return std::sqrt(x); }
inline float __fadd_rn(float x, float y) { return x + y; }
inline float __fsub_rn(float x, float y) { return x - y; }
inline float __fmul_rn(float x, float y) { return x * y; }
inline float __fdiv_rn(float x, float y) { return x / y; }
inline float __fmaf_rn(float x, float y, float z) { return std::fma(x, y, z); }
inline unsigned __float2uint_rn(float x) { return unsigned(std::nearbyint(x)); }
inline int __float2int_rn(float x) { return int(std::nearbyint(x)); }
inline float __uint2float_rn(unsigned x) { return float(x); }
inline float __int2float_rn(int x) { return float(x); }

inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline int __clz(int x) { return x == 0 ? 32 : __builtin_clz(unsigned(x)); }
inline int __ffs(int x) { return __builtin_ffs(x); }
inline unsigned __umulhi(unsigned x, unsigned y) { return unsigned(uint64_t(x) * y >> 32); }
inline unsigned __funnelshift_r(unsigned low, unsigned high, unsigned shift) {
    return unsigned((uint64_t(high) << 32 | low) >> (shift & 31));
}

// Four bytes of the eight of y:x, chosen by the lower three bits of the selector's nibbles (bit 3: the sign, spread).
inline unsigned __byte_perm(unsigned x, unsigned y, unsigned selector) {
    const uint64_t bytes = uint64_t(y) << 32 | x;
    unsigned result = 0;
    for (int i = 0; i < 4; ++i) {
        const unsigned nibble = selector >> 4 * i & 15;
        unsigned byte = unsigned(bytes >> 8 * (nibble & 7)) & 0xff;
        if (nibble & 8) byte = byte & 0x80 ? 0xff : 0;
        result |= byte << 8 * i;
    }
    return result;
}

// The dot product of four signed bytes, added to `sum`.
inline int __dp4a(int x, int y, int sum) {
    for (int i = 0; i < 4; ++i) sum += int(int8_t(x >> 8 * i)) * int(int8_t(y >> 8 * i));
    return sum;
}

template <class T> T __ldg(const T* pointer) { return *pointer; }
template <class T> T __ldcg(const T* pointer) { return *pointer; }
template <class T> T __ldcs(const T* pointer) { return *pointer; }
template <class T> void __stcs(T* pointer, T value) { *pointer = value; }

inline void __threadfence() { std::atomic_thread_fence(std::memory_order_seq_cst); }
inline void __threadfence_block() { std::atomic_thread_fence(std::memory_order_seq_cst); }

namespace stand_in {
// Replaces *pointer by f(*pointer) in one step and returns the old value.
template <class T, class F> T update(T* pointer, F f) {
    std::atomic_ref<T> target(*pointer);
    T old = target.load();
    while (!target.compare_exchange_weak(old, f(old))) {}
    return old;
}
template <class T> using Same = std::type_identity_t<T>;
}  // namespace stand_in

template <class T> T atomicAdd(T* p, stand_in::Same<T> v) { return stand_in::update(p, [v](T old) { return T(old + v); }); }
template <class T> T atomicSub(T* p, stand_in::Same<T> v) { return stand_in::update(p, [v](T old) { return T(old - v); }); }
template <class T> T atomicMax(T* p, stand_in::Same<T> v) { return stand_in::update(p, [v](T old) { return max(old, v); }); }
template <class T> T atomicMin(T* p, stand_in::Same<T> v) { return stand_in::update(p, [v](T old) { return min(old, v); }); }
template <class T> T atomicAnd(T* p, stand_in::Same<T> v) { return stand_in::update(p, [v](T old) { return T(old & v); }); }
template <class T> T atomicOr(T* p, stand_in::Same<T> v) { return stand_in::update(p, [v](T old) { return T(old | v); }); }
template <class T> T atomicXor(T* p, stand_in::Same<T> v) { return stand_in::update(p, [v](T old) { return T(old ^ v); }); }
template <class T> T atomicExch(T* p, stand_in::Same<T> v) { return std::atomic_ref<T>(*p).exchange(v); }
template <class T> T atomicCAS(T* p, stand_in::Same<T> expected, stand_in::Same<T> v) {
    std::atomic_ref<T>(*p).compare_exchange_strong(expected, v);
    return expected;
}
// Counts up to `limit`, then starts again at 0.
inline unsigned atomicInc(unsigned* p, unsigned limit) {
    return stand_in::update(p, [limit](unsigned old) { return old >= limit ? 0 : old + 1; });
}
