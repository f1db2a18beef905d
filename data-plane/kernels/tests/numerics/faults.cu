// Kernels of the backend's names with a fault each, to show that the sanitizers find it. None of them writes where it must not:
// what the stand-in watches by itself sees nothing.
#include "block.cuh"
#include "matmul.cuh"
#include "step.cuh"

// Reads the element behind the last one of `hidden`.
KERNEL(gather_rows, 256, (float* out, const float* hidden, const Sample* samples, int dim), {
    if (threadIdx.x == 0) out[0] = hidden[static_cast<size_t>(samples[0].token + 1) * dim];
})

// Reads behind the block's dynamic shared memory.
KERNEL(matmul_dense_bf16_tiled, 256, MATMUL_PARAMETERS(bf16), {
    DYN_SHARED(float, shared);
    if (threadIdx.x == 0) static_cast<float*>(out)[0] = shared[(3 * 128 * (128 + 128) + 4 * 128 * 128) / 4];
})

// Reads behind a static shared array.
KERNEL(rms_norm_bf16, 256, (bf16* out, const float* x, const float* weight, float epsilon, int dim), {
    __shared__ float parts[4];
    for (int i = threadIdx.x; i <= dim; i += blockDim.x) out[0] = from_float<bf16>(parts[i]);
})

// Shifts a number by all its bits.
KERNEL(silu_mul_bf16, 256, (bf16* out, const bf16* gate_up, int columns), {
    out[0].bits = static_cast<uint16_t>(1 << (columns * 4));
})
