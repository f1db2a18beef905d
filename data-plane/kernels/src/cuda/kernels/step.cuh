// What a step is, as kernels see it in device memory. The Rust side writes the same layouts.
#pragma once

// The share of one sequence in a step; inactive if it has no tokens.
struct Row {
    int seat;
    int start_position;
    int first_token;
    int num_tokens;
};

// A token to be sampled.
struct Sample {
    int token;     // Index of the row's last token in this step; -1 if inactive.
    int seat;
    int position;  // Absolute position of the token to be sampled.
    int mask;      // Index of its mask of allowed tokens; -1 for none.
};

// A part of a row's attention: a split of its context, or a tile of its queries.
struct Work {
    int row;
    int part;
};

constexpr int BLOCK_TOKENS = 16;
