// Tensor-core instructions over the fragments of a warp, laid out as PTX says for mma.m16n8k16 and ldmatrix.
#pragma once
#include "intrinsics.h"
#include "thread.h"
#include "types.h"

namespace stand_in {

struct Fragments {
    uint32_t a[4], b[2];
    float c[4];
};

// Unpacks the fragments of all lanes into matrices, multiplies, and leaves each lane its part of the sum.
template <class T> void multiply(Slot (&slots)[WARP]) {
    float a[16][16], b[16][8], c[16][8];
    Fragments lanes[WARP];
    const auto half = [](uint32_t pair, bool high) { return to_float(T{uint16_t(high ? pair >> 16 : pair)}); };
    for (unsigned lane = 0; lane < WARP; ++lane) {
        std::memcpy(&lanes[lane], slots[lane].bytes, sizeof(Fragments));
        const unsigned group = lane / 4, pair = lane % 4 * 2;
        for (unsigned i = 0; i < 8; ++i)
            a[group + (i / 2 % 2) * 8][pair + (i / 4) * 8 + i % 2] = half(lanes[lane].a[i / 2], i % 2);
        for (unsigned i = 0; i < 4; ++i) {
            b[pair + (i / 2) * 8 + i % 2][group] = half(lanes[lane].b[i / 2], i % 2);
            c[group + (i / 2) * 8][pair + i % 2] = lanes[lane].c[i];
        }
    }
    for (unsigned row = 0; row < 16; ++row) {
        float sum[8] = {};
        for (unsigned k = 0; k < 16; ++k)
            for (unsigned column = 0; column < 8; ++column) sum[column] += a[row][k] * b[k][column];
        for (unsigned column = 0; column < 8; ++column) c[row][column] += sum[column];
    }
    for (unsigned lane = 0; lane < WARP; ++lane) {
        float part[4];
        for (unsigned i = 0; i < 4; ++i) part[i] = c[lane / 4 + (i / 2) * 8][lane % 4 * 2 + i % 2];
        std::memcpy(slots[lane].bytes, part, sizeof part);
    }
}

// Reads `count` 8 x 8 matrices of 16-bit elements whose rows the lanes' addresses name, at one moment for the warp.
template <unsigned count, bool transposed> void gather(Slot (&slots)[WARP]) {
    const unsigned char* rows[count * 8];
    for (unsigned i = 0; i < count * 8; ++i) std::memcpy(&rows[i], slots[i].bytes, sizeof rows[i]);
    for (unsigned lane = 0; lane < WARP; ++lane) {
        uint16_t pairs[count][2];
        for (unsigned matrix = 0; matrix < count; ++matrix)
            for (unsigned i = 0; i < 2; ++i) {
                const unsigned row = transposed ? lane % 4 * 2 + i : lane / 4;
                const unsigned column = transposed ? lane / 4 : lane % 4 * 2 + i;
                std::memcpy(&pairs[matrix][i], rows[matrix * 8 + row] + 2 * column, 2);
            }
        std::memcpy(slots[lane].bytes, pairs, sizeof pairs);
    }
}

template <bool transposed, unsigned count> void load_matrices(Place place, uint32_t (&r)[count], const void* row) {
    if (current->lane() < count * 8 && reinterpret_cast<uintptr_t>(row) % 16 != 0)
        fault("ldmatrix: a row is not aligned to 16 bytes");
    const Slot* slots = exchange(place, ALL_LANES, row, gather<count, transposed>);
    std::memcpy(r, slots[current->lane()].bytes, sizeof r);
}

}  // namespace stand_in

template <class T> void mma_m16n8k16(float (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[2], WEIR_CALLER) {
    stand_in::Fragments fragments;
    std::memcpy(fragments.a, a, sizeof a);
    std::memcpy(fragments.b, b, sizeof b);
    std::memcpy(fragments.c, c, sizeof c);
    const auto* slots = stand_in::exchange(WEIR_PLACE("mma_m16n8k16"), stand_in::ALL_LANES, fragments, stand_in::multiply<T>);
    std::memcpy(c, slots[stand_in::current->lane()].bytes, sizeof c);
}

inline void ldmatrix_x4(uint32_t (&r)[4], const void* row, WEIR_CALLER) {
    stand_in::load_matrices<false>(WEIR_PLACE("ldmatrix_x4"), r, row);
}
inline void ldmatrix_x2(uint32_t (&r)[2], const void* row, WEIR_CALLER) {
    stand_in::load_matrices<false>(WEIR_PLACE("ldmatrix_x2"), r, row);
}
inline void ldmatrix_x4_trans(uint32_t (&r)[4], const void* row, WEIR_CALLER) {
    stand_in::load_matrices<true>(WEIR_PLACE("ldmatrix_x4_trans"), r, row);
}
inline void ldmatrix_x2_trans(uint32_t (&r)[2], const void* row, WEIR_CALLER) {
    stand_in::load_matrices<true>(WEIR_PLACE("ldmatrix_x2_trans"), r, row);
}
