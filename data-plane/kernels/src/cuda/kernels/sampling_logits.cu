// What a seat does to its logits: penalties, then bias, then the mask of allowed tokens; and the counts that
// penalties need.
#include "sampling.cuh"

namespace {

constexpr int ADJUSTED_TOKENS = 1024;

__device__ float penalized(float logit, unsigned count, const SeatSampling& seat) {
    if (count == 0) return logit;
    logit = logit > 0.0f ? __fdiv_rn(logit, seat.repetition_penalty) : __fmul_rn(logit, seat.repetition_penalty);
    if (count == 1) return logit;
    const float times = static_cast<float>(count - 1);
    return __fsub_rn(logit, __fadd_rn(__fmul_rn(times, seat.frequency_penalty), seat.presence_penalty));
}

}  // namespace

// A block for 1024 tokens of a sample. `counts` [slots][vocab]: 0 for a token not seen, else 1 + times it was
// generated; `masks` [masks][vocab / 32, rounded up]: a set bit allows.
extern "C" __global__ void __launch_bounds__(256, 1)
    adjust_logits(float* adjusted, const float* logits, const Sample* samples, const SeatSampling* seats,
                  const unsigned* counts, const int* bias_tokens, const float* bias_values, const unsigned* masks,
                  int vocab_size) {
    __shared__ float bias[ADJUSTED_TOKENS];
    const Sample sample = samples[blockIdx.y];
    if (sample.token < 0) return;
    const SeatSampling seat = seats[sample.seat];
    if (!is_adjusted(sample, seat)) return;
    const int first = blockIdx.x * ADJUSTED_TOKENS;
    for (int i = threadIdx.x; i < ADJUSTED_TOKENS; i += 256) bias[i] = 0.0f;
    __syncthreads();
    for (int i = threadIdx.x; i < seat.num_bias; i += 256) {
        const int token = bias_tokens[sample.seat * LOGIT_BIAS_MAX + i] - first;
        if (token >= 0 && token < ADJUSTED_TOKENS) bias[token] = bias_values[sample.seat * LOGIT_BIAS_MAX + i];
    }
    __syncthreads();
    const size_t row = static_cast<size_t>(blockIdx.y) * vocab_size;
    for (int token = first + threadIdx.x; token < min(first + ADJUSTED_TOKENS, vocab_size); token += 256) {
        float logit = logits[row + token];
        if (seat.count_slot >= 0) {
            logit = penalized(logit, counts[static_cast<size_t>(seat.count_slot) * vocab_size + token], seat);
        }
        logit += bias[token - first];
        if (sample.mask >= 0) {
            const size_t words = (vocab_size + 31) / 32;
            const unsigned word = masks[sample.mask * words + token / 32];
            if (!(word >> token % 32 & 1)) logit = -INFINITY;
        }
        adjusted[row + token] = logit;
    }
}
WEIR_EXPORT(adjust_logits)

// Counts the tokens of a sequence that takes a seat: those of its prompt are seen, the others generated. One block.
extern "C" __global__ void __launch_bounds__(1024, 1)
    count_tokens(unsigned* counts, const int* history, int slot, int num_prompt, int num_tokens, int vocab_size) {
    unsigned* seen = counts + static_cast<size_t>(slot) * vocab_size;
    for (int i = threadIdx.x; i < vocab_size; i += blockDim.x) seen[i] = 0;
    __syncthreads();
    for (int i = threadIdx.x; i < num_tokens; i += blockDim.x) {
        if (history[i] >= 0 && history[i] < vocab_size) atomicMax(&seen[history[i]], 1);
    }
    __syncthreads();
    for (int i = num_prompt + threadIdx.x; i < num_tokens; i += blockDim.x) {
        if (history[i] >= 0 && history[i] < vocab_size) atomicAdd(&seen[history[i]], 1);
    }
}
WEIR_EXPORT(count_tokens)
