// RMSNorm (Zhang and Sennrich 2019): out = x / sqrt(mean(x^2) + epsilon) * weight, a block a row.
#include "block.cuh"

namespace {

template <class T>
__device__ void rms_norm(T* out, const float* x, const float* weight, float epsilon, int dim) {
    const float4* row = reinterpret_cast<const float4*>(x + static_cast<size_t>(blockIdx.x) * dim);
    float squares = 0.0f;
    for (int i = threadIdx.x; i < dim / 4; i += blockDim.x) {
        const float4 v = row[i];
        squares += v.x * v.x + v.y * v.y + v.z * v.z + v.w * v.w;
    }
    const float inverse = 1.0f / sqrtf(block_sum(squares) / dim + epsilon);
    const float4* weights = reinterpret_cast<const float4*>(weight);
    uint2* result = reinterpret_cast<uint2*>(out + static_cast<size_t>(blockIdx.x) * dim);
    for (int i = threadIdx.x; i < dim / 4; i += blockDim.x) {
        const float4 v = row[i];
        const float4 w = weights[i];
        uint2 packed;
        packed.x = pack2<T>(v.x * inverse * w.x, v.y * inverse * w.y);
        packed.y = pack2<T>(v.z * inverse * w.z, v.w * inverse * w.w);
        result[i] = packed;
    }
}

}  // namespace

#define RMS_NORM(T)                                                                                        \
    KERNEL(rms_norm_##T, 256, (T* out, const float* x, const float* weight, float epsilon, int dim), {     \
        rms_norm(out, x, weight, epsilon, dim);                                                            \
    })
RMS_NORM(bf16)
RMS_NORM(f16)
