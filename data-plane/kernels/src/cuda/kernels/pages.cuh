// Where keys and values lie. A page holds, for each layer and KV head, keys [16][head_dim], then values
// [16][head_dim].
#pragma once

#include "compat.cuh"

struct Pages {
    uint8_t* pool;
    const int* block_tables;  // [seats][max_blocks]
    int max_blocks;
    long long page_bytes;
    long long layer_offset;

    // This layer's part of the page of a seat's positions 16 block .. 16 block + 16.
    __device__ __forceinline__ uint8_t* of(int seat, int block) const {
        const long long page = block_tables[static_cast<size_t>(seat) * max_blocks + block];
        return pool + page * page_bytes + layer_offset;
    }
};
