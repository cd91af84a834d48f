// Matrix products with sums in f32; x is rounded nowhere, or to bf16 where the weights are in it.
#pragma once

#include "many.h"

namespace {

template <class Held> struct Products {
    static int64_t scratch(const Node &node, int threads) {
        return node.src[1].ne[1] <= FEW ? few_scratch<Held>(node, threads) : many_scratch<Held>(node, threads);
    }
    static void multiply(const Node &node, Part &part) {
        node.src[1].ne[1] <= FEW ? mul_mat_few<Held>(node, part) : mul_mat_many<Held>(node, part);
    }
};

#if defined(__AVX512BF16__)
// i[0] says that operands may be rounded. One row of x waits for the memory alone. Weights in f16 are rounded too, which
// takes as long as what it saves where there are few rows.
inline bool wants_bf16(const Node &node) {
    const Operand &w = node.src[0];
    const int64_t rows = node.src[1].ne[1];
    const bool in_pairs = w.ne[0] % 2 == 0 && w.nb[1] % 4 == 0;
    if (!node.i[0] || (w.type != BF16 && w.type != F16)) return false;
    return rows > FEW || (w.type == BF16 && rows > 1 && in_pairs);
}
#endif

inline int64_t mul_mat_scratch(const Node &node, int threads) {
#if defined(__AVX512BF16__)
    if (wants_bf16(node)) return Products<Bf16Pairs>::scratch(node, threads);
#endif
    return Products<Floats>::scratch(node, threads);
}

inline void mul_mat(const Node &node, Part &part) {
#if defined(__AVX512BF16__)
    if (wants_bf16(node)) return Products<Bf16Pairs>::multiply(node, part);
#endif
    Products<Floats>::multiply(node, part);
}

} // namespace
