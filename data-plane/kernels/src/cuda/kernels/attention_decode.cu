// Attention of rows with one token: a block (one warp) for each KV head and split of the context, then a merge of
// the splits.
#include "attention.cuh"

namespace {

// What a head's split leaves for the merge: the values, then maximum and sum, padded to whole 16 bytes.
template <int D>
constexpr int PARTIAL = D + 4;

// A lane's eight neighbours of row `side`, from dimension 8 (8 j + 2 t + odd) on.
template <int D>
__device__ __forceinline__ void write_partial(float* partial, const Attended<D>& attended, int side) {
    const int t = threadIdx.x % 4;
#pragma unroll
    for (int j = 0; j < D / 64; ++j) {
#pragma unroll
        for (int odd = 0; odd < 2; ++odd) {
            float4* to = reinterpret_cast<float4*>(partial + 8 * (8 * j + 2 * t + odd));
            const int c = 2 * side + odd;
            const float(&values)[D / 8][4] = attended.values;
            to[0] = {values[8 * j][c], values[8 * j + 1][c], values[8 * j + 2][c], values[8 * j + 3][c]};
            to[1] = {values[8 * j + 4][c], values[8 * j + 5][c], values[8 * j + 6][c], values[8 * j + 7][c]};
        }
    }
    if (t == 0) {
        partial[D] = attended.max[side];
        partial[D + 1] = attended.sum[2 * side];
    }
}

template <class T, class KV, int D>
__device__ __forceinline__ void attend_split(float* partial, const T* qkv, const Pages& pages, const Row& row,
                                             int split, float scale, int num_heads, int num_kv_heads, int window) {
    DYN_SHARED(uint8_t, tiles);
    constexpr int BYTES = KvTile<KV, D>::BYTES;
    const int group = num_heads / num_kv_heads;
    const int kv_head = blockIdx.y;
    const int g = threadIdx.x / 4;
    const int position = row.start_position;
    const int seen_from = window > 0 ? max(position + 1 - window, 0) : 0;
    const int begin = max(seen_from, split * SPLIT_KEYS);
    const int end = min(position + 1, (split + 1) * SPLIT_KEYS);
    const Sight sight = {{seen_from, seen_from}, {position, position}};

    const size_t num_rows = num_heads + 2 * num_kv_heads;
    const T* query = qkv + (row.first_token * num_rows + kv_head * group) * D;
    Queries<T, D> queries;
    queries.rows[0] = query + min(g, group - 1) * D;
    queries.rows[1] = query + min(g + 8, group - 1) * D;
    queries.keep();
    Attended<D> attended;
    attended.clear();

    const int last = (end - 1) / TILE_KEYS;
    const auto load = [&](int tile) {
        if (tile <= last) {
            KvTile<KV, D>::load(tiles + tile % 2 * BYTES, pages, row.seat, kv_head, tile * TILE_KEYS, begin, end, 32);
        }
        cp_async_commit();
    };
    load(begin / TILE_KEYS);
    for (int tile = begin / TILE_KEYS; tile <= last; ++tile) {
        load(tile + 1);
        cp_async_wait<1>();
        __syncwarp();
        attend_tile<T, KV, D>(attended, queries, tiles + tile % 2 * BYTES, sight, tile * TILE_KEYS, scale);
        __syncwarp();  // All lanes are done with the stage that the next turn fills.
    }
    partial += static_cast<size_t>(kv_head) * group * PARTIAL<D>;
    if (g < group) write_partial<D>(partial + g * PARTIAL<D>, attended, 0);
    if (g + 8 < group) write_partial<D>(partial + (g + 8) * PARTIAL<D>, attended, 1);
}

template <class T, class KV, int D>
__device__ __forceinline__ void attention_decode(float* partial, const T* qkv, const Pages& pages, const Work* splits,
                                                 int num_splits, const Row* rows, float scale, int num_heads,
                                                 int num_kv_heads, int window) {
    for (int i = blockIdx.x; i < num_splits; i += gridDim.x) {
        const Work work = splits[i];
        attend_split<T, KV, D>(partial + static_cast<size_t>(i) * num_heads * PARTIAL<D>, qkv, pages, rows[work.row],
                               work.part, scale * 1.44269504f, num_heads, num_kv_heads, window);
    }
}

// Two dimensions a thread. `row_splits` [rows][2]: a row's first entry among the splits, and how many it has.
template <class T, int D>
__device__ void attention_merge(T* out, const float* partial, const int* row_splits, const Row* rows, int num_heads) {
    const int first = row_splits[2 * blockIdx.x];
    const int count = row_splits[2 * blockIdx.x + 1];
    if (count == 0) return;
    const int head = blockIdx.y;
    const int dimension = 2 * threadIdx.x;
    float max = -INFINITY;
    float sum = 0.0f;
    float values[2] = {0.0f, 0.0f};
    for (int i = first; i < first + count; ++i) {
        const float* split = partial + (static_cast<size_t>(i) * num_heads + head) * PARTIAL<D>;
        const MergeFactors factors = merge_split(max, sum, split[D], split[D + 1]);
        values[0] = merged_value(values[0], split[dimension], factors);
        values[1] = merged_value(values[1], split[dimension + 1], factors);
    }
    const size_t token = rows[blockIdx.x].first_token;
    *reinterpret_cast<uint32_t*>(out + (token * num_heads + head) * D + dimension) =
        pack2<T>(values[0] / sum, values[1] / sum);
}

}  // namespace

#define ATTENTION_DECODE(T, KV, D)                                                                         \
    KERNEL(attention_decode_##T##_##KV##_##D, 32,                                                          \
           (float* partial, const T* qkv, void* pool, const Work* splits, const int* num_splits,           \
            const Row* rows, const int* block_tables, float scale, int num_heads, int num_kv_heads,        \
            int window, int max_blocks, long long page_bytes, long long layer_offset),                     \
           {                                                                                               \
               const Pages pages = {static_cast<uint8_t*>(pool), block_tables, max_blocks, page_bytes,     \
                                    layer_offset};                                                         \
               attention_decode<T, KV, D>(partial, qkv, pages, splits, *num_splits, rows, scale,           \
                                          num_heads, num_kv_heads, window);                                \
           })
#define ATTENTION_MERGE(T, D)                                                                              \
    KERNEL(attention_merge_##T##_##D, D / 2,                                                               \
           (T* out, const float* partial, const int* row_splits, const Row* rows, int num_heads),          \
           { attention_merge<T, D>(out, partial, row_splits, rows, num_heads); })
FOR_EACH_ATTENTION(ATTENTION_DECODE)
ATTENTION_MERGE(bf16, 64)
ATTENTION_MERGE(bf16, 128)
ATTENTION_MERGE(bf16, 256)
ATTENTION_MERGE(f16, 64)
ATTENTION_MERGE(f16, 128)
ATTENTION_MERGE(f16, 256)
