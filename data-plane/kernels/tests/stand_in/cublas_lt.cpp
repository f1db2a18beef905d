// libcublasLt.so.13 on the CPU: the part that a matrix product of 16-bit or 32-bit floats needs.
//
// Follows cuBLASLt's documentation: column-major unless the layout says otherwise, alpha and beta on the host and read
// by the call, operands read and written when the stream comes to them. It is as strict as the documentation allows:
// what the library may reject is rejected here, and the workspace that the heuristic asks for is overwritten, so that a
// caller which keeps anything there is seen.
//
// Sums are in f32 in the order of k. A GPU's order differs, and may differ between shapes: no test may rely on the bits.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <initializer_list>
#include <vector>

#include "types.h"

#define API extern "C" __attribute__((visibility("default"))) int

// In the driver's shared object.
extern "C" __attribute__((visibility("default"))) int cuMemGetAddressRange_v2(uintptr_t* base, size_t* bytes, uintptr_t pointer);
namespace stand_in {
__attribute__((visibility("default"))) int enqueue(void* stream, const char* name, std::function<void()> work);
}

namespace {

enum Status { SUCCESS = 0, NOT_INITIALIZED = 1, INVALID_VALUE = 7, EXECUTION_FAILED = 13, NOT_SUPPORTED = 15 };
enum DataType { R_32F = 0, R_16F = 2, R_16BF = 14 };
enum ComputeType { COMPUTE_32F = 68, COMPUTE_32F_PEDANTIC = 69, COMPUTE_32F_FAST_TF32 = 77 };
enum Order { ORDER_COLUMNS = 0, ORDER_ROWS = 1 };
enum Operation { OPERATION_N = 0, OPERATION_T = 1 };
enum Epilogue { EPILOGUE_DEFAULT = 1, EPILOGUE_BIAS = 4 };

// What the heuristic asks for if the preference allows it. A real one asks for up to some tens of MiB.
constexpr size_t WORKSPACE_BYTES = 64 * 1024;
// In the first word of an algorithm that the heuristic gave; the second holds the workspace's bytes, the next four the
// alignments that were promised for A, B, C and D (256 bytes unless the preference says otherwise).
constexpr uint64_t ALGORITHM_MARK = 0x77656972;

// Attributes are plain values by number, of a size that the caller must name rightly.
struct Attribute {
    int number;
    void* value;
    size_t bytes;
};

int set(std::initializer_list<Attribute> attributes, int number, const void* value, size_t bytes) {
    for (const auto& attribute : attributes) {
        if (attribute.number != number) continue;
        if (!value || attribute.bytes != bytes) return INVALID_VALUE;
        std::memcpy(attribute.value, value, bytes);
        return SUCCESS;
    }
    return NOT_SUPPORTED;
}

struct Layout {
    int type;
    int order = ORDER_COLUMNS;
    uint64_t rows, columns;
    int64_t leading;
    int batches = 1;
    int64_t batch_stride = 0;

    int set_attribute(int number, const void* value, size_t bytes) {
        return set({{0, &type, sizeof type}, {1, &order, sizeof order}, {2, &rows, sizeof rows},
                    {3, &columns, sizeof columns}, {4, &leading, sizeof leading}, {5, &batches, sizeof batches},
                    {6, &batch_stride, sizeof batch_stride}},
                   number, value, bytes);
    }

    bool valid() const {
        const uint64_t shortest = order == ORDER_COLUMNS ? rows : columns;
        return rows > 0 && columns > 0 && leading > 0 && uint64_t(leading) >= shortest && batches > 0 && batch_stride >= 0 &&
               (order == ORDER_COLUMNS || order == ORDER_ROWS);
    }

    size_t element_bytes() const { return type == R_32F ? 4 : 2; }
    size_t offset(uint64_t row, uint64_t column) const {
        return order == ORDER_COLUMNS ? row + column * size_t(leading) : row * size_t(leading) + column;
    }
    // From the first element of the first matrix to the end of the last element of the last.
    size_t extent_bytes() const {
        return (offset(rows - 1, columns - 1) + 1 + size_t(batches - 1) * size_t(batch_stride)) * element_bytes();
    }
    bool same_shape(const Layout& other) const {
        return rows == other.rows && columns == other.columns && batches == other.batches;
    }
};

struct Description {
    int compute_type, scale_type;
    int pointer_mode = 0;
    int transpose_a = OPERATION_N, transpose_b = OPERATION_N, transpose_c = OPERATION_N;
    int epilogue = EPILOGUE_DEFAULT;
    uintptr_t bias = 0;

    int set_attribute(int number, const void* value, size_t bytes) {
        return set({{0, &compute_type, sizeof compute_type}, {1, &scale_type, sizeof scale_type},
                    {2, &pointer_mode, sizeof pointer_mode}, {3, &transpose_a, sizeof transpose_a},
                    {4, &transpose_b, sizeof transpose_b}, {5, &transpose_c, sizeof transpose_c},
                    {7, &epilogue, sizeof epilogue}, {8, &bias, sizeof bias}},
                   number, value, bytes);
    }
};

struct Preference {
    int search_mode = 0;
    uint64_t workspace_bytes_max = 0;
    uint32_t alignment[4] = {256, 256, 256, 256};

    int set_attribute(int number, const void* value, size_t bytes) {
        return set({{0, &search_mode, sizeof search_mode}, {1, &workspace_bytes_max, sizeof workspace_bytes_max},
                    {5, &alignment[0], 4}, {6, &alignment[1], 4}, {7, &alignment[2], 4}, {8, &alignment[3], 4}},
                   number, value, bytes);
    }
};

struct Algorithm {
    uint64_t data[8];
};

struct HeuristicResult {
    Algorithm algorithm;
    size_t workspace_bytes;
    int state;
    float waves;
    int reserved[4];
};
static_assert(sizeof(HeuristicResult) == 96);

// One product, with all that it needs copied: the caller may destroy its descriptions at once.
struct Product {
    Description description;
    Layout a, b, c, d;
    float alpha = 1, beta = 0;
    uintptr_t a_at = 0, b_at = 0, c_at = 0, d_at = 0, workspace = 0;
    size_t workspace_bytes = 0;

    // Whether types, shapes and operations are among those that this library computes.
    int check() const;
    // Takes the workspace of an algorithm, if the caller keeps what was promised for it.
    int use(const Algorithm& algorithm, size_t workspace_bytes_given);
    void run() const;

  private:
    void run_batch(size_t batch) const;
};

int Product::check() const {
    const auto& how = description;
    const bool compute = how.compute_type == COMPUTE_32F || how.compute_type == COMPUTE_32F_PEDANTIC ||
                         (how.compute_type == COMPUTE_32F_FAST_TF32 && a.type == R_32F);
    const bool inputs = a.type == b.type && (a.type == R_32F || a.type == R_16F || a.type == R_16BF);
    const bool outputs = c.type == d.type && (d.type == R_32F || d.type == a.type);
    const bool epilogue = how.epilogue == EPILOGUE_DEFAULT || (how.epilogue == EPILOGUE_BIAS && d.order == ORDER_COLUMNS);
    const auto operation = [](int value) { return value == OPERATION_N || value == OPERATION_T; };
    if (!compute || how.scale_type != R_32F || how.pointer_mode != 0 || how.transpose_c != OPERATION_N || !inputs || !outputs ||
        !epilogue || !operation(how.transpose_a) || !operation(how.transpose_b))
        return NOT_SUPPORTED;
    const bool a_turned = how.transpose_a == OPERATION_T, b_turned = how.transpose_b == OPERATION_T;
    const uint64_t m = a_turned ? a.columns : a.rows, k = a_turned ? a.rows : a.columns;
    const uint64_t k_of_b = b_turned ? b.columns : b.rows, n = b_turned ? b.rows : b.columns;
    const bool shapes = a.valid() && b.valid() && c.valid() && d.valid() && k == k_of_b && d.rows == m && d.columns == n &&
                        c.same_shape(d) && a.batches == d.batches && b.batches == d.batches;
    if (!shapes || (how.epilogue == EPILOGUE_BIAS && !how.bias)) return INVALID_VALUE;
    return SUCCESS;
}

int Product::use(const Algorithm& algorithm, size_t workspace_bytes_given) {
    if (algorithm.data[0] != ALGORITHM_MARK || algorithm.data[1] > workspace_bytes_given) return INVALID_VALUE;
    const uintptr_t addresses[] = {a_at, b_at, beta == 0 ? 0 : c_at, d_at};
    for (size_t i = 0; i < 4; ++i)
        if (algorithm.data[2 + i] == 0 || addresses[i] % algorithm.data[2 + i] != 0) return INVALID_VALUE;
    workspace_bytes = algorithm.data[1];
    return SUCCESS;
}

float load(int type, uintptr_t base, size_t index) {
    if (type == R_32F) return reinterpret_cast<const float*>(base)[index];
    const uint16_t bits = reinterpret_cast<const uint16_t*>(base)[index];
    return type == R_16F ? to_float(f16{bits}) : to_float(bf16{bits});
}

void store(int type, uintptr_t base, size_t index, float value) {
    if (type == R_32F) reinterpret_cast<float*>(base)[index] = value;
    else reinterpret_cast<uint16_t*>(base)[index] = type == R_16F ? from_float<f16>(value).bits : from_float<bf16>(value).bits;
}

// The operand as f32 with its `inner` (summed) index running fastest.
std::vector<float> unpacked(const Layout& layout, uintptr_t base, bool rows_are_inner) {
    const uint64_t inner = rows_are_inner ? layout.rows : layout.columns;
    const uint64_t outer = rows_are_inner ? layout.columns : layout.rows;
    std::vector<float> values(inner * outer);
    for (uint64_t o = 0; o < outer; ++o)
        for (uint64_t i = 0; i < inner; ++i)
            values[o * inner + i] = load(layout.type, base, rows_are_inner ? layout.offset(i, o) : layout.offset(o, i));
    return values;
}

void Product::run() const {
    if (workspace_bytes > 0) std::memset(reinterpret_cast<void*>(workspace), 0xff, workspace_bytes);
    for (int batch = 0; batch < d.batches; ++batch) run_batch(size_t(batch));
}

void Product::run_batch(size_t batch) const {
    const auto at = [batch](uintptr_t base, const Layout& layout) {
        return base + batch * size_t(layout.batch_stride) * layout.element_bytes();
    };
    const auto rows = unpacked(a, at(a_at, a), description.transpose_a == OPERATION_T);
    const auto columns = unpacked(b, at(b_at, b), description.transpose_b == OPERATION_N);
    const uint64_t k = rows.size() / d.rows;
    for (uint64_t column = 0; column < d.columns; ++column)
        for (uint64_t row = 0; row < d.rows; ++row) {
            float sum = 0;
            for (uint64_t i = 0; i < k; ++i) sum += rows[row * k + i] * columns[column * k + i];
            float value = alpha * sum;
            // With beta 0 the matrix C is not read: it may hold NaN.
            if (beta != 0) value += beta * load(c.type, at(c_at, c), c.offset(row, column));
            if (description.epilogue == EPILOGUE_BIAS) value += load(d.type, description.bias, row);
            store(d.type, at(d_at, d), d.offset(row, column), value);
        }
}

// Whether `bytes` from `pointer` lie within one allocation of the device.
bool on_device(uintptr_t pointer, size_t bytes) {
    uintptr_t base = 0;
    size_t allocated = 0;
    return cuMemGetAddressRange_v2(&base, &allocated, pointer) == 0 && pointer - base + bytes <= allocated;
}

bool operands_on_device(const Product& product) {
    const auto& p = product;
    const auto within = [](uintptr_t at, const Layout& layout) {
        return at % layout.element_bytes() == 0 && on_device(at, layout.extent_bytes());
    };
    const bool bias = p.description.epilogue != EPILOGUE_BIAS || on_device(p.description.bias, p.d.rows * p.d.element_bytes());
    return within(p.a_at, p.a) && within(p.b_at, p.b) && (p.beta == 0 || within(p.c_at, p.c)) && within(p.d_at, p.d) && bias &&
           (p.workspace_bytes == 0 || on_device(p.workspace, p.workspace_bytes));
}

template <class T, class... Arguments> int create(T** made, Arguments... arguments) {
    if (!made) return INVALID_VALUE;
    *made = new T{arguments...};
    return SUCCESS;
}

template <class T> int destroy(T* object) {
    delete object;
    return SUCCESS;
}

struct Handle {};

}  // namespace

extern "C" __attribute__((visibility("default"))) size_t cublasLtGetVersion() { return 130000; }

API cublasLtCreate(Handle** handle) { return create(handle); }
API cublasLtDestroy(Handle* handle) { return destroy(handle); }

API cublasLtMatrixLayoutCreate(Layout** layout, int type, uint64_t rows, uint64_t columns, int64_t leading) {
    if (!layout) return INVALID_VALUE;
    *layout = new Layout{.type = type, .rows = rows, .columns = columns, .leading = leading};
    return SUCCESS;
}
API cublasLtMatrixLayoutSetAttribute(Layout* layout, int number, const void* value, size_t bytes) {
    return layout ? layout->set_attribute(number, value, bytes) : INVALID_VALUE;
}
API cublasLtMatrixLayoutDestroy(Layout* layout) { return destroy(layout); }

API cublasLtMatmulDescCreate(Description** description, int compute_type, int scale_type) {
    return create(description, compute_type, scale_type);
}
API cublasLtMatmulDescSetAttribute(Description* description, int number, const void* value, size_t bytes) {
    return description ? description->set_attribute(number, value, bytes) : INVALID_VALUE;
}
API cublasLtMatmulDescDestroy(Description* description) { return destroy(description); }

API cublasLtMatmulPreferenceCreate(Preference** preference) { return create(preference); }
API cublasLtMatmulPreferenceSetAttribute(Preference* preference, int number, const void* value, size_t bytes) {
    return preference ? preference->set_attribute(number, value, bytes) : INVALID_VALUE;
}
API cublasLtMatmulPreferenceDestroy(Preference* preference) { return destroy(preference); }

API cublasLtMatmulAlgoGetHeuristic(Handle* handle, const Description* description, const Layout* a, const Layout* b,
                                   const Layout* c, const Layout* d, const Preference* preference, int wanted,
                                   HeuristicResult* results, int* found) {
    if (!handle) return NOT_INITIALIZED;
    if (!description || !a || !b || !c || !d || !preference || wanted < 1 || !results || !found) return INVALID_VALUE;
    *found = 0;
    Product product;
    product.description = *description;
    product.a = *a, product.b = *b, product.c = *c, product.d = *d;
    if (const int status = product.check()) return status;
    HeuristicResult result{};
    result.workspace_bytes = std::min<uint64_t>(preference->workspace_bytes_max, WORKSPACE_BYTES);
    result.algorithm.data[0] = ALGORITHM_MARK;
    result.algorithm.data[1] = result.workspace_bytes;
    std::copy(std::begin(preference->alignment), std::end(preference->alignment), &result.algorithm.data[2]);
    result.waves = 1;
    results[0] = result;
    *found = 1;
    return SUCCESS;
}

API cublasLtMatmul(Handle* handle, const Description* description, const float* alpha, uintptr_t a, const Layout* a_layout,
                   uintptr_t b, const Layout* b_layout, const float* beta, uintptr_t c, const Layout* c_layout, uintptr_t d,
                   const Layout* d_layout, const Algorithm* algorithm, uintptr_t workspace, size_t workspace_bytes,
                   void* stream) {
    if (!handle) return NOT_INITIALIZED;
    if (!description || !alpha || !beta || !a_layout || !b_layout || !c_layout || !d_layout) return INVALID_VALUE;
    Product product;
    product.description = *description;
    product.a = *a_layout, product.b = *b_layout, product.c = *c_layout, product.d = *d_layout;
    product.alpha = *alpha, product.beta = *beta;
    product.a_at = a, product.b_at = b, product.c_at = c, product.d_at = d, product.workspace = workspace;
    if (const int status = product.check()) return status;
    // C and D may be one matrix, and then of one layout.
    if (c == d && product.c.leading != product.d.leading) return INVALID_VALUE;
    if (const int status = algorithm ? product.use(*algorithm, workspace_bytes) : SUCCESS) return status;
    if (!operands_on_device(product)) return INVALID_VALUE;
    return stand_in::enqueue(stream, "cublasLtMatmul", [product] { product.run(); }) == 0 ? SUCCESS : EXECUTION_FAILED;
}
