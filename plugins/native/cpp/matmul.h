// Matrix products with sums in f32; x is rounded nowhere, or to bf16 where the weights are in it.
#pragma once

#include "many.h"

namespace {

// i[0] says that x may be rounded.
inline bool wants_bf16(const Node &node) {
#if defined(__AVX512BF16__)
    return node.i[0] && node.src[0].type == BF16;
#else
    (void)node;
    return false;
#endif
}

inline int64_t mul_mat_scratch(const Node &node, int threads) {
    if (node.src[1].ne[1] <= FEW) return few_scratch(node, threads);
#if defined(__AVX512BF16__)
    if (wants_bf16(node)) return many_scratch<Bf16Pairs>(node, threads);
#endif
    return many_scratch<Floats>(node, threads);
}

inline void mul_mat(const Node &node, Part &part) {
    if (node.src[1].ne[1] <= FEW) return mul_mat_few(node, part);
#if defined(__AVX512BF16__)
    if (wants_bf16(node)) return mul_mat_many<Bf16Pairs>(node, part);
#endif
    mul_mat_many<Floats>(node, part);
}

} // namespace
