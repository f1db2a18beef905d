// Log-probabilities under the model's own distribution, before whatever sampling does to it: a block a sample.
#include "sampling.cuh"

namespace {

// The likeliest token after `before` in the order of ranks; 0 if there is none. What is not a number has no rank.
__device__ u64 next_rank(const float* logits, int vocab_size, u64 before) {
    u64 next = 0;
    for (int token = threadIdx.x; token < vocab_size; token += blockDim.x) {
        const float logit = logits[token] + 0.0f;  // One zero.
        const u64 rank = rank_of(logit, token);
        if (logit == logit && rank < before && rank > next) next = rank;
    }
    return block_max(next);
}

}  // namespace

// `logprobs` [samples][21]: of the sampled token, then of the likeliest ones, `top_tokens` [samples][20], as many
// as the seat asks for. Nothing is written where none are asked for, or no token was sampled.
extern "C" __global__ void __launch_bounds__(1024, 1)
    token_logprobs(float* logprobs, int* top_tokens, const float* logits, const int* sampled, const Sample* samples,
                   const SeatSampling* seats, int vocab_size) {
    const Sample sample = samples[blockIdx.x];
    const int chosen = sampled[blockIdx.x];
    if (sample.token < 0 || chosen < 0) return;
    const int top = min(seats[sample.seat].top_logprobs, TOP_LOGPROBS_MAX);
    if (top < 0) return;
    const float* row = logits + static_cast<size_t>(blockIdx.x) * vocab_size;
    float highest = -INFINITY;
    for (int token = threadIdx.x; token < vocab_size; token += blockDim.x) highest = fmaxf(highest, row[token]);
    highest = block_max(highest);
    double mass = 0.0;
    for (int token = threadIdx.x; token < vocab_size; token += blockDim.x) {
        if (row[token] == row[token]) mass += exp(static_cast<double>(row[token] - highest));
    }
    const double log_mass = highest + log(block_sum(mass));
    const auto logprob = [&](int token) { return static_cast<float>(row[token] - log_mass); };

    float* out = logprobs + static_cast<size_t>(blockIdx.x) * (1 + TOP_LOGPROBS_MAX);
    if (threadIdx.x == 0) out[0] = logprob(chosen);
    u64 rank = ~u64{0};
    for (int i = 0; i < top; ++i) {
        rank = next_rank(row, vocab_size, rank);
        if (threadIdx.x == 0) {
            top_tokens[blockIdx.x * TOP_LOGPROBS_MAX + i] = rank == 0 ? -1 : token_of(rank);
            out[1 + i] = rank == 0 ? -INFINITY : logprob(token_of(rank));
        }
    }
}
WEIR_EXPORT(token_logprobs)
