// What a seat asks of the sampler, its noise, and the order of tokens. The engine's sampler for the CPU defines
// correct.
#pragma once

#include "block.cuh"
#include "step.cuh"

using u64 = unsigned long long;

constexpr int LOGIT_BIAS_MAX = 1024;
constexpr int TOP_LOGPROBS_MAX = 20;

// Written by the host when a sequence takes the seat.
struct SeatSampling {
    u64 seed;
    float inverse_temperature;  // 0: the highest logit.
    float top_p;                // 1: all.
    float min_score;            // Natural logarithm of min-p.
    int top_k;                  // 0: all.
    float repetition_penalty;
    float frequency_penalty;
    float presence_penalty;
    int count_slot;  // Where the seat's tokens are counted; -1 if nothing is penalised.
    int num_bias;
    int top_logprobs;  // -1: none are asked for.
};

__device__ __forceinline__ bool is_adjusted(const Sample& sample, const SeatSampling& seat) {
    return seat.count_slot >= 0 || seat.num_bias > 0 || sample.mask >= 0;
}

// The bits of a float in an order that integers have (IEEE 754's total order).
__device__ __forceinline__ uint32_t ordered(float x) {
    const uint32_t bits = __float_as_uint(x);
    return bits >> 31 ? ~bits : bits | 0x80000000;
}

// Most likely first, the lower id on a tie.
__device__ __forceinline__ u64 rank_of(float score, int token) {
    return static_cast<u64>(ordered(score)) << 32 | ~static_cast<uint32_t>(token);
}
__device__ __forceinline__ int token_of(u64 rank) { return static_cast<int>(~static_cast<uint32_t>(rank)); }

// SplitMix64's output function (Steele, Lea, Flood 2014) as a counter-based generator.
constexpr u64 GOLDEN_GAMMA = 0x9e3779b97f4a7c15;

__device__ __forceinline__ u64 mix(u64 z) {
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
    z = (z ^ z >> 27) * 0x94d049bb133111eb;
    return z ^ z >> 31;
}

__device__ __forceinline__ u64 noise_key(u64 seed, int position) {
    return mix(mix(seed + GOLDEN_GAMMA) ^ static_cast<u64>(position) * GOLDEN_GAMMA);
}

__device__ __forceinline__ u64 noise_bits(u64 key, int token) {
    return mix(key + (static_cast<u64>(token) + 1) * GOLDEN_GAMMA);
}

// Standard Gumbel noise, -ln(-ln u), with u in (0, 1) from the upper 52 bits.
__device__ __forceinline__ double gumbel(u64 bits) {
    const double u = (static_cast<double>(bits >> 12) + 0.5) * (1.0 / 4503599627370496.0);
    return -log(-log(u));
}

// An upper bound of it by the leading zeros of the complement, which passes nearly all tokens over without a
// logarithm.
__device__ __forceinline__ double gumbel_bound(u64 bits) {
    const int high = static_cast<int>(~bits >> 32);
    const int zeros = high ? __clz(high) : 32 + __clz(static_cast<int>(~bits));
    return (zeros + 1) * 0.693147180559945309417;
}

// exp of a score of at most 0, within 2e-7 relative; 0 below -80. The CPU's polynomial, operation by operation.
__device__ __forceinline__ float exp_of_score(float score) {
    const float round = 12582912.0f;  // 1.5 * 2^23: adding it leaves the nearest integer in the low bits.
    const float x = score > -80.0f ? score : -80.0f;
    const float shifted = __fadd_rn(__fmul_rn(x, 1.44269504f), round);
    const float n = __fsub_rn(shifted, round);
    const float r = __fadd_rn(__fsub_rn(x, __fmul_rn(n, 0.6933594f)), __fmul_rn(n, 2.1219444e-4f));
    float p = 1.0f / 720.0f;
    const float coefficients[6] = {1.0f / 120.0f, 1.0f / 24.0f, 1.0f / 6.0f, 0.5f, 1.0f, 1.0f};
#pragma unroll
    for (int i = 0; i < 6; ++i) p = __fadd_rn(__fmul_rn(p, r), coefficients[i]);
    const float scale = __uint_as_float((__float_as_uint(shifted) << 23) + 0x3f800000);
    return score > -80.0f ? __fmul_rn(p, scale) : 0.0f;
}
