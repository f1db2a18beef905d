// The block tables of seats, kept in device memory: a step brings what is new.
#include "compat.cuh"

// `entries` [*count][3]: seat, block, page.
extern "C" __global__ void __launch_bounds__(256, 1)
    set_block_tables(int* block_tables, const int* entries, const int* count, int max_blocks) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < *count) {
        block_tables[static_cast<size_t>(entries[3 * i]) * max_blocks + entries[3 * i + 1]] = entries[3 * i + 2];
    }
}
WEIR_EXPORT(set_block_tables)
