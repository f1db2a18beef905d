// Attention of 16 query rows over 32 keys at a time, by one warp: what decode and prefill share.
//
// A query row is one head of one token; the heads that share a KV head lie side by side. The context is cut into
// splits of SPLIT_KEYS at absolute positions: each split has its own running maximum, sum and weighted values, and
// splits are merged in ascending order. Keys that a row does not see change no bit of it. So a token's result is
// the same whether it is computed alone or within a chunk, and by whichever kernel.
#pragma once

#include "block.cuh"
#include "fragments.cuh"
#include "pages.cuh"
#include "step.cuh"

constexpr int TILE_KEYS = 32;
constexpr int SPLIT_KEYS = 256;

// 32 keys, then their values, in shared memory. The chunks of 16 bytes of a row are permuted by the key, so that
// the lanes that load together meet different banks.
template <class KV, int D>
struct KvTile {
    static constexpr int ROW_BYTES = D * sizeof(KV);
    static constexpr int ROW_CHUNKS = ROW_BYTES / 16;
    static constexpr int VALUES = TILE_KEYS * ROW_BYTES;
    static constexpr int BYTES = 2 * VALUES;

    static __device__ __forceinline__ int key_chunk(int key, int chunk) {
        if (sizeof(KV) == 2) return chunk ^ (key % 2 * 4);
        return ROW_CHUNKS >= 8 ? chunk ^ (key % 4 * 2) : chunk ^ (key / 2 % 2 * 2);
    }
    static __device__ __forceinline__ int value_chunk(int key, int chunk) {
        return chunk ^ (key / 2 % (ROW_CHUNKS >= 8 ? 4 : 2) * 2);
    }

    // Starts the copies of positions first .. first + 32; zeros outside `begin .. end`. `threads` threads share them.
    static __device__ __forceinline__ void load(uint8_t* tile, const Pages& pages, int seat, int kv_head, int first,
                                                int begin, int end, int threads) {
        for (int i = threadIdx.x; i < 2 * TILE_KEYS * ROW_CHUNKS; i += threads) {
            const int chunk = i % ROW_CHUNKS;
            const int key = i / ROW_CHUNKS % TILE_KEYS;
            const int is_value = i / (ROW_CHUNKS * TILE_KEYS);
            const int position = first + key;
            const bool wanted = position >= begin && position < end;
            const uint8_t* from = pages.pool;
            if (wanted) {
                const size_t slot = (kv_head * 2 + is_value) * BLOCK_TOKENS + position % BLOCK_TOKENS;
                from = pages.of(seat, position / BLOCK_TOKENS) + slot * ROW_BYTES + chunk * 16;
            }
            const int to = is_value ? value_chunk(key, chunk) : key_chunk(key, chunk);
            cp_async16(tile + is_value * VALUES + key * ROW_BYTES + to * 16, from, wanted);
        }
    }
};

// Eight elements of KV at `from` as pairs of T.
template <class T, class KV>
struct EightElements;
template <class T>
struct EightElements<T, T> {
    static __device__ __forceinline__ void read(const uint8_t* from, LanePairs& pairs) {
        const uint4 chunk = *reinterpret_cast<const uint4*>(from);
        pairs[0] = chunk.x;
        pairs[1] = chunk.y;
        pairs[2] = chunk.z;
        pairs[3] = chunk.w;
    }
};
template <class T, class KV>
struct EightElements {
    static __device__ __forceinline__ void read(const uint8_t* from, LanePairs& pairs) {
        struct __align__(8 * sizeof(KV)) Eight {
            KV elements[8];
        };
        const Eight eight = *reinterpret_cast<const Eight*>(from);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            pairs[i] = pack2<T>(to_float(eight.elements[2 * i]), to_float(eight.elements[2 * i + 1]));
        }
    }
};

// The query rows g and g + 8 of a warp: in registers where there is room, else read again for each tile.
template <class T, int D>
struct Queries {
    static constexpr bool IN_REGISTERS = D <= 128;
    const T* rows[2];
    RowsBlock blocks[IN_REGISTERS ? D / 32 : 1];

    __device__ __forceinline__ RowsBlock read(int block) const {
        const int at = block * 32 + threadIdx.x % 4 * 8;
        return {*reinterpret_cast<const uint4*>(rows[0] + at), *reinterpret_cast<const uint4*>(rows[1] + at)};
    }
    __device__ __forceinline__ void keep() {
        if constexpr (IN_REGISTERS) {
#pragma unroll
            for (int i = 0; i < D / 32; ++i) blocks[i] = read(i);
        }
    }
    __device__ __forceinline__ RowsBlock block(int i) const {
        if constexpr (IN_REGISTERS) return blocks[i];
        return read(i);
    }
};

// The keys that a lane's two rows see: first .. last, both included.
struct Sight {
    int first[2];
    int last[2];
};

// The unfinished softmax of a lane's two rows over a split. Column n of fragment 8 j + e stands for dimension 8 (8
// j + n) + e: a lane then reads and writes eight neighbours.
template <int D>
struct Attended {
    float max[2];  // Of the scores times log2(e).
    float sum[4];  // Elements 0 and 2 count: a product with ones, so that it rounds as the values do.
    float values[D / 8][4];

    __device__ __forceinline__ void clear() {
        max[0] = max[1] = -INFINITY;
#pragma unroll
        for (int i = 0; i < 4; ++i) sum[i] = 0.0f;
#pragma unroll
        for (int i = 0; i < D / 2; ++i) values[i / 4][i % 4] = 0.0f;
    }
};

// Scores of the rows against the tile's keys, in units of log2(e): fragment j holds keys 8 j .. 8 j + 8.
template <class T, class KV, int D>
__device__ __forceinline__ void score_tile(float (&scores)[4][4], const Queries<T, D>& queries, const uint8_t* tile,
                                           float scale) {
    using Tile = KvTile<KV, D>;
    const int g = threadIdx.x % 32 / 4;
    const int t = threadIdx.x % 4;
#pragma unroll
    for (int i = 0; i < 16; ++i) scores[i / 4][i % 4] = 0.0f;
#pragma unroll
    for (int block = 0; block < D / 32; ++block) {
        const RowsBlock rows = queries.block(block);
        const int byte = (block * 32 + t * 8) * static_cast<int>(sizeof(KV));
#pragma unroll
        for (int j = 0; j < 4; ++j) {
            const int key = 8 * j + g;
            LanePairs pairs;
            const int chunk = Tile::key_chunk(key, byte / 16);
            EightElements<T, KV>::read(tile + key * Tile::ROW_BYTES + chunk * 16 + byte % 16, pairs);
            block_product<T>(scores[j], rows, pairs);
        }
    }
#pragma unroll
    for (int i = 0; i < 16; ++i) scores[i / 4][i % 4] *= scale;
}

// values += weights V over 16 keys from `first_key` on; `weights` is the 16 x 16 operand.
template <class T, class KV, int D>
__device__ __forceinline__ void add_values(Attended<D>& attended, const uint32_t (&weights)[4], const uint8_t* tile,
                                           int first_key) {
    using Tile = KvTile<KV, D>;
    const int g = threadIdx.x % 32 / 4;
    const int t = threadIdx.x % 4;
    const uint32_t one = pack2<T>(1.0f, 1.0f);
    const uint32_t ones[2] = {one, one};
    mma_m16n8k16<T>(attended.sum, weights, ones);
#pragma unroll
    for (int j = 0; j < D / 64; ++j) {
        const int byte = (j * 8 + g) * 8 * static_cast<int>(sizeof(KV));
        LanePairs keys[4];  // Keys 2t, 2t + 1, 2t + 8, 2t + 9, as the second operand wants them.
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const int key = first_key + 2 * t + i % 2 + i / 2 * 8;
            const int chunk = Tile::value_chunk(key, byte / 16);
            EightElements<T, KV>::read(tile + Tile::VALUES + key * Tile::ROW_BYTES + chunk * 16 + byte % 16, keys[i]);
        }
#pragma unroll
        for (int e = 0; e < 8; ++e) {
            const uint32_t halves = e % 2 == 0 ? 0x5410 : 0x7632;
            const uint32_t columns[2] = {__byte_perm(keys[0][e / 2], keys[1][e / 2], halves),
                                         __byte_perm(keys[2][e / 2], keys[3][e / 2], halves)};
            mma_m16n8k16<T>(attended.values[8 * j + e], weights, columns);
        }
    }
}

// Hides what the rows do not see, and raises their maxima to the tile's; what was summed so far is scaled to the
// new ones.
template <int D>
__device__ __forceinline__ void raise_maxima(Attended<D>& attended, float (&scores)[4][4], const Sight& sight,
                                             int first) {
    float highest[2] = {attended.max[0], attended.max[1]};
#pragma unroll
    for (int i = 0; i < 16; ++i) {
        const int side = i % 4 / 2;
        const int position = first + 8 * (i / 4) + threadIdx.x % 4 * 2 + i % 2;
        float& score = scores[i / 4][i % 4];
        if (position < sight.first[side] || position > sight.last[side]) score = -INFINITY;
        highest[side] = fmaxf(highest[side], score);
    }
    bool is_raised = false;
    float factor[2];
#pragma unroll
    for (int side = 0; side < 2; ++side) {
        highest[side] = fmaxf(highest[side], __shfl_xor_sync(ALL_LANES, highest[side], 1));
        highest[side] = fmaxf(highest[side], __shfl_xor_sync(ALL_LANES, highest[side], 2));
        is_raised |= highest[side] > attended.max[side];
        factor[side] = highest[side] > attended.max[side] ? exp2f(attended.max[side] - highest[side]) : 1.0f;
        attended.max[side] = highest[side];
    }
    if (__any_sync(ALL_LANES, is_raised)) {
#pragma unroll
        for (int i = 0; i < 4; ++i) attended.sum[i] *= factor[i / 2];
#pragma unroll
        for (int i = 0; i < D / 2; ++i) attended.values[i / 4][i % 4] *= factor[i % 4 / 2];
    }
}

// Takes in the 32 keys at positions `first` and on. Every lane of the warp.
template <class T, class KV, int D>
__device__ __forceinline__ void attend_tile(Attended<D>& attended, const Queries<T, D>& queries, const uint8_t* tile,
                                            const Sight& sight, int first, float scale) {
    float scores[4][4];
    score_tile<T, KV, D>(scores, queries, tile, scale);
    raise_maxima(attended, scores, sight, first);
    uint32_t weights[2][4];
#pragma unroll
    for (int i = 0; i < 8; ++i) {
        const int side = i % 2;
        // A row that has seen nothing yet has no maximum to refer to.
        const float reference = attended.max[side] == -INFINITY ? 0.0f : attended.max[side];
        const float low = exp2f(scores[i / 2][2 * side] - reference);
        const float high = exp2f(scores[i / 2][2 * side + 1] - reference);
        weights[i / 4][i % 4] = pack2<T>(low, high);
    }
    add_values<T, KV, D>(attended, weights[0], tile, 0);
    add_values<T, KV, D>(attended, weights[1], tile, 16);
}

// How two results over different keys become one: by what each of them is multiplied.
struct MergeFactors {
    float merged;
    float split;
};

// Merges a split's maximum and sum into those of the splits before it.
__device__ __forceinline__ MergeFactors merge_split(float& max, float& sum, float split_max, float split_sum) {
    const float highest = fmaxf(max, split_max);
    if (highest == -INFINITY) return {1.0f, 0.0f};
    const MergeFactors factors = {exp2f(max - highest), exp2f(split_max - highest)};
    max = highest;
    sum = __fmaf_rn(sum, factors.merged, __fmul_rn(split_sum, factors.split));
    return factors;
}

__device__ __forceinline__ float merged_value(float value, float split_value, MergeFactors factors) {
    return __fmaf_rn(value, factors.merged, __fmul_rn(split_value, factors.split));
}

// The kernels of all formats and head sizes.
#define FOR_EACH_HEAD_SIZE(MACRO, T, KV) MACRO(T, KV, 64) MACRO(T, KV, 128) MACRO(T, KV, 256)
#define FOR_EACH_ATTENTION(MACRO)                                                                          \
    FOR_EACH_HEAD_SIZE(MACRO, bf16, bf16)                                                                  \
    FOR_EACH_HEAD_SIZE(MACRO, bf16, f16)                                                                   \
    FOR_EACH_HEAD_SIZE(MACRO, bf16, e4m3)                                                                  \
    FOR_EACH_HEAD_SIZE(MACRO, f16, bf16)                                                                   \
    FOR_EACH_HEAD_SIZE(MACRO, f16, f16)                                                                    \
    FOR_EACH_HEAD_SIZE(MACRO, f16, e4m3)
