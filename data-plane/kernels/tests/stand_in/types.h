// CUDA's vector types and the element types of compat.cuh, with conversions that round as the GPU's do.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstring>

struct alignas(4) char4 { signed char x, y, z, w; };
struct alignas(4) uchar4 { unsigned char x, y, z, w; };
struct alignas(8) int2 { int x, y; };
struct alignas(16) int4 { int x, y, z, w; };
struct alignas(8) uint2 { unsigned x, y; };
struct alignas(16) uint4 { unsigned x, y, z, w; };
struct alignas(8) float2 { float x, y; };
struct alignas(16) float4 { float x, y, z, w; };
struct alignas(16) ulonglong2 { unsigned long long x, y; };

inline char4 make_char4(signed char x, signed char y, signed char z, signed char w) { return {x, y, z, w}; }
inline uchar4 make_uchar4(unsigned char x, unsigned char y, unsigned char z, unsigned char w) { return {x, y, z, w}; }
inline int2 make_int2(int x, int y) { return {x, y}; }
inline int4 make_int4(int x, int y, int z, int w) { return {x, y, z, w}; }
inline uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }
inline float2 make_float2(float x, float y) { return {x, y}; }
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }

namespace stand_in {

template <class To, class From> To bit_cast(const From& from) {
    static_assert(sizeof(To) == sizeof(From));
    To to;
    std::memcpy(&to, &from, sizeof(To));
    return to;
}

inline uint16_t bf16_bits(float value) {
    const auto word = bit_cast<uint32_t>(value);
    if (value != value) return 0x7fff;
    return uint16_t((word + 0x7fff + (word >> 16 & 1)) >> 16);
}

inline uint16_t f16_bits(float value) {
    if (value != value) return 0x7fff;
    return bit_cast<uint16_t>(static_cast<_Float16>(value));
}

// Four bits of exponent with bias 7, three of mantissa, no infinities, 0x7f is NaN: saturates at 448.
inline uint8_t e4m3_bits(float value) {
    const uint8_t sign = std::signbit(value) ? 0x80 : 0;
    if (value != value) return sign | 0x7f;
    const float magnitude = std::fabs(value);
    if (magnitude >= 448.0f) return sign | 0x7e;
    if (magnitude == 0.0f) return sign;
    // The spacing of the numbers around it: 2^(exponent - 3), and 2^-9 below the smallest normal number, 2^-6.
    int exponent = 0;
    std::frexp(magnitude, &exponent);
    exponent = exponent - 1 < -6 ? -6 : exponent - 1;
    const float steps = std::nearbyint(std::ldexp(magnitude, 3 - exponent));
    // 8 to 16 steps of a normal number, 0 to 8 of a subnormal one; a carry moves on to the next exponent by itself.
    return sign | uint8_t((exponent + 6) * 8 + int(steps));
}

inline float e4m3_value(uint8_t bits) {
    const float sign = bits & 0x80 ? -1.0f : 1.0f;
    const int exponent = bits >> 3 & 15, mantissa = bits & 7;
    if ((bits & 0x7f) == 0x7f) return bit_cast<float>(0x7fffffffu);
    return sign * (exponent == 0 ? std::ldexp(float(mantissa), -9) : std::ldexp(float(8 + mantissa), exponent - 10));
}

}  // namespace stand_in

struct bf16 { uint16_t bits; };
struct f16 { uint16_t bits; };
struct e4m3 { uint8_t bits; };

inline float to_float(bf16 value) { return stand_in::bit_cast<float>(uint32_t(value.bits) << 16); }
inline float to_float(f16 value) { return float(stand_in::bit_cast<_Float16>(value.bits)); }
inline float to_float(e4m3 value) { return stand_in::e4m3_value(value.bits); }

template <class T> T from_float(float value);
template <> inline bf16 from_float<bf16>(float value) { return {stand_in::bf16_bits(value)}; }
template <> inline f16 from_float<f16>(float value) { return {stand_in::f16_bits(value)}; }
template <> inline e4m3 from_float<e4m3>(float value) { return {stand_in::e4m3_bits(value)}; }

template <class T> uint32_t pack2(float low, float high) {
    return uint32_t(from_float<T>(low).bits) | uint32_t(from_float<T>(high).bits) << 16;
}
