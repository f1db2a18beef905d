// Matrix products of few rows (decode): each warp of a block takes one slice of k for the same 16 columns, and
// reads the weights straight into registers, several groups ahead, since their bytes are what bounds it.
#include "matmul.cuh"

namespace {

constexpr int NARROW_COLUMNS = 16;
constexpr int NARROW_AHEAD = 4;

// The block of 32 elements at `at` for lane t, zeros past the end of k.
template <class T>
__device__ __forceinline__ uint4 input_lane(const T* row, int at, int k) {
    return at < k ? *reinterpret_cast<const uint4*>(row + at) : uint4{0, 0, 0, 0};
}

template <class T, class W, int TILES>
__device__ __forceinline__ void narrow_group(float (&sums)[TILES][2][4], const typename W::Packet (&packets)[2],
                                             const T* const (&x)[TILES][2], const WeightMatrix<W>& matrix, int first,
                                             int t, int n, int k, int group) {
    GroupScales<W, 2> scales;
    scales.load(matrix, first, t, n, group);
#pragma unroll
    for (int block = 0; block < 2; ++block) {
        RowsBlock input[TILES];
        LanePairs w[2];
        const int at = group * GROUP + block * 32 + t * 8;
#pragma unroll
        for (int m = 0; m < TILES; ++m) input[m] = {input_lane(x[m][0], at, k), input_lane(x[m][1], at, k)};
#pragma unroll
        for (int f = 0; f < 2; ++f) W::unpack(packets[f], block, w[f]);
        add_group<T, W, TILES, 2>(sums, input, w, scales, block);
    }
}

// Adds up the slices' sums, [SLICES][rows of the block][16], and writes them.
template <class T>
__device__ void write_slices(const float* partial, int block_rows, int first_row, int first, const Output& output,
                             int rows, int n) {
    const int size = block_rows * NARROW_COLUMNS;
    for (int i = threadIdx.x; i < size; i += blockDim.x) {
        const int row = first_row + i / NARROW_COLUMNS;
        const int column = first + i % NARROW_COLUMNS;
        float total = 0.0f;
#pragma unroll
        for (int slice = 0; slice < SLICES; ++slice) total += partial[slice * size + i];
        if (row < rows && column < n) write_output<T>(output, row, column, total);
    }
}

template <class T, class W, int TILES>
__device__ __forceinline__ void matmul_narrow(const T* x, const void* weight, const Output& output, int rows, int n,
                                              int k) {
    __shared__ float partial[SLICES][16 * TILES][NARROW_COLUMNS];
    const int slice = threadIdx.x / 32;
    const int g = threadIdx.x % 32 / 4;
    const int t = threadIdx.x % 4;
    const int first = blockIdx.x * NARROW_COLUMNS;
    const int first_row = blockIdx.y * 16 * TILES;
    const WeightMatrix<W> matrix(weight, n, k);
    const int begin = slice * slice_groups(matrix.num_groups);
    const int end = min(begin + slice_groups(matrix.num_groups), matrix.num_groups);

    // Rows past the end read the last one; their results are dropped.
    const T* inputs[TILES][2];
#pragma unroll
    for (int m = 0; m < TILES; ++m) {
#pragma unroll
        for (int side = 0; side < 2; ++side) {
            const int row = min(first_row + 16 * m + 8 * side + g, rows - 1);
            inputs[m][side] = x + static_cast<size_t>(row) * k;
        }
    }
    const int columns[2] = {min(first + g, n - 1), min(first + 8 + g, n - 1)};

    float sums[TILES][2][4] = {};
    for (int group = begin; group < end; group += NARROW_AHEAD) {
        typename W::Packet packets[NARROW_AHEAD][2];
#pragma unroll
        for (int i = 0; i < NARROW_AHEAD; ++i) {
            const int ahead = min(group + i, end - 1);
#pragma unroll
            for (int f = 0; f < 2; ++f) {
                packets[i][f] = W::load(matrix.group(columns[f], ahead), t, matrix.has_second(ahead));
            }
        }
#pragma unroll
        for (int i = 0; i < NARROW_AHEAD; ++i) {
            if (group + i < end) {
                narrow_group<T, W, TILES>(sums, packets[i], inputs, matrix, first, t, n, k, group + i);
            }
        }
    }
#pragma unroll
    for (int m = 0; m < TILES; ++m) {
#pragma unroll
        for (int i = 0; i < 8; ++i) {
            const int c = i % 4;
            partial[slice][16 * m + g + 8 * (c / 2)][8 * (i / 4) + 2 * t + c % 2] = sums[m][i / 4][c];
        }
    }
    __syncthreads();
    write_slices<T>(&partial[0][0][0], 16 * TILES, first_row, first, output, rows, n);
}

}  // namespace

#define MATMUL_NARROW(name, T, W)                                                                          \
    KERNEL(matmul_##name##_##T##_m16, 256, MATMUL_PARAMETERS(T), {                                         \
        matmul_narrow<T, W<T>, 1>(x, weight, MATMUL_OUTPUT, rows, n, k);                                   \
    })                                                                                                     \
    KERNEL(matmul_##name##_##T##_m64, 256, MATMUL_PARAMETERS(T), {                                         \
        matmul_narrow<T, W<T>, 4>(x, weight, MATMUL_OUTPUT, rows, n, k);                                   \
    })
FOR_EACH_WEIGHT(MATMUL_NARROW)
