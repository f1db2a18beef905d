// out[rows][n] = x[rows][k] weight[n][k]^T, on the tensor cores. What the two kernels (see matmul_narrow.cu and
// matmul_tiled.cu) share, above all the order of the sums, so that a row has the same bits whichever computes it
// and whatever stands beside it:
// - k is cut into SLICES runs of whole groups; a slice is summed group by group, in the accumulators of the tensor
// cores;
// - packed weights: each block of 32 is summed by itself, then scaled and added to the slice in single precision;
// - the slices are added up in ascending order, then the bias.
#pragma once

#include "block.cuh"
#include "fragments.cuh"
#include "weights.cuh"

constexpr int SLICES = 8;

// Groups of slice `slice` of `num_groups`: [slice * slice_groups, (slice + 1) * slice_groups), cut at the end.
__device__ __forceinline__ int slice_groups(int num_groups) { return (num_groups + SLICES - 1) / SLICES; }

struct Output {
    void* out;
    const float* bias;
    int kind;  // 0: T, 1: float, 2: float added to what is there.
    int stride;
    int column;
};

template <class T>
__device__ __forceinline__ void write_output(const Output& output, int row, int column, float value) {
    if (output.bias) value += output.bias[column];
    const size_t at = static_cast<size_t>(row) * output.stride + output.column + column;
    if (output.kind == 0) {
        static_cast<T*>(output.out)[at] = from_float<T>(value);
    } else {
        float* to = static_cast<float*>(output.out) + at;
        *to = output.kind == 1 ? value : *to + value;
    }
}

// Sum of x over a block, for each row, in the layout of `block_product`.
template <class T>
__device__ __forceinline__ void block_row_sums(float (&d)[4], const RowsBlock& x) {
    const uint32_t one = pack2<T>(1.0f, 1.0f);
    const LanePairs ones = {one, one, one, one};
    block_product<T>(d, x, ones);
}

// The scales (and minimums) that a lane needs of a group: of its two columns of each fragment, both blocks packed.
template <class W, int FRAGMENTS>
struct GroupScales {
    uint32_t scales[FRAGMENTS][2];
    uint32_t minimums[W::HAS_MINIMUM ? FRAGMENTS : 1][2];

    // Columns of fragment f: first + 8 f + 2 t and the next; clamped to the matrix.
    __device__ __forceinline__ void load(const WeightMatrix<W>& matrix, int first, int t, int n, int group) {
        if constexpr (W::PACKED) {
#pragma unroll
            for (int f = 0; f < FRAGMENTS; ++f) {
#pragma unroll
                for (int side = 0; side < 2; ++side) {
                    const int column = min(first + 8 * f + 2 * t + side, n - 1);
                    scales[f][side] = matrix.both(matrix.scales, column, group);
                    if constexpr (W::HAS_MINIMUM) minimums[f][side] = matrix.both(matrix.minimums, column, group);
                }
            }
        }
    }

    static __device__ __forceinline__ float of_block(uint32_t both, int block) {
        return block == 0 ? low_half<f16>(both) : high_half<f16>(both);
    }
};

// sums[m][f] += the products of one group.
template <class T, class W, int TILES, int FRAGMENTS>
__device__ __forceinline__ void add_group(float (&sums)[TILES][FRAGMENTS][4], const RowsBlock (&x)[TILES],
                                          const LanePairs (&w)[FRAGMENTS], const GroupScales<W, FRAGMENTS>& scales,
                                          int block) {
#pragma unroll
    for (int m = 0; m < TILES; ++m) {
        float row_sums[4] = {0.0f, 0.0f, 0.0f, 0.0f};
        if constexpr (W::HAS_MINIMUM) block_row_sums<T>(row_sums, x[m]);
#pragma unroll
        for (int f = 0; f < FRAGMENTS; ++f) {
            if constexpr (W::PACKED) {
                float product[4] = {0.0f, 0.0f, 0.0f, 0.0f};
                block_product<T>(product, x[m], w[f]);
#pragma unroll
                for (int i = 0; i < 4; ++i) {
                    const float scale = scales.of_block(scales.scales[f][i % 2], block);
                    sums[m][f][i] = fmaf(scale, product[i], sums[m][f][i]);
                    if constexpr (W::HAS_MINIMUM) {
                        const float minimum = scales.of_block(scales.minimums[f][i % 2], block);
                        sums[m][f][i] = fmaf(minimum, row_sums[i], sums[m][f][i]);
                    }
                }
            } else {
                block_product<T>(sums[m][f], x[m], w[f]);
            }
        }
    }
}

// The kernels of all kinds of weights, by the two 16-bit formats.
#define MATMUL_PARAMETERS(T)                                                                               \
    (void* out, const T* x, const void* weight, const float* bias, int output, int rows, int n, int k,     \
     int out_stride, int out_column)
#define MATMUL_OUTPUT Output{out, bias, output, out_stride, out_column}
#define FOR_EACH_WEIGHT(MACRO)                                                                             \
    MACRO(dense, bf16, Dense)                                                                              \
    MACRO(dense, f16, Dense)                                                                               \
    MACRO(q8_0, bf16, Q8_0)                                                                                \
    MACRO(q8_0, f16, Q8_0)                                                                                 \
    MACRO(q4_0, bf16, Q4_0)                                                                                \
    MACRO(q4_0, f16, Q4_0)                                                                                 \
    MACRO(q4_1, bf16, Q4_1)                                                                                \
    MACRO(q4_1, f16, Q4_1)
