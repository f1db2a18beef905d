// Operands of tensor-core products, laid out so that every load is 16 bytes of one row.
//
// A product sums over k in any order as long as both operands have the same one. Over a block of 32, lane t of four
// holds elements 8t .. 8t + 8 of its row, and gives the first four to one product of 16 and the others to a second
// one.
#pragma once

#include "compat.cuh"

// Elements 8t .. 8t + 8 of a row's block of 32, as packed pairs.
using LanePairs = uint32_t[4];

// A block of 32 of 16 rows: those elements of rows g and g + 8, g = lane / 4.
struct RowsBlock {
    uint4 low;
    uint4 high;
};

// d[16 rows][8 columns] += rows columns^T over a block of 32; `columns` holds row g of the second operand.
template <class T>
__device__ __forceinline__ void block_product(float (&d)[4], const RowsBlock& rows, const LanePairs& columns) {
    const uint32_t first[4] = {rows.low.x, rows.high.x, rows.low.y, rows.high.y};
    const uint32_t second[4] = {rows.low.z, rows.high.z, rows.low.w, rows.high.w};
    const uint32_t columns_first[2] = {columns[0], columns[1]};
    const uint32_t columns_second[2] = {columns[2], columns[3]};
    mma_m16n8k16<T>(d, first, columns_first);
    mma_m16n8k16<T>(d, second, columns_second);
}
