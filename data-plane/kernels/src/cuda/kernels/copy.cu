// Moves of whole rows and pages, and conversions between activations and single precision.
#include "block.cuh"
#include "step.cuh"

// The rows that sample, one after another; zeros for inactive ones.
KERNEL(gather_rows, 256, (float* out, const float* hidden, const Sample* samples, int dim), {
    const int token = samples[blockIdx.x].token;
    float4* to = reinterpret_cast<float4*>(out + static_cast<size_t>(blockIdx.x) * dim);
    const float4* from = reinterpret_cast<const float4*>(hidden + static_cast<size_t>(token < 0 ? 0 : token) * dim);
    for (int i = threadIdx.x; i < dim / 4; i += blockDim.x) {
        to[i] = token < 0 ? float4{0.0f, 0.0f, 0.0f, 0.0f} : from[i];
    }
})

// Page copies in the order of the list, `copies` [count][2] of (from, to): a thread makes all of them for its own
// 16 bytes of a page, so that a copy may read what an earlier one wrote.
KERNEL(copy_pages, 256, (void* pool, const int* copies, int count, long long page_bytes), {
    const long long offset = (static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x) * 16;
    if (offset < page_bytes) {
        uint8_t* bytes = static_cast<uint8_t*>(pool) + offset;
        for (int i = 0; i < count; ++i) {
            const uint4 chunk = *reinterpret_cast<const uint4*>(bytes + copies[2 * i] * page_bytes);
            *reinterpret_cast<uint4*>(bytes + copies[2 * i + 1] * page_bytes) = chunk;
        }
    }
})

#define CONVERT(T)                                                                                         \
    KERNEL(convert_f32_to_##T, 256, (T* out, const float* x, long long n), {                               \
        const long long first = static_cast<long long>(blockIdx.x) * 1024 + threadIdx.x;                   \
        for (long long i = first; i < min(first + 1024, n); i += 256) out[i] = from_float<T>(x[i]);        \
    })                                                                                                     \
    KERNEL(convert_##T##_to_f32, 256, (float* out, const T* x, long long n), {                             \
        const long long first = static_cast<long long>(blockIdx.x) * 1024 + threadIdx.x;                   \
        for (long long i = first; i < min(first + 1024, n); i += 256) out[i] = to_float(x[i]);             \
    })
CONVERT(bf16)
CONVERT(f16)
