// Chooses a token for each sample: a block a sample. Temperature, top-k, top-p and min-p, then the Gumbel-max
// trick.
//
// Nothing is sorted. Tokens have a rank (see rank_of), and a filter is a lowest rank: the cut. It is found digit by
// digit from histograms over the tokens that may lie near it. Masses are sums of integers, so that their order does
// not matter.
#include "sampling.cuh"

namespace {

constexpr int SAMPLING_THREADS = 1024;
// A probability in fixed point. A vocabulary of 2^22 tokens of mass 1 fits.
constexpr float MASS_ONE = 1099511627776.0f;  // 2^40

// A sample's logits and what is asked of them.
struct Task {
    const float* logits;
    int vocab_size;
    SeatSampling seat;
    float max;

    // Passes over what is not a number.
    __device__ __forceinline__ bool can_be_chosen(float logit) const { return logit > -INFINITY; }
    __device__ __forceinline__ float score(float logit) const {
        return __fmul_rn(__fsub_rn(logit, max), seat.inverse_temperature);
    }
};

// Runs `visit(token, score)` for this thread's tokens that can be chosen.
template <class Visit>
__device__ __forceinline__ void for_each_token(const Task& task, Visit visit) {
    for (int token = threadIdx.x; token < task.vocab_size; token += SAMPLING_THREADS) {
        const float logit = task.logits[token];
        if (task.can_be_chosen(logit)) visit(token, task.score(logit));
    }
}

__device__ __forceinline__ u64 mass_of(float score) { return static_cast<u64>(exp_of_score(score) * MASS_ONE); }

// Weights and numbers of the ranks whose next digit is this, and the digit where the wanted weight is reached.
struct Histogram {
    u64 weights[256];
    unsigned counts[256];
    int digit;
    u64 above;
};

// Finds the highest digit at which the weight of it and all above reaches `wanted`; -1 if none does. One warp.
__device__ void find_digit(Histogram& histogram, u64 wanted) {
    const int lane = threadIdx.x;
    u64 own = 0;
    for (int i = 0; i < 8; ++i) own += histogram.weights[255 - 8 * lane - i];
    u64 above = own;  // Of this lane's digits and those of the lanes before it, which are higher.
    for (int offset = 1; offset < 32; offset *= 2) {
        const u64 other = __shfl_up_sync(ALL_LANES, above, offset);
        if (lane >= offset) above += other;
    }
    const unsigned reached = __ballot_sync(ALL_LANES, above >= wanted);
    if (reached == 0) {
        if (lane == 0) histogram.digit = -1;
    } else if (lane == __ffs(static_cast<int>(reached)) - 1) {
        u64 sum = above - own;
        int digit = 255 - 8 * lane;
        while (sum + histogram.weights[digit] < wanted) sum += histogram.weights[digit--];
        histogram.digit = digit;
        histogram.above = sum;
    }
}

// Counts ranks that begin with `prefix` by their next digit.
struct Counter {
    Histogram& histogram;
    u64 prefix;
    int shift;

    __device__ __forceinline__ void add(u64 rank, u64 weight) const {
        if (shift < 56 && rank >> (shift + 8) != prefix) return;
        atomicAdd(&histogram.weights[rank >> shift & 255], weight);
        atomicAdd(&histogram.counts[rank >> shift & 255], 1u);
    }
};

// A rank such that those from it on are the shortest head that weighs at least `wanted`, or 0 if all together weigh
// less. `visit(counter)` adds this thread's ranks to the counter; of ranks that it leaves out nothing is known.
template <class Visit>
__device__ u64 find_cut(u64 wanted, Visit visit) {
    __shared__ Histogram histogram;
    u64 prefix = 0;
    for (int shift = 56; shift >= 0; shift -= 8) {
        __syncthreads();
        if (threadIdx.x < 256) {
            histogram.weights[threadIdx.x] = 0;
            histogram.counts[threadIdx.x] = 0;
        }
        __syncthreads();
        visit(Counter{histogram, prefix, shift});
        __syncthreads();
        if (threadIdx.x < 32) find_digit(histogram, wanted);
        __syncthreads();
        if (histogram.digit < 0) return 0;
        prefix = prefix << 8 | static_cast<u64>(histogram.digit);
        wanted -= histogram.above;
        // All that is left has this prefix: one rank, or as many as are wanted of weight one each.
        const unsigned count = histogram.counts[histogram.digit];
        if (count == 1 || (count == wanted && histogram.weights[histogram.digit] == count)) return prefix << shift;
    }
    return prefix;
}

// Lowest rank among the `top_k` first.
__device__ u64 top_k_cut(const Task& task) {
    const u64 wanted = task.seat.top_k;
    // Each thread's first: the `top_k`-th of those is reached by `top_k` tokens, which leaves few to count.
    u64 first = 0;
    for_each_token(task, [&](int token, float score) { first = max(first, rank_of(score, token)); });
    const u64 floor = find_cut(wanted, [&](const Counter& counter) {
        if (first > 0) counter.add(first, u64{1});
    });
    const u64 cut = find_cut(wanted, [&](const Counter& counter) {
        for_each_token(task, [&](int token, float score) {
            const u64 rank = rank_of(score, token);
            if (rank >= floor) counter.add(rank, u64{1});
        });
    });
    return max(cut, floor);
}

// Lowest rank of the shortest head whose mass reaches top-p of that of all ranks from `floor` on.
__device__ u64 top_p_cut(const Task& task, u64 floor) {
    u64 own = 0;
    for_each_token(task, [&](int token, float score) {
        if (rank_of(score, token) >= floor) own += mass_of(score);
    });
    const u64 mass = block_sum(own);
    const double top_p = task.seat.top_p;
    const u64 wanted = max(static_cast<u64>(ceil(top_p * static_cast<double>(mass))), u64{1});
    // All tokens below this score together weigh less than the tail that is dropped.
    const double tail = (1.0 - top_p) * (static_cast<double>(mass) / MASS_ONE) / task.vocab_size;
    const float lowest = static_cast<float>(log(tail) - 1e-3);
    const u64 cut = find_cut(wanted, [&](const Counter& counter) {
        for_each_token(task, [&](int token, float score) {
            const u64 rank = rank_of(score, token);
            if (score >= lowest && rank >= floor) counter.add(rank, mass_of(score));
        });
    });
    return max(cut, floor);
}

// The token with the highest noisy score, the lowest such token on a tie, among the ranks from `cut` on; -1 if
// there is none.
__device__ int gumbel_max(const Task& task, u64 cut, int position) {
    const u64 key = noise_key(task.seat.seed, position);
    double best = -INFINITY;
    int best_token = task.vocab_size;
    for_each_token(task, [&](int token, float score) {
        if (score < task.seat.min_score || score == -INFINITY || rank_of(score, token) < cut) return;
        const u64 bits = noise_bits(key, token);
        if (score + gumbel_bound(bits) < best) return;
        const double value = score + gumbel(bits);
        if (value > best) {
            best = value;
            best_token = token;
        }
    });
    const double highest = block_max(best);
    const int token = block_min(best == highest ? best_token : task.vocab_size);
    return token < task.vocab_size ? token : -1;
}

__device__ int choose(Task& task, int position) {
    float max = -INFINITY;
    for (int token = threadIdx.x; token < task.vocab_size; token += SAMPLING_THREADS) {
        max = fmaxf(max, task.logits[token]);
    }
    task.max = block_max(max);
    if (task.max == -INFINITY) return -1;
    if (task.seat.inverse_temperature == 0.0f || task.max == INFINITY) {
        int first = task.vocab_size;
        for (int token = threadIdx.x; token < task.vocab_size; token += SAMPLING_THREADS) {
            if (task.logits[token] == task.max) first = min(first, token);
        }
        return block_min(first);
    }
    u64 cut = 0;
    if (task.seat.top_k > 0 && task.seat.top_k < task.vocab_size) cut = top_k_cut(task);
    if (task.seat.top_p < 1.0f) cut = top_p_cut(task, cut);
    return gumbel_max(task, cut, position);
}

}  // namespace

// `sampled`: the token of each sample, -1 if it is inactive or none can be chosen; a seat's last token and counts
// follow.
extern "C" __global__ void __launch_bounds__(1024, 1)
    sample_tokens(int* sampled, int* last_token, unsigned* counts, const float* logits, const float* adjusted,
                  const Sample* samples, const SeatSampling* seats, int vocab_size) {
    const Sample sample = samples[blockIdx.x];
    int token = -1;
    if (sample.token >= 0) {
        const SeatSampling& seat = seats[sample.seat];
        const size_t first = static_cast<size_t>(blockIdx.x) * vocab_size;
        Task task = {(is_adjusted(sample, seat) ? adjusted : logits) + first, vocab_size, seat, 0.0f};
        token = choose(task, sample.position);
        if (threadIdx.x == 0 && token >= 0) {
            last_token[sample.seat] = token;
            if (seat.count_slot >= 0) {
                unsigned& count = counts[static_cast<size_t>(seat.count_slot) * vocab_size + token];
                count = max(count, 1u) + 1;
            }
        }
    }
    if (threadIdx.x == 0) sampled[blockIdx.x] = token;
}
WEIR_EXPORT(sample_tokens)
