// Products with x rounded to eight bits where the level has dot products of bytes, and others.
#pragma once

#include "few8.h"
#include "many8.h"

namespace {

#if defined(TP_INT8)

// The product for one type of weight, and its bytes of scratch.
struct Kernel8 {
    int type;
    void (*multiply)(const Node &node, Part &part);
    int64_t (*scratch)(const Node &node, int threads);
};

template <int TYPE> void multiply8(const Node &node, Part &part) {
    if (node.src[1].ne[1] <= FEW8) return mul_few8<TYPE>(node, part);
    mul_many8<TYPE>(node, part);
}

template <int TYPE> int64_t scratch8(const Node &node, int threads) {
    const int64_t k = node.src[1].ne[0], m = node.src[1].ne[1];
    if (m <= FEW8) return threads * few8_room(k, m);
    return packed_size(node) + threads * many8_room<TYPE>(k);
}

template <int TYPE> constexpr Kernel8 kernel8() { return {TYPE, multiply8<TYPE>, scratch8<TYPE>}; }

constexpr Kernel8 KERNELS8[] = {
    kernel8<Q8_0>(), kernel8<Q4_0>(), kernel8<Q4_1>(),   kernel8<Q5_0>(),
    kernel8<Q5_1>(), kernel8<IQ4_NL>(), kernel8<MXFP4>(), kernel8<Q2_K>(),
    kernel8<Q3_K>(), kernel8<Q4_K>(), kernel8<Q5_K>(),   kernel8<Q6_K>(),
};

// The kernel for a node; null where there is none, or x may not be rounded, as i[0] says.
inline const Kernel8 *kernel8_of(const Node &node) {
    if (!node.i[0]) return nullptr;
    for (const Kernel8 &known : KERNELS8) {
        if (known.type == node.src[0].type) return &known;
    }
    return nullptr;
}

inline void product(const Node &node, Part &part) {
    if (const Kernel8 *kernel = kernel8_of(node)) return kernel->multiply(node, part);
    mul_mat(node, part);
}

inline int64_t product_scratch(const Node &node, int threads) {
    if (const Kernel8 *kernel = kernel8_of(node)) return kernel->scratch(node, threads);
    return mul_mat_scratch(node, threads);
}

#else

inline void product(const Node &node, Part &part) { mul_mat(node, part); }
inline int64_t product_scratch(const Node &node, int threads) { return mul_mat_scratch(node, threads); }

#endif

} // namespace
