// Token embeddings into the residual stream, a block a token.
#include "block.cuh"
#include "step.cuh"
#include "weights.cuh"

namespace {

__device__ int input_token(const int* tokens, const int* token_row, const Row* rows, const int* last_token) {
    const int row = token_row[blockIdx.x];
    if (row < 0) return -1;
    const int token = tokens[blockIdx.x];
    return token >= 0 ? token : last_token[rows[row].seat];
}

// A lane's 16 elements of a group. `token` outside the vocabulary gives zeros.
template <class T, class W>
__device__ void embed(float* hidden, const void* table, int token, float scale, int vocab_size, int dim) {
    float* out = hidden + static_cast<size_t>(blockIdx.x) * dim;
    const bool is_known = token >= 0 && token < vocab_size;
    const WeightMatrix<W> matrix(table, vocab_size, dim);
    for (int i = threadIdx.x; i < 4 * matrix.num_groups; i += blockDim.x) {
        const int group = i / 4;
        const int t = i % 4;
        LanePairs pairs[2] = {};
        float scales[2] = {scale, scale};
        float minimums[2] = {0.0f, 0.0f};
        if (is_known) {
            const auto packet = W::load(matrix.group(token, group), t, matrix.has_second(group));
            W::unpack(packet, 0, pairs[0]);
            W::unpack(packet, 1, pairs[1]);
            if constexpr (W::PACKED) {
                const uint32_t both = matrix.both(matrix.scales, token, group);
                scales[0] *= low_half<f16>(both);
                scales[1] *= high_half<f16>(both);
            }
            if constexpr (W::HAS_MINIMUM) {
                const uint32_t both = matrix.both(matrix.minimums, token, group);
                minimums[0] = scale * low_half<f16>(both);
                minimums[1] = scale * high_half<f16>(both);
            }
        }
        for (int block = 0; block < (matrix.has_second(group) ? 2 : 1); ++block) {
            float2* to = reinterpret_cast<float2*>(out + group * GROUP + block * 32 + t * 8);
            for (int p = 0; p < 4; ++p) {
                float2 value;
                value.x = low_half<T>(pairs[block][p]) * scales[block] + minimums[block];
                value.y = high_half<T>(pairs[block][p]) * scales[block] + minimums[block];
                to[p] = value;
            }
        }
    }
}

}  // namespace

#define EMBED(name, T, W)                                                                                  \
    KERNEL(embed_##name, 256,                                                                              \
           (float* hidden, const void* table, const int* tokens, const int* token_row, const Row* rows,    \
            const int* last_token, float scale, int vocab_size, int dim),                                  \
           {                                                                                               \
               const int token = input_token(tokens, token_row, rows, last_token);                         \
               embed<T, W<T>>(hidden, table, token, scale, vocab_size, dim);                               \
           })
EMBED(bf16, bf16, Dense)
EMBED(f16, f16, Dense)
EMBED(q8_0, f16, Q8_0)
EMBED(q4_0, f16, Q4_0)
EMBED(q4_1, f16, Q4_1)
