// Weight matrices as kernels read them: dense, or packed blocks of 32 with a scale.
//
// A row is read in groups of 64 elements, two blocks of 32. Within a block, lane t of four holds elements 8t .. 8t
// + 8: for weights and activations alike, so that products pair up on the tensor cores although the order along k
// is not the fragments' own, and every load is 16 bytes wide (four-bit codes: 8). Packed weights lie in one buffer:
// the codes [n][groups][GROUP_BYTES] in the order that the lanes want them, then half-precision scales
// [n][groups][2], then (with HAS_MINIMUM) minimums alike.
//
// value = scale * code + minimum. Codes are exact in both 16-bit formats; scales are applied in single precision
// after the products of a block have been summed.
#pragma once

#include "fragments.cuh"

constexpr int GROUP = 64;

template <class T>
__device__ __forceinline__ float low_half(uint32_t pair) {
    return to_float(T{static_cast<uint16_t>(pair)});
}
template <class T>
__device__ __forceinline__ float high_half(uint32_t pair) {
    return to_float(T{static_cast<uint16_t>(pair >> 16)});
}

template <class T>
struct Dense {
    static constexpr int GROUP_BYTES = 128;
    static constexpr bool PACKED = false;
    static constexpr bool HAS_MINIMUM = false;
    struct Packet {
        uint4 block[2];
    };

    static __device__ __forceinline__ Packet load(const uint8_t* group, int t, bool has_second) {
        Packet packet;
        packet.block[0] = *reinterpret_cast<const uint4*>(group + 16 * t);
        packet.block[1] = has_second ? *reinterpret_cast<const uint4*>(group + 64 + 16 * t) : uint4{0, 0, 0, 0};
        return packet;
    }

    static __device__ __forceinline__ void unpack(const Packet& packet, int block, LanePairs& pairs) {
        const uint4 chunk = packet.block[block];
        pairs[0] = chunk.x;
        pairs[1] = chunk.y;
        pairs[2] = chunk.z;
        pairs[3] = chunk.w;
    }
};

// 2^23 + code as a float, so that a subtraction gives the code.
__device__ __forceinline__ float code_float(uint32_t code, float bias) {
    return __uint_as_float(0x4b000000 | code) - bias;
}

template <class T>
struct Q8_0 {
    static constexpr int GROUP_BYTES = 64;
    static constexpr bool PACKED = true;
    static constexpr bool HAS_MINIMUM = false;
    struct Packet {
        uint4 codes;
    };

    static __device__ __forceinline__ Packet load(const uint8_t* group, int t, bool) {
        return {*reinterpret_cast<const uint4*>(group + 16 * t)};
    }

    static __device__ __forceinline__ uint32_t pair(uint32_t codes, int first) {
        const float low = code_float(codes >> 8 * first & 0xff, 8388736.0f);
        const float high = code_float(codes >> 8 * (first + 1) & 0xff, 8388736.0f);
        return pack2<T>(low, high);
    }

    static __device__ __forceinline__ void unpack(const Packet& packet, int block, LanePairs& pairs) {
        const uint32_t sign = 0x80808080;  // Two's complement to offset by 128.
        const uint32_t first = (block == 0 ? packet.codes.x : packet.codes.z) ^ sign;
        const uint32_t second = (block == 0 ? packet.codes.y : packet.codes.w) ^ sign;
        pairs[0] = pair(first, 0);
        pairs[1] = pair(first, 2);
        pairs[2] = pair(second, 0);
        pairs[3] = pair(second, 2);
    }
};

// Element e of a lane's eight codes is nibble e / 2 + 4 (e % 2), so that a shift leaves a pair in place.
template <class T, int ZERO_POINT, bool MINIMUM>
struct FourBit {
    static constexpr int GROUP_BYTES = 32;
    static constexpr bool PACKED = true;
    static constexpr bool HAS_MINIMUM = MINIMUM;
    struct Packet {
        uint2 codes;
    };

    static __device__ __forceinline__ Packet load(const uint8_t* group, int t, bool) {
        return {*reinterpret_cast<const uint2*>(group + 8 * t)};
    }

    static __device__ __forceinline__ uint32_t pair(uint32_t codes, int index) {
        const float bias = 8388608.0f + ZERO_POINT;
        const uint32_t both = codes >> 4 * index & 0x000f000f;
        return pack2<T>(code_float(both & 0xf, bias), code_float(both >> 16, bias));
    }

    static __device__ __forceinline__ void unpack(const Packet& packet, int block, LanePairs& pairs) {
#pragma unroll
        for (int i = 0; i < 4; ++i) pairs[i] = pair(block == 0 ? packet.codes.x : packet.codes.y, i);
    }
};

template <class T>
using Q4_0 = FourBit<T, 8, false>;
template <class T>
using Q4_1 = FourBit<T, 0, true>;

// A matrix [n][k] of weights W in device memory; k is a multiple of 32.
template <class W>
struct WeightMatrix {
    const uint8_t* codes;
    const f16* scales;
    const f16* minimums;
    size_t row_bytes;
    int num_blocks;
    int num_groups;

    __device__ __forceinline__ WeightMatrix(const void* weight, int n, int k) {
        num_blocks = k / 32;
        num_groups = (num_blocks + 1) / 2;
        codes = static_cast<const uint8_t*>(weight);
        row_bytes = W::PACKED ? static_cast<size_t>(num_groups) * W::GROUP_BYTES : static_cast<size_t>(k) * 2;
        scales = reinterpret_cast<const f16*>(codes + n * row_bytes);
        minimums = scales + static_cast<size_t>(n) * num_groups * 2;
    }

    __device__ __forceinline__ const uint8_t* group(int row, int group) const {
        return codes + row * row_bytes + static_cast<size_t>(group) * W::GROUP_BYTES;
    }

    __device__ __forceinline__ bool has_second(int group) const { return 2 * group + 1 < num_blocks; }

    // Scales or minimums of a group's two blocks.
    __device__ __forceinline__ uint32_t both(const f16* values, int row, int group) const {
        return reinterpret_cast<const uint32_t*>(values)[static_cast<size_t>(row) * num_groups + group];
    }
};
