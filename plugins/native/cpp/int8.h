// Products with x rounded to eight bits where the level has dot products of bytes, and others.
#pragma once

#include "few8.h"
#include "panels8.h"

namespace {

// The product for one type of weight, and its bytes of scratch; one row of x rounded, and its products with at most
// AT_ONCE rows of w; the same for a panel of w.
struct Kernel8 {
    int type;
    void (*multiply)(const Node &node, Part &part);
    int64_t (*scratch)(const Node &node, int threads);
    void (*round)(const float *x, int64_t k, char *rounded);
    void (*rows)(const char *w, int64_t step, int64_t count, const char *rounded, int64_t k, float *out);
    void (*round_for_panels)(const float *x, int64_t k, char *rounded);
    void (*panel)(const char *w, const char *rounded, int64_t k, float *out);
};

#if defined(TP_INT8)

#if defined(__AVX512VNNI__)
inline bool is_side_by_side(const Node &node) {
    const int64_t m = node.src[1].ne[1];
    return in_panels(node.src[0]) && m > 1 && m <= MOST_SIDE_BY_SIDE;
}
#endif

template <int TYPE> void multiply8(const Node &node, Part &part) {
    const int64_t m = node.src[1].ne[1];
#if defined(__AVX512VNNI__)
    if (is_side_by_side(node)) return mul_side_by_side<TYPE>(node, part);
#endif
    if (in_panels(node.src[0])) return m == 1 ? mul_panels8<TYPE>(node, part) : mul_many8<TYPE, unfold_panels8<TYPE>>(node, part);
    if (m <= FEW8) return mul_few8<TYPE>(node, part);
    mul_many8<TYPE, read_panel8<TYPE>>(node, part);
}

template <int TYPE> int64_t scratch8(const Node &node, int threads) {
    const int64_t k = node.src[1].ne[0], m = node.src[1].ne[1];
#if defined(__AVX512VNNI__)
    if (is_side_by_side(node)) return side_packed(node) + threads * side_room(k);
#endif
    if (in_panels(node.src[0]) && m == 1) return threads * panel_room(k);
    if (!in_panels(node.src[0]) && m <= FEW8) return threads * few8_room(k, m);
    return packed_size(node) + threads * many8_room<TYPE>(k);
}

// For rows or panels.
inline int64_t rounded_size(int64_t k) {
    const int64_t units = units_of(k) * (int64_t)sizeof(Unit8);
    return units > panel_room(k) ? units : panel_room(k);
}

template <int TYPE> void round8(const float *x, int64_t k, char *rounded) { round_row<TYPE>(x, k, (Unit8 *)rounded); }

template <int TYPE> void rows8(const char *w, int64_t step, int64_t count, const char *rounded, int64_t k, float *out) {
    rows_times8<TYPE>(w, step, count, (const Unit8 *)rounded, 1, k, out, 0);
}

template <int TYPE> void panel8(const char *w, const char *rounded, int64_t k, float *out) {
    panel_dots<TYPE>(w, packed_row8<part_of<TYPE>()>(k, (char *)rounded), k, out);
}

template <int TYPE> constexpr Kernel8 kernel8() {
    return {TYPE, multiply8<TYPE>, scratch8<TYPE>, round8<TYPE>, rows8<TYPE>, round_for_panels<TYPE>, panel8<TYPE>};
}

constexpr Kernel8 KERNELS8[] = {
    kernel8<Q8_0>(), kernel8<Q4_0>(), kernel8<Q4_1>(),   kernel8<Q5_0>(),
    kernel8<Q5_1>(), kernel8<IQ4_NL>(), kernel8<MXFP4>(), kernel8<Q2_K>(),
    kernel8<Q3_K>(), kernel8<Q4_K>(), kernel8<Q5_K>(),   kernel8<Q6_K>(),
};

// The kernels for a type; null where there are none.
inline const Kernel8 *kernel8_of(int type) {
    for (const Kernel8 &known : KERNELS8) {
        if (known.type == type) return &known;
    }
    return nullptr;
}

// Those for a node, where x may be rounded, as i[0] says.
inline const Kernel8 *kernel8_of(const Node &node) { return node.i[0] ? kernel8_of(node.src[0].type) : nullptr; }

inline void product(const Node &node, Part &part) {
    if (const Kernel8 *kernel = kernel8_of(node)) return kernel->multiply(node, part);
    mul_mat(node, part);
}

inline int64_t product_scratch(const Node &node, int threads) {
    if (const Kernel8 *kernel = kernel8_of(node)) return kernel->scratch(node, threads);
    return mul_mat_scratch(node, threads);
}

#else

inline int64_t rounded_size(int64_t) { return 0; }
inline const Kernel8 *kernel8_of(int) { return nullptr; }
inline void product(const Node &node, Part &part) { mul_mat(node, part); }
inline int64_t product_scratch(const Node &node, int threads) { return mul_mat_scratch(node, threads); }

#endif

} // namespace
