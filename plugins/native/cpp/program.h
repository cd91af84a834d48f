// The program of a plan: a flat array of nodes that Python encodes once. Python's tables in
// `program.py` mirror these structures; `tpn_abi()` lets it check that both are of one build.
#pragma once

#include <cstdint>

constexpr int ABI = 1;
constexpr int SOURCES = 5;

// Type numbers of GGUF.
enum Type : int32_t {
    F32 = 0, F16 = 1, Q4_0 = 2, Q4_1 = 3, Q5_0 = 6, Q5_1 = 7, Q8_0 = 8,
    Q4_K = 12, Q5_K = 13, Q6_K = 14, I32 = 26, I64 = 27, BF16 = 30, NO_TYPE = -1,
};

enum Op : int32_t {
    ADD, SUB, MUL, DIV, SCALE, RMS_NORM, SOFT_MAX, ROPE_TABLE, ROPE, GLU, GET_ROWS, SET_ROWS, COPY,
    MUL_MAT, ATTENTION, OPS,
};

// Sizes and byte strides, fastest dimension first, as in ggml. Absent sources have no type.
struct Operand {
    char *data;
    int64_t ne[4];
    int64_t nb[4];
    int32_t type;
    int32_t reserved;
};

struct Node {
    int32_t op;
    int32_t flags; // of the node's place in the program, set by `tpn_prepare`
    float f[8];    // parameters, by op
    int32_t i[8];
    Operand out;
    Operand src[SOURCES];
};

enum Flag : int32_t {
    WAIT = 1,  // all threads must have ended what came before
    ALONE = 2, // so small that one thread computes it
};

enum Code : int32_t { DONE = 0, ABORTED = 1, BAD_ROW = 2 };

// How a run ended; for BAD_ROW, the node and the id that names no row.
struct Outcome {
    int32_t code;
    int32_t node;
    int64_t value;
};
