// The program of a plan: a flat array of nodes that Python encodes once. `tables.h` is written by Python, so that
// both have the same structures and numbers; `tpn_abi()` lets it check that both are of one build.
#pragma once

#include "tables.h"

// Of a node's place in the program, set by `tpn_prepare`.
enum Flag : int32_t {
    WAIT = 1,  // all threads must have ended what came before
    ALONE = 2, // so small that one thread computes it
};

// How a run ended; for BAD_ROW, the node and the id that names no row.
struct Outcome {
    int32_t code;
    int32_t node;
    int64_t value;
};

namespace {

// Elements and bytes of a block; null for numbers that do not name a type.
constexpr const TypeSize *type_size(int type) {
    constexpr int COUNT = sizeof(TYPE_SIZES) / sizeof(TYPE_SIZES[0]);
    return type >= 0 && type < COUNT && TYPE_SIZES[type].block ? &TYPE_SIZES[type] : nullptr;
}

inline int64_t row_count(const Operand &t) { return t.ne[1] * t.ne[2] * t.ne[3]; }
inline int64_t elements(const Operand &t) { return t.ne[0] * row_count(t); }

} // namespace
