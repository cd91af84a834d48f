// Attention in one op: scores, softmax and values.
#pragma once

#include "attention_blocks.h"
#include "attention_rows.h"

namespace {

inline int64_t attention_scratch(const Node &node, int threads) {
    return by_rows(node) ? attention_rows_scratch(node, threads) : threads * attention_blocks_room(node);
}

inline void attention(const Node &node, Part &part) {
    by_rows(node) ? attention_by_rows(node, part) : attention_by_blocks(node, part);
}

} // namespace
