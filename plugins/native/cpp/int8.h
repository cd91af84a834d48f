// Products with x rounded to eight bits where the level has dot products of bytes, and others.
#pragma once

#include "few8.h"
#include "many8.h"

namespace {

#if defined(TP_INT8)

inline int64_t int8_scratch(const Node &node, int threads) {
    const int64_t k = node.src[1].ne[0], m = node.src[1].ne[1];
    if (m <= FEW8) return threads * few8_room(k, m);
    return packed_size(node) + threads * k * 4;
}

template <int TYPE> void product_int8(const Node &node, Part &part) {
    if (node.src[1].ne[1] <= FEW8) return mul_few8<TYPE>(node, part);
    mul_many8<TYPE>(node, part);
}

// The kernel for a type; null where there is none.
inline void (*int8_kernel(int type))(const Node &, Part &) {
    switch (type) {
    case Q8_0: return product_int8<Q8_0>;
    case Q4_0: return product_int8<Q4_0>;
    case Q4_1: return product_int8<Q4_1>;
    case Q5_0: return product_int8<Q5_0>;
    case Q5_1: return product_int8<Q5_1>;
    case IQ4_NL: return product_int8<IQ4_NL>;
    case MXFP4: return product_int8<MXFP4>;
    case Q2_K: return product_int8<Q2_K>;
    case Q3_K: return product_int8<Q3_K>;
    case Q4_K: return product_int8<Q4_K>;
    case Q5_K: return product_int8<Q5_K>;
    case Q6_K: return product_int8<Q6_K>;
    default: return nullptr;
    }
}

#else

inline int64_t int8_scratch(const Node &, int) { return 0; }
inline void (*int8_kernel(int))(const Node &, Part &) { return nullptr; }

#endif

// i[0] says that x may be rounded.
inline bool wants_int8(const Node &node) { return node.i[0] && int8_kernel(node.src[0].type) != nullptr; }

inline void product(const Node &node, Part &part) {
    if (wants_int8(node)) return int8_kernel(node.src[0].type)(node, part);
    mul_mat(node, part);
}

inline int64_t product_scratch(const Node &node, int threads) {
    return wants_int8(node) ? int8_scratch(node, threads) : mul_mat_scratch(node, threads);
}

} // namespace
