// The products of MUL_MAT: which kernel multiplies, by type of w, its layout and the rows of x.
//
//   w                  x as        one row                   few rows                      many rows
//   blocks in rows     bytes       product_bytes_few.h       the same, up to FEW8          product_bytes_many.h
//     AVX-512, MOST_WOVEN                                    product_bytes_side_by_side.h
//   blocks in panels   bytes       product_bytes_panels.h                                  product_bytes_many.h
//     AVX2, AVX-512                                          product_bytes_side_by_side.h
//   blocks, unfolded   bytes       product_bytes_few.h       the same, up to FEW8          product_bytes_many.h
//   f16, bf16          f16, bf16   product_halves.h          product_floats_few.h          product_floats_many.h
//   all of these, AMX  bf16        as above                  the same, up to FEW_TILED*    product_tiles.h
//   any                f32         product_floats_few.h      the same, up to FEW           product_floats_many.h
#pragma once

#include "product_bytes_few.h"
#include "product_bytes_side_by_side.h"
#include "product_tiles.h"

namespace {

// --- sums in f32 of products of f32, or of pairs of bf16 ----------------------------------------

#if defined(__AVX512BF16__)
// i[0] says that operands may be rounded. With one row of x the time is that of reading w. Weights in f16 are rounded
// too, which takes as long as what it saves where there are few rows.
inline bool wants_bf16(const Node &node) {
    const Operand &w = node.src[0];
    const int64_t rows = node.src[1].ne[1];
    const bool in_pairs = w.ne[0] % 2 == 0 && w.nb[1] % 4 == 0;
    if (!node.i[0] || (w.type != BF16 && w.type != F16)) return false;
    return rows > FEW || (w.type == BF16 && rows > 1 && in_pairs);
}
#endif

template <class Held> void mul_mat_held(const Node &node, Part &part) {
    if (node.src[1].ne[1] <= FEW) return mul_mat_floats_few<Held>(node, part);
#if defined(TP_TILES)
    if constexpr (Held::HELD > 1) return mul_mat_tiles(node, {fill_with_numbers, true}, part);
#endif
#if defined(TP_HALVES)
    if (node.src[0].type == F16) return mul_mat_floats_many<Halves<F16>>(node, part);
    if (node.src[0].type == BF16) return mul_mat_floats_many<Halves<BF16>>(node, part);
#endif
    mul_mat_floats_many<Held>(node, part);
}

template <class Held> int64_t mul_mat_held_scratch(const Node &node, int threads) {
    if (node.src[1].ne[1] <= FEW) return floats_few_scratch<Held>(node, threads);
#if defined(TP_TILES)
    if constexpr (Held::HELD > 1) return tiles_scratch(node, threads);
#endif
    return floats_many_scratch<Held>(node, threads);
}

inline void mul_mat_floats(const Node &node, Part &part) {
#if defined(__AVX512BF16__)
    if (wants_bf16(node)) return mul_mat_held<Bf16Pairs>(node, part);
#endif
    mul_mat_held<Floats>(node, part);
}

inline int64_t mul_mat_floats_scratch(const Node &node, int threads) {
#if defined(__AVX512BF16__)
    if (wants_bf16(node)) return mul_mat_held_scratch<Bf16Pairs>(node, threads);
#endif
    return mul_mat_held_scratch<Floats>(node, threads);
}

// --- products of bytes --------------------------------------------------------------------------

// The product for one type of weight, and its bytes of scratch; and for `matvec`, by layout of w, how a row of x is
// rounded, and the products of it with at most AT_ONCE rows, or with a panel.
struct ByteProduct {
    int type;
    void (*multiply)(const Node &node, Part &part);
    int64_t (*scratch)(const Node &node, int threads);
    void (*round)(const float *x, int64_t k, char *rounded);
    void (*rows)(const char *w, int64_t step, int64_t count, const char *rounded, int64_t k, float *out);
    void (*round_for_panels)(const float *x, int64_t k, char *rounded);
    void (*panel)(const char *w, const char *rounded, int64_t k, float *out);
};

#if defined(TP_INT8)

#if defined(TP_TILES)
// What experts multiply stays bytes, so that the rows of one node are rounded alike.
inline bool wants_tiles(const Node &node) {
    return node.op == MUL_MAT && node.src[1].ne[1] > (in_panels(node.src[0]) ? FEW_TILED_PANELS : FEW_TILED);
}
#endif

#if defined(__AVX2__)
template <int TYPE> bool is_side_by_side(const Node &node) {
#if defined(TP_TILES)
    if (wants_tiles(node)) return false;
#endif
    const int64_t m = node.src[1].ne[1];
    return m > 1 && m <= (in_panels(node.src[0]) ? MOST_SIDE_BY_SIDE<TYPE> : MOST_WOVEN<TYPE>);
}
#endif

// Many rows of x: as tiles of bf16 where the processor multiplies those, else as bytes.
template <class Source> void mul_mat_many(const Node &node, Part &part) {
#if defined(TP_TILES)
    if (wants_tiles(node)) return mul_mat_tiles(node, fill_with_blocks<Source>(), part);
#endif
#if defined(TP_PAIRS)
    if constexpr (WIDENS<Source::TYPE>) {
        if (node.src[1].ne[1] > FEW_WIDENED) return mul_mat_bytes_many<Source, 2>(node, part);
    }
#endif
    mul_mat_bytes_many<Source>(node, part);
}

template <int TYPE> int64_t many_scratch(const Node &node, int threads) {
#if defined(TP_TILES)
    if (wants_tiles(node)) return tiles_scratch(node, threads);
#endif
    return packed_size(node) + threads * many8_room<TYPE>(node.src[1].ne[0]);
}

template <int TYPE> void mul_mat_bytes(const Node &node, Part &part) {
    const int64_t m = node.src[1].ne[1];
#if defined(__AVX2__)
    if (is_side_by_side<TYPE>(node)) return mul_mat_bytes_side_by_side<TYPE>(node, part);
#endif
    if (in_panels(node.src[0])) {
        if (m == 1) return mul_mat_bytes_panels<TYPE>(node, part);
        return mul_mat_many<InPanels8<TYPE>>(node, part);
    }
    if (m <= FEW8) return mul_mat_bytes_few(node, few_bytes<TYPE>(), part);
    mul_mat_many<InRows8<TYPE>>(node, part);
}

template <int TYPE> int64_t mul_mat_bytes_scratch(const Node &node, int threads) {
    const int64_t k = node.src[1].ne[0], m = node.src[1].ne[1];
#if defined(__AVX2__)
    if (is_side_by_side<TYPE>(node)) return side_packed(node) + threads * side_room(k);
#endif
    if (in_panels(node.src[0]) && m == 1) return threads * panel_room(k);
    if (!in_panels(node.src[0]) && m <= FEW8) return threads * few8_room(k, m);
    return many_scratch<TYPE>(node, threads);
}

// The same for types that are unfolded, which lie in rows.
template <int TYPE> void mul_mat_unfolded(const Node &node, Part &part) {
    constexpr int KIND = kind_of<TYPE>();
    const int64_t m = node.src[1].ne[1];
    if (m > FEW8) return mul_mat_many<InRows8<KIND>>(node, part);
    if constexpr (IN_PAIRS<TYPE>) mul_mat_bytes_few(node, few_bytes<TYPE>(), part);
    else mul_mat_bytes_few(node, m == 1 ? one_row_bytes<TYPE>() : several_rows_bytes<TYPE>(), part);
}

template <int KIND> int64_t mul_mat_unfolded_scratch(const Node &node, int threads) {
    const int64_t k = node.src[1].ne[0], m = node.src[1].ne[1];
    if (m <= FEW8) return threads * few8_room(k, m);
    return many_scratch<KIND>(node, threads);
}

// Bytes of a rounded row of x, for rows or panels.
inline int64_t rounded_size(int64_t k) {
    const int64_t units = units_of(k) * MOST_UNIT8;
    return units > panel_room(k) ? units : panel_room(k);
}

template <int TYPE> void rows8(const char *w, int64_t step, int64_t count, const char *rounded, int64_t k, float *out) {
    rows_times8<TYPE, 1>(w, step, count, rounded, k, out, 0);
}

template <int TYPE> void panel8(const char *w, const char *rounded, int64_t k, float *out) {
    panel_dots<TYPE>(w, packed_row8<part_of<TYPE>()>(k, (char *)rounded), k, out);
}

template <int TYPE> constexpr ByteProduct byte_product() {
    return {
        TYPE, mul_mat_bytes<TYPE>, mul_mat_bytes_scratch<TYPE>,
        round8<TYPE>, rows8<TYPE>, round_for_panels<TYPE>, panel8<TYPE>,
    };
}

template <int TYPE> constexpr ByteProduct unfolded_product() {
    return {
        TYPE, mul_mat_unfolded<TYPE>, mul_mat_unfolded_scratch<kind_of<TYPE>()>,
        round8<TYPE>, rows8<TYPE>, nullptr, nullptr,
    };
}

constexpr ByteProduct BYTE_PRODUCTS[] = {
    byte_product<Q8_0>(), byte_product<Q4_0>(), byte_product<Q4_1>(), byte_product<Q5_0>(),
    byte_product<Q5_1>(), byte_product<IQ4_NL>(), byte_product<MXFP4>(), byte_product<Q2_K>(),
    byte_product<Q3_K>(), byte_product<Q4_K>(), byte_product<Q5_K>(), byte_product<Q6_K>(),
#define PRODUCT(TYPE) unfolded_product<TYPE>(),
    TYPES_IN_ROWS(PRODUCT)
#undef PRODUCT
};

// The products of bytes for a type; null where there are none.
inline const ByteProduct *byte_product_of(int type) {
    for (const ByteProduct &known : BYTE_PRODUCTS) {
        if (known.type == type) return &known;
    }
    return nullptr;
}

#else

inline int64_t rounded_size(int64_t) { return 0; }
inline const ByteProduct *byte_product_of(int) { return nullptr; }

#endif

// --- the op -------------------------------------------------------------------------------------

// src: w, x; i[0] says that x may be rounded.
inline void mul_mat(const Node &node, Part &part) {
    const ByteProduct *bytes = node.i[0] ? byte_product_of(node.src[0].type) : nullptr;
    bytes != nullptr ? bytes->multiply(node, part) : mul_mat_floats(node, part);
}

inline int64_t mul_mat_scratch(const Node &node, int threads) {
    const ByteProduct *bytes = node.i[0] ? byte_product_of(node.src[0].type) : nullptr;
    return bytes != nullptr ? bytes->scratch(node, threads) : mul_mat_floats_scratch(node, threads);
}

} // namespace
