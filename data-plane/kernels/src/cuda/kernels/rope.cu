// Rotary position embedding (Su et al. 2021) and the writing of keys and values to their pages.
#include "block.cuh"
#include "pages.cuh"
#include "step.cuh"

// Cosines and sines of a step's tokens, [tokens][half_dim][2], made once and used by every layer. Angles are
// rounded to single precision as Transformers rounds them, and their sines are those of double precision, so that
// far positions agree.
KERNEL(rope_table, 128,
       (float* table, const int* token_position, const float* frequencies, float position_scale, int half_dim), {
           const float position = static_cast<float>(token_position[blockIdx.x]) * position_scale;
           float2* row = reinterpret_cast<float2*>(table) + static_cast<size_t>(blockIdx.x) * half_dim;
           for (int i = threadIdx.x; i < half_dim; i += blockDim.x) {
               const double angle = __fmul_rn(position, frequencies[i]);
               row[i] = make_float2(static_cast<float>(cos(angle)), static_cast<float>(sin(angle)));
           }
       })

namespace {

constexpr int HEAD_DIM_MAX = 256;

struct HeadShape {
    int num_heads;
    int num_kv_heads;
    int head_dim;
    int half_dim;
    bool halves;  // Components (i, i + half_dim) turn together, else (2i, 2i + 1).
};

// Reads one head to shared memory, normalised if there is a weight. One warp.
template <class T>
__device__ __forceinline__ void read_head(float* head, const T* from, const float* norm, float epsilon,
                                          int head_dim) {
    float squares = 0.0f;
    for (int i = threadIdx.x; i < head_dim; i += 32) {
        head[i] = to_float(from[i]);
        squares += head[i] * head[i];
    }
    if (norm) {
        const float inverse = 1.0f / sqrtf(warp_sum(squares) / head_dim + epsilon);
        for (int i = threadIdx.x; i < head_dim; i += 32) head[i] = head[i] * inverse * norm[i];
    }
    __syncwarp();
}

__device__ __forceinline__ void turn_head(float* head, const float* table, const HeadShape& shape) {
    const float2* turns = reinterpret_cast<const float2*>(table) + static_cast<size_t>(blockIdx.x) * shape.half_dim;
    for (int i = threadIdx.x; i < shape.half_dim; i += 32) {
        const int a = shape.halves ? i : 2 * i;
        const int b = shape.halves ? i + shape.half_dim : 2 * i + 1;
        const float2 turn = turns[i];
        const float x = head[a];
        const float y = head[b];
        head[a] = x * turn.x - y * turn.y;
        head[b] = y * turn.x + x * turn.y;
    }
    __syncwarp();
}

template <class T, class KV>
__device__ void rope_store(T* qkv, const Pages& pages, const float* table, const Row* rows, const int* token_row,
                           const int* token_position, const float* query_norm, const float* key_norm, float epsilon,
                           const HeadShape& shape) {
    __shared__ float head[HEAD_DIM_MAX];
    const int row = token_row[blockIdx.x];
    if (row < 0) return;
    const int index = blockIdx.y;  // Query heads, then key heads, then value heads.
    const bool is_query = index < shape.num_heads;
    const bool is_value = index >= shape.num_heads + shape.num_kv_heads;
    const int num_heads = shape.num_heads + 2 * shape.num_kv_heads;
    T* at = qkv + (static_cast<size_t>(blockIdx.x) * num_heads + index) * shape.head_dim;
    read_head(head, at, is_query ? query_norm : is_value ? nullptr : key_norm, epsilon, shape.head_dim);
    if (!is_value) turn_head(head, table, shape);
    if (is_query) {
        for (int i = threadIdx.x; i < shape.head_dim; i += 32) at[i] = from_float<T>(head[i]);
        return;
    }
    const int kv_head = (index - shape.num_heads) % shape.num_kv_heads;
    const int position = token_position[blockIdx.x];
    uint8_t* page = pages.of(rows[row].seat, position / BLOCK_TOKENS);
    const size_t slot = (kv_head * 2 + is_value) * BLOCK_TOKENS + position % BLOCK_TOKENS;
    KV* to = reinterpret_cast<KV*>(page) + slot * shape.head_dim;
    for (int i = threadIdx.x; i < shape.head_dim; i += 32) to[i] = from_float<KV>(head[i]);
}

}  // namespace

#define ROPE_STORE(T, KV)                                                                                  \
    KERNEL(rope_store_##T##_##KV, 32,                                                                      \
           (T* qkv, void* pool, const float* table, const Row* rows, const int* token_row,                 \
            const int* token_position, const int* block_tables, const float* query_norm,                   \
            const float* key_norm, float epsilon, int num_heads, int num_kv_heads, int head_dim,           \
            int half_dim, int style, int max_blocks, long long page_bytes, long long layer_offset),        \
           {                                                                                               \
               const Pages pages = {static_cast<uint8_t*>(pool), block_tables, max_blocks, page_bytes,     \
                                    layer_offset};                                                         \
               const HeadShape shape = {num_heads, num_kv_heads, head_dim, half_dim, style == 1};          \
               rope_store<T, KV>(qkv, pages, table, rows, token_row, token_position, query_norm, key_norm, \
                                 epsilon, shape);                                                          \
           })
ROPE_STORE(bf16, bf16)
ROPE_STORE(bf16, f16)
ROPE_STORE(bf16, e4m3)
ROPE_STORE(f16, bf16)
ROPE_STORE(f16, f16)
ROPE_STORE(f16, e4m3)
