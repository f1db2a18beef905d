// Gated activations: out = silu(gate) * up and out = gelu(gate) * up (the tanh form), eight elements a thread.
#include "block.cuh"

namespace {

struct Silu {
    static __device__ __forceinline__ float of(float x) { return x / (1.0f + expf(-x)); }
};

struct GeluTanh {
    static __device__ __forceinline__ float of(float x) {
        const float inner = 0.79788456f * (x + 0.044715f * x * x * x);
        return 0.5f * x * (1.0f + tanhf(inner));
    }
};

template <class T, class Activation>
__device__ __forceinline__ uint32_t gated(uint32_t gate, uint32_t up) {
    const float2 g = unpack2<T>(gate);
    const float2 u = unpack2<T>(up);
    return pack2<T>(Activation::of(g.x) * u.x, Activation::of(g.y) * u.y);
}

// `gate_up` is [rows][2][columns], `out` [rows][columns].
template <class T, class Activation>
__device__ void gated_rows(T* out, const T* gate_up, int columns) {
    const int column = (blockIdx.x * blockDim.x + threadIdx.x) * 8;
    if (column >= columns) return;
    const size_t row = blockIdx.y;
    const uint4 gate = *reinterpret_cast<const uint4*>(gate_up + row * 2 * columns + column);
    const uint4 up = *reinterpret_cast<const uint4*>(gate_up + (row * 2 + 1) * columns + column);
    uint4 result;
    result.x = gated<T, Activation>(gate.x, up.x);
    result.y = gated<T, Activation>(gate.y, up.y);
    result.z = gated<T, Activation>(gate.z, up.z);
    result.w = gated<T, Activation>(gate.w, up.w);
    *reinterpret_cast<uint4*>(out + row * columns + column) = result;
}

}  // namespace

#define GATED(T)                                                                                           \
    KERNEL(silu_mul_##T, 256, (T* out, const T* gate_up, int columns), {                                   \
        gated_rows<T, Silu>(out, gate_up, columns);                                                        \
    })                                                                                                     \
    KERNEL(gelu_mul_##T, 256, (T* out, const T* gate_up, int columns), {                                   \
        gated_rows<T, GeluTanh>(out, gate_up, columns);                                                    \
    })
GATED(bf16)
GATED(f16)
