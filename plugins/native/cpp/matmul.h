// Matrix products: rows of w, of any type that has a decoder, against rows of x; sums in f32.
#pragma once

#include "tile.h"

namespace {

constexpr int64_t PORTIONS = 4;  // of each thread, so that one that is done helps the others
constexpr int64_t FEW = 4;       // rows of x up to which dot products are faster than tiles

// x as f32 rows without gaps: itself, or a copy at `room`.
inline bool is_plain_rows(const Operand &x) { return x.type == F32 && x.nb[0] == 4; }

inline int64_t aligned(int64_t bytes) { return (bytes + 63) / 64 * 64; }

inline int64_t packed_size(const Node &node) {
    const Operand &x = node.src[1];
    return aligned(x.ne[0] * x.ne[1] * x.ne[2] * x.ne[3] * 4);
}

inline int64_t mul_mat_scratch(const Node &node, int threads) {
    const Operand &x = node.src[1];
    if (x.ne[1] > FEW) return packed_size(node);
    const int64_t copies = is_plain_rows(x) ? 0 : packed_size(node);
    return copies + (x.ne[1] > 1 ? threads * aligned(x.ne[0] * 4) : 0);
}

// Rows of w for all rows of x alike, in portions: some for each thread, neither tiny nor huge.
inline Turns turns_of_few(const Node &node, const Part &part) {
    constexpr int64_t LEAST = 1 << 13, MOST = 1 << 17; // bytes of w
    const Operand &w = node.src[0], &x = node.src[1];
    const int64_t total = w.ne[1] * x.ne[2] * x.ne[3], row = w.nb[1] > 0 ? w.nb[1] : 1;
    const int64_t bytes = total * row / part.threads / PORTIONS;
    return Turns(total, AT_ONCE, (bytes < LEAST ? LEAST : bytes > MOST ? MOST : bytes) / row + 1, part);
}

inline void read_row(const Operand &x, const Place &p, float *out) {
    const char *row = at(x, p);
    if (x.nb[0] == (x.type == F32 ? 4 : 2)) return row_type(x.type)->decode(row, 0, x.ne[0], out);
    for (int64_t i = 0; i < x.ne[0]; i++) {
        const char *p = row + i * x.nb[0];
        out[i] = x.type == F32 ? *(const float *)p
                 : x.type == F16 ? half_to_float(*(const uint16_t *)p) : bf16_to_float(*(const uint16_t *)p);
    }
}

// Few rows of x: dot products with the rows of w where they lie.
inline void mul_mat_few(const Node &node, Part &part) {
    const Operand &w = node.src[0], &out = node.out;
    Operand x = node.src[1];
    const RowType *type = row_type(w.type);
    const int64_t k = w.ne[0], n = w.ne[1], m = x.ne[1];
    char *room = part.scratch;
    if (!is_plain_rows(x)) {
        const Span rows = share(row_count(x), part);
        for (int64_t row = rows.first; row < rows.last; row++) read_row(x, place(x, row), (float *)room + row * k);
        if (!part.barrier()) return;
        x.data = room, x.nb[0] = 4;
        for (int d = 1; d < 4; d++) x.nb[d] = x.nb[d - 1] * (d == 1 ? k : x.ne[d - 1]);
        room += packed_size(node);
    }
    float *decoded = (float *)(room + part.thread * aligned(k * 4));
    Turns turns = turns_of_few(node, part);
    Span turn{0, 0};
    for (int64_t item = 0;;) {
        if (item == turn.last) {
            if (part.stopped() || !turns.next(turn)) return;
            item = turn.first;
        }
        const int64_t i2 = item / n % x.ne[2], i3 = item / n / x.ne[2];
        const int64_t row = item % n, left = n - row < turn.last - item ? n - row : turn.last - item;
        const char *weights = at(w, row, i2 / (x.ne[2] / w.ne[2]), i3 / (x.ne[3] / w.ne[3]));
        const float *xs = (const float *)at(x, 0, i2, i3);
        float *results = (float *)at(out, 0, i2, i3) + row;
        const int64_t count = left >= AT_ONCE ? AT_ONCE : 1;
        if (m == 1) {
            (count == 1 ? type->dot : type->dot4)(weights, w.nb[1], xs, k, results);
        } else {
            for (int64_t r = 0; r < count; r++) {
                type->decode(weights + r * w.nb[1], 0, k, decoded);
                for (int64_t j = 0; j < m; j++) {
                    dots<F32, 1>((const char *)xs + j * x.nb[1], 0, decoded, k, results + r + j * out.nb[1] / 4);
                }
            }
        }
        item += count;
    }
}

// Rows of x side by side, tile by tile: element k of all rows of a tile, then element k + 1.
inline void pack(const Operand &x, float *packed, Part &part) {
    const int64_t k = x.ne[0], m = x.ne[1], tile = rows_of_tile(m);
    const Span rows = share(row_count(x), part);
    for (int64_t row = rows.first; row < rows.last; row++) {
        const Place p = place(x, row);
        const int64_t first = p.i1 / tile * tile, width = m - first < tile ? m - first : tile;
        float *out = packed + (row - p.i1 + first) * k + (p.i1 - first);
        const char *from = at(x, p);
        if (is_plain_rows(x)) {
            const float *values = (const float *)from;
            for (int64_t i = 0; i < k; i++) out[i * width] = values[i];
            continue;
        }
        for (int64_t i = 0; i < k; i++) {
            const char *element = from + i * x.nb[0];
            out[i * width] = x.type == F32   ? *(const float *)element
                             : x.type == F16 ? half_to_float(*(const uint16_t *)element)
                                             : bf16_to_float(*(const uint16_t *)element);
        }
    }
}

// Many rows of x: panels of w are decoded once and meet all tiles of x.
inline void mul_mat_many(const Node &node, Part &part) {
    const Operand &w = node.src[0], &x = node.src[1], &out = node.out;
    const RowType *type = row_type(w.type);
    const int64_t k = w.ne[0], n = w.ne[1], m = x.ne[1], tile = rows_of_tile(m);
    float *packed = (float *)part.scratch;
    pack(x, packed, part);
    if (!part.barrier()) return;
    alignas(64) float rows[COLUMNS * DEPTH], panel[DEPTH * COLUMNS];
    const int64_t panels = (n + COLUMNS - 1) / COLUMNS;
    const int64_t total = panels * x.ne[2] * x.ne[3];
    Turns turns(total, 1, total / part.threads / PORTIONS, part);
    Span all{0, 0};
    for (int64_t first = 0;;) {
        if (first == all.last) {
            if (!turns.next(all)) return;
            first = all.first;
        }
        const int64_t matrix = first / panels, i2 = matrix % x.ne[2], i3 = matrix / x.ne[2];
        const int64_t last = (matrix + 1) * panels < all.last ? (matrix + 1) * panels : all.last;
        const char *weights = at(w, 0, i2 / (x.ne[2] / w.ne[2]), i3 / (x.ne[3] / w.ne[3]));
        for (int64_t k0 = 0; k0 < k; k0 += DEPTH) {
            const int64_t depth = k - k0 < DEPTH ? k - k0 : DEPTH;
            for (int64_t item = first; item < last; item++) {
                if (part.stopped()) return;
                const int64_t column = item % panels * COLUMNS;
                const int64_t columns = n - column < COLUMNS ? n - column : COLUMNS;
                for (int64_t c = 0; c < COLUMNS; c++) {
                    // Past the last row of w, any row does: nobody looks at the result.
                    const int64_t row = column + (c < columns ? c : columns - 1);
                    type->decode(weights + row * w.nb[1], k0, depth, rows + c * DEPTH);
                }
                transpose(rows, depth, panel);
                for (int64_t j = 0; j < m; j += tile) {
                    const int64_t height = m - j < tile ? m - j : tile;
                    const float *xs = packed + (matrix * m + j) * k + k0 * height;
                    float *c = (float *)at(out, j, i2, i3) + column;
                    multiply_part((int)height, depth, xs, panel, COLUMNS, c, out.nb[1] / 4, k0 > 0, columns);
                }
            }
        }
        first = last;
    }
}

inline void mul_mat(const Node &node, Part &part) {
    if (node.src[1].ne[1] <= FEW) return mul_mat_few(node, part);
    mul_mat_many(node, part);
}

} // namespace
