// Attention of rows with several tokens: a block of four warps for 64 query rows of one KV head, which share the
// tiles of keys and values. Splits of the context are merged as they end, with the very operations of decode's
// merge.
#include "attention.cuh"

namespace {

constexpr int PREFILL_WARPS = 4;
constexpr int PREFILL_ROWS = 16 * PREFILL_WARPS;

// The merged splits of a lane's two rows. The values lie in shared memory, [D / 2][threads]: each thread has its
// own column.
template <int D>
struct Merged {
    float max[2];
    float sum[2];
    float* values;

    __device__ __forceinline__ void clear(float* column) {
        max[0] = max[1] = -INFINITY;
        sum[0] = sum[1] = 0.0f;
        values = column;
#pragma unroll
        for (int i = 0; i < D / 2; ++i) values[i * 32 * PREFILL_WARPS] = 0.0f;
    }

    // Takes in a finished split, which starts again.
    __device__ __forceinline__ void take(Attended<D>& split) {
        const MergeFactors factors[2] = {merge_split(max[0], sum[0], split.max[0], split.sum[0]),
                                         merge_split(max[1], sum[1], split.max[1], split.sum[2])};
#pragma unroll
        for (int i = 0; i < D / 2; ++i) {
            float& value = values[i * 32 * PREFILL_WARPS];
            value = merged_value(value, split.values[i / 4][i % 4], factors[i % 4 / 2]);
        }
        split.clear();
    }
};

template <class T, int D>
__device__ __forceinline__ void write_rows(T* out, const int (&out_rows)[2], const Merged<D>& merged) {
    const int t = threadIdx.x % 4;
#pragma unroll
    for (int side = 0; side < 2; ++side) {
        if (out_rows[side] < 0) continue;
#pragma unroll
        for (int j = 0; j < D / 64; ++j) {
#pragma unroll
            for (int odd = 0; odd < 2; ++odd) {
                const auto value = [&](int e) {
                    return merged.values[(4 * (8 * j + e) + 2 * side + odd) * 32 * PREFILL_WARPS] / merged.sum[side];
                };
                uint4 chunk;
                chunk.x = pack2<T>(value(0), value(1));
                chunk.y = pack2<T>(value(2), value(3));
                chunk.z = pack2<T>(value(4), value(5));
                chunk.w = pack2<T>(value(6), value(7));
                const size_t at = static_cast<size_t>(out_rows[side]) * D + 8 * (8 * j + 2 * t + odd);
                *reinterpret_cast<uint4*>(out + at) = chunk;
            }
        }
    }
}

// A lane's two query rows: where they lie, and what they see.
template <class T, int D>
struct LaneRows {
    Queries<T, D> queries;
    int out_rows[2];  // Row of [tokens][num_heads]; -1 past the end.
    Sight sight;

    __device__ __forceinline__ void find(const T* qkv, const Row& row, int first, int num_heads, int num_kv_heads,
                                         int window) {
        const int group = num_heads / num_kv_heads;
        const int count = row.num_tokens * group;
#pragma unroll
        for (int side = 0; side < 2; ++side) {
            const int wanted = first + threadIdx.x % 32 / 4 + 8 * side;
            const int index = min(wanted, count - 1);  // Rows past the end repeat the last one, and are not written.
            const int head = blockIdx.y * group + index % group;
            const int token = row.first_token + index / group;
            const int position = row.start_position + index / group;
            queries.rows[side] = qkv + (static_cast<size_t>(token) * (num_heads + 2 * num_kv_heads) + head) * D;
            out_rows[side] = wanted < count ? token * num_heads + head : -1;
            sight.last[side] = position;
            sight.first[side] = window > 0 ? max(position + 1 - window, 0) : 0;
        }
        queries.keep();
    }
};

template <class T, class KV, int D>
__device__ __forceinline__ void attend_rows(T* out, const T* qkv, const Pages& pages, const Row& row, int first,
                                            float scale, int num_heads, int num_kv_heads, int window) {
    DYN_SHARED(uint8_t, shared);
    constexpr int BYTES = KvTile<KV, D>::BYTES;
    const int group = num_heads / num_kv_heads;
    const int warp_first = first + threadIdx.x / 32 * 16;
    const auto position_of = [&](int index) { return row.start_position + min(index / group, row.num_tokens - 1); };
    const int warp_end = position_of(warp_first + 15) + 1;
    const int end = position_of(first + PREFILL_ROWS - 1) + 1;
    const int begin = window > 0 ? max(position_of(first) + 1 - window, 0) : 0;
    LaneRows<T, D> lane;
    lane.find(qkv, row, warp_first, num_heads, num_kv_heads, window);
    Merged<D> merged;
    merged.clear(reinterpret_cast<float*>(shared + 2 * BYTES) + threadIdx.x);
    Attended<D> attended;
    attended.clear();

    const int last = (end - 1) / TILE_KEYS;
    const auto load = [&](int tile) {
        if (tile <= last) {
            const int at = tile * TILE_KEYS;
            KvTile<KV, D>::load(shared + tile % 2 * BYTES, pages, row.seat, blockIdx.y, at, begin, end,
                                32 * PREFILL_WARPS);
        }
        cp_async_commit();
    };
    load(begin / TILE_KEYS);
    for (int tile = begin / TILE_KEYS; tile <= last; ++tile) {
        const int at = tile * TILE_KEYS;
        load(tile + 1);
        cp_async_wait<1>();
        __syncthreads();
        if (at % SPLIT_KEYS == 0) merged.take(attended);
        if (at < warp_end) {
            attend_tile<T, KV, D>(attended, lane.queries, shared + tile % 2 * BYTES, lane.sight, at, scale);
        }
        __syncthreads();  // All warps are done with the stage that the next turn fills.
    }
    merged.take(attended);
    write_rows<T, D>(out, lane.out_rows, merged);
}

template <class T, class KV, int D>
__device__ __forceinline__ void attention_prefill(T* out, const T* qkv, const Pages& pages, const Work* tiles,
                                                  int num_tiles, const Row* rows, float scale, int num_heads,
                                                  int num_kv_heads, int window) {
    for (int i = blockIdx.x; i < num_tiles; i += gridDim.x) {
        const Work work = tiles[i];
        attend_rows<T, KV, D>(out, qkv, pages, rows[work.row], work.part * PREFILL_ROWS, scale * 1.44269504f,
                              num_heads, num_kv_heads, window);
    }
}

}  // namespace

#define ATTENTION_PREFILL(T, KV, D)                                                                        \
    KERNEL(attention_prefill_##T##_##KV##_##D, 128,                                                        \
           (T* out, const T* qkv, void* pool, const Work* tiles, const int* num_tiles, const Row* rows,    \
            const int* block_tables, float scale, int num_heads, int num_kv_heads, int window,             \
            int max_blocks, long long page_bytes, long long layer_offset),                                 \
           {                                                                                               \
               const Pages pages = {static_cast<uint8_t*>(pool), block_tables, max_blocks, page_bytes,     \
                                    layer_offset};                                                         \
               attention_prefill<T, KV, D>(out, qkv, pages, tiles, *num_tiles, rows, scale, num_heads,     \
                                           num_kv_heads, window);                                          \
           })
FOR_EACH_ATTENTION(ATTENTION_PREFILL)
