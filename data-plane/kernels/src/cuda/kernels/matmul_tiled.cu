// Matrix products of many rows (prefill, large batches): tiles of 128 rows and 128 columns, a group of 64 along k
// at a time, three groups in shared memory on their way. Packed weights travel packed and are unpacked in
// registers.
#include "matmul.cuh"

namespace {

constexpr int TILED_ROWS = 128;
constexpr int TILED_STAGES = 3;
constexpr int TILED_THREADS = 256;
constexpr int INPUT_BYTES = TILED_ROWS * GROUP * 2;
// Eight warps, two by four, each 64 rows and 32 columns.
constexpr int WARP_TILES = 4;
constexpr int WARP_FRAGMENTS = 4;

// Odd rows of a tile of 16-bit elements hold their two blocks the other way round: eight lanes that read 16 bytes
// each, of two rows, then meet all banks of shared memory.
__device__ __forceinline__ int flipped(int row, int chunk) { return chunk ^ (row % 2 * 4); }

template <class T>
__device__ __forceinline__ void load_input(uint8_t* tile, const T* x, int first_row, int rows, int k, int group) {
#pragma unroll
    for (int i = 0; i < TILED_ROWS * 8 / TILED_THREADS; ++i) {
        const int row = (threadIdx.x + i * TILED_THREADS) / 8;
        const int chunk = threadIdx.x % 8;
        const int at = group * GROUP + chunk * 8;
        const bool wanted = first_row + row < rows && at < k;
        const T* from = x + static_cast<size_t>(wanted ? first_row + row : 0) * k + (wanted ? at : 0);
        cp_async16(tile + row * 128 + flipped(row, chunk) * 16, from, wanted);
    }
}

template <class W>
__device__ __forceinline__ void load_weight(uint8_t* tile, const WeightMatrix<W>& matrix, int first, int n,
                                            int group) {
    constexpr int CHUNKS = W::GROUP_BYTES / 16;
#pragma unroll
    for (int i = 0; i < TILED_ROWS * CHUNKS / TILED_THREADS; ++i) {
        const int row = (threadIdx.x + i * TILED_THREADS) / CHUNKS;
        const int chunk = threadIdx.x % CHUNKS;
        const bool is_padding = !W::PACKED && chunk >= 4 && !matrix.has_second(group);
        const bool wanted = first + row < n && !is_padding;
        const uint8_t* from = matrix.group(wanted ? first + row : 0, wanted ? group : 0) + (wanted ? chunk * 16 : 0);
        const int to = W::PACKED ? chunk : flipped(row, chunk);
        cp_async16(tile + row * W::GROUP_BYTES + to * 16, from, wanted);
    }
}

__device__ __forceinline__ uint4 lane_chunk(const uint8_t* tile, int row, int block, int t) {
    return *reinterpret_cast<const uint4*>(tile + row * 128 + flipped(row, 4 * block + t) * 16);
}

template <class W>
__device__ __forceinline__ void lane_weights(const uint8_t* tile, int row, int block, int t, LanePairs& pairs) {
    if constexpr (W::PACKED) {
        W::unpack(W::load(tile + row * W::GROUP_BYTES, t, true), block, pairs);
    } else {
        const uint4 chunk = lane_chunk(tile, row, block, t);
        W::unpack({{chunk, chunk}}, block, pairs);
    }
}

// A warp's place in the tile.
struct Place {
    int row;
    int column;
    int g;
    int t;
};

template <class T, class W>
__device__ __forceinline__ void tiled_group(float (&sums)[WARP_TILES][WARP_FRAGMENTS][4], const uint8_t* stage,
                                            const WeightMatrix<W>& matrix, const Place& at, int first, int n,
                                            int group) {
    GroupScales<W, WARP_FRAGMENTS> scales;
    scales.load(matrix, first + at.column, at.t, n, group);
#pragma unroll
    for (int block = 0; block < 2; ++block) {
        RowsBlock input[WARP_TILES];
        LanePairs w[WARP_FRAGMENTS];
#pragma unroll
        for (int m = 0; m < WARP_TILES; ++m) {
            const int row = at.row + 16 * m + at.g;
            input[m] = {lane_chunk(stage, row, block, at.t), lane_chunk(stage, row + 8, block, at.t)};
        }
#pragma unroll
        for (int f = 0; f < WARP_FRAGMENTS; ++f) {
            lane_weights<W>(stage + INPUT_BYTES, at.column + 8 * f + at.g, block, at.t, w[f]);
        }
        add_group<T, W, WARP_TILES, WARP_FRAGMENTS>(sums, input, w, scales, block);
    }
}

// The finished slices' sums lie in shared memory, [sums of a thread][threads]: each thread has its own column.
constexpr int LANE_SUMS = WARP_TILES * WARP_FRAGMENTS * 4;

// totals += sums, and sums start again: the end of a slice.
__device__ __forceinline__ void end_slice(float* totals, float (&sums)[WARP_TILES][WARP_FRAGMENTS][4]) {
#pragma unroll
    for (int i = 0; i < LANE_SUMS; ++i) {
        float& sum = sums[i / 4 / WARP_FRAGMENTS][i / 4 % WARP_FRAGMENTS][i % 4];
        totals[i * TILED_THREADS] += sum;
        sum = 0.0f;
    }
}

template <class T>
__device__ __forceinline__ void write_tile(const float* totals, const Place& at, const Output& output, int first_row,
                                           int first, int rows, int n) {
#pragma unroll
    for (int i = 0; i < LANE_SUMS; ++i) {
        const int row = first_row + at.row + 16 * (i / 4 / WARP_FRAGMENTS) + at.g + 8 * (i % 4 / 2);
        const int column = first + at.column + 8 * (i / 4 % WARP_FRAGMENTS) + 2 * at.t + i % 2;
        if (row < rows && column < n) write_output<T>(output, row, column, totals[i * TILED_THREADS]);
    }
}

template <class T, class W>
__device__ __forceinline__ void matmul_tiled(const T* x, const void* weight, const Output& output, int rows, int n,
                                             int k) {
    constexpr int STAGE_BYTES = INPUT_BYTES + TILED_ROWS * W::GROUP_BYTES;
    DYN_SHARED(uint8_t, stages);
    const int warp = threadIdx.x / 32;
    const int lane = threadIdx.x % 32;
    const Place at = {warp / 4 * 64, warp % 4 * 32, lane / 4, lane % 4};
    const int first = blockIdx.x * TILED_ROWS;
    const int first_row = blockIdx.y * TILED_ROWS;
    const WeightMatrix<W> matrix(weight, n, k);
    const int groups = matrix.num_groups;
    const auto load = [&](int group) {
        if (group < groups) {
            uint8_t* stage = stages + group % TILED_STAGES * STAGE_BYTES;
            load_input(stage, x, first_row, rows, k, group);
            load_weight(stage + INPUT_BYTES, matrix, first, n, group);
        }
        cp_async_commit();  // Also of nothing, so that the count of groups under way holds.
    };

    load(0);
    load(1);
    float* totals = reinterpret_cast<float*>(stages + TILED_STAGES * STAGE_BYTES) + threadIdx.x;
    for (int i = 0; i < LANE_SUMS; ++i) totals[i * TILED_THREADS] = 0.0f;
    float sums[WARP_TILES][WARP_FRAGMENTS][4] = {};
    int left = slice_groups(groups);
    for (int group = 0; group < groups; ++group) {
        cp_async_wait<TILED_STAGES - 2>();
        // This group is here for all, and all are done with the one before, whose stage is filled next.
        __syncthreads();
        load(group + TILED_STAGES - 1);
        tiled_group<T, W>(sums, stages + group % TILED_STAGES * STAGE_BYTES, matrix, at, first, n, group);
        if (--left == 0) {
            end_slice(totals, sums);
            left = slice_groups(groups);
        }
    }
    end_slice(totals, sums);
    write_tile<T>(totals, at, output, first_row, first, rows, n);
}

}  // namespace

#define MATMUL_TILED(name, T, W)                                                                           \
    KERNEL(matmul_##name##_##T##_tiled, TILED_THREADS, MATMUL_PARAMETERS(T),                                         \
           { matmul_tiled<T, W<T>>(x, weight, MATMUL_OUTPUT, rows, n, k); })
FOR_EACH_WEIGHT(MATMUL_TILED)
