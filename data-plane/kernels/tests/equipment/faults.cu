// Kernels with a fault each, switched by their last argument, to show that the stand-in finds it.
#include "compat.cuh"

// out[block] = the sum of blockDim.x values; `fault` leaves the barrier out.
extern "C" __global__ void equipment_sum(float* out, const float* in, uint32_t fault) {
    __shared__ float parts[8];
    float sum = in[blockIdx.x * blockDim.x + threadIdx.x];
    for (int distance = 16; distance > 0; distance /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, distance);
    if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = sum;
    if (!fault) __syncthreads();
    if (threadIdx.x != 0) return;
    sum = 0.0f;
    for (uint32_t i = 0; i < blockDim.x / 32; ++i) sum += parts[i];
    out[blockIdx.x] = sum;
}
WEIR_EXPORT(equipment_sum)

// Adds `value` to `count` elements; `fault` goes one further.
extern "C" __global__ void equipment_add(float* out, uint32_t count, float value, uint32_t fault) {
    const uint32_t i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count + fault) out[i] = (i < count ? out[i] : 0.0f) + value;
}
WEIR_EXPORT(equipment_add)

// Reverses a block's values through dynamic shared memory; `fault` writes behind its end.
extern "C" __global__ void equipment_reverse(float* values, uint32_t fault) {
    DYN_SHARED(float, copy);
    copy[threadIdx.x + fault] = values[threadIdx.x];
    __syncthreads();
    values[threadIdx.x] = copy[blockDim.x - 1 - threadIdx.x + fault];
}
WEIR_EXPORT(equipment_reverse)

// Every thread meets the barrier, or with `fault` only the first warp.
extern "C" __global__ void equipment_meet(float* out, uint32_t fault) {
    if (!fault || threadIdx.x < 32) __syncthreads();
    out[threadIdx.x] = 1.0f;
}
WEIR_EXPORT(equipment_meet)

// Copies through shared memory without waiting for the threads: `fault` does not wait for the bytes either.
extern "C" __global__ void equipment_async_copy(float4* out, const float4* in, uint32_t fault) {
    DYN_SHARED(float4, tile);
    cp_async16(&tile[threadIdx.x], &in[threadIdx.x]);
    cp_async_commit();
    if (fault) cp_async_wait<1>();
    else cp_async_wait<0>();
    out[threadIdx.x] = tile[threadIdx.x];
}
WEIR_EXPORT(equipment_async_copy)

// d (16 x 8) = a (16 x 16, rows) · b (8 x 16, each row a column of the factor), one warp.
extern "C" __global__ void equipment_product(float* d, const bf16* a, const bf16* b) {
    __shared__ __align__(16) bf16 rows[16 * 16], columns[8 * 16];
    for (uint32_t i = threadIdx.x; i < 16 * 16; i += 32) rows[i] = a[i];
    for (uint32_t i = threadIdx.x; i < 8 * 16; i += 32) columns[i] = b[i];
    __syncwarp();
    const uint32_t lane = threadIdx.x;
    uint32_t fragment_a[4], fragment_b[2];
    float fragment_c[4] = {};
    ldmatrix_x4(fragment_a, &rows[(lane % 16) * 16 + lane / 16 * 8]);
    ldmatrix_x2(fragment_b, &columns[(lane % 8) * 16 + lane / 8 % 2 * 8]);
    mma_m16n8k16<bf16>(fragment_c, fragment_a, fragment_b);
    for (uint32_t i = 0; i < 4; ++i) d[(lane / 4 + i / 2 * 8) * 8 + lane % 4 * 2 + i % 2] = fragment_c[i];
}
WEIR_EXPORT(equipment_product)
