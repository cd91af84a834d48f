// Products of rows of w, of any type that has a decoder, with few rows of x: dot products in f32.
#pragma once

#include "tile.h"

namespace {

constexpr int64_t PORTIONS = 4; // of each thread, so that one that is done helps the others
constexpr int64_t FEW = 8;      // rows of x up to which dot products are faster than tiles

// x as f32 rows without gaps: itself, or a copy at `room`.
inline bool is_plain_rows(const Operand &x) { return x.type == F32 && x.nb[0] == 4; }

inline int64_t aligned(int64_t bytes) { return (bytes + 63) / 64 * 64; }

inline int64_t packed_size(const Node &node) {
    const Operand &x = node.src[1];
    return aligned(x.ne[0] * x.ne[1] * x.ne[2] * x.ne[3] * 4);
}

constexpr int64_t DECODED = 2; // rows of w that are decoded at once

inline int64_t few_scratch(const Node &node, int threads) {
    const Operand &x = node.src[1];
    const int64_t copies = is_plain_rows(x) ? 0 : packed_size(node);
    return copies + (x.ne[1] > 1 ? threads * DECODED * aligned(x.ne[0] * 4) : 0);
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

// Products of R rows of w with M rows of x, both in floats and in steps of floats: out[j * out_step + r].
template <int R, int M> void products(const float *w, int64_t w_step, const float *x, int64_t x_step, int64_t k, float *out, int64_t out_step) {
    vf sums[R][M];
    for (int r = 0; r < R; r++) {
        for (int j = 0; j < M; j++) sums[r][j] = vset(0);
    }
    int64_t i = 0;
    for (; i + W <= k; i += W) {
        vf ws[R];
        for (int r = 0; r < R; r++) ws[r] = vload(w + r * w_step + i);
        for (int j = 0; j < M; j++) {
            const vf xs = vload(x + j * x_step + i);
            for (int r = 0; r < R; r++) sums[r][j] = vfma(ws[r], xs, sums[r][j]);
        }
    }
    for (int j = 0; j < M; j++) {
        for (int r = 0; r < R; r++) {
            float sum = vsum(sums[r][j]);
            for (int64_t rest = i; rest < k; rest++) sum += w[r * w_step + rest] * x[j * x_step + rest];
            out[j * out_step + r] = sum;
        }
    }
}

// The same for `count` rows of w, at most DECODED, and m rows of x.
inline void few_products(const float *w, int64_t w_step, int64_t count, const float *x, int64_t x_step, int64_t m, int64_t k, float *out, int64_t out_step) {
    typedef void (*Products)(const float *, int64_t, const float *, int64_t, int64_t, float *, int64_t);
    static constexpr int64_t MOST = 4;
    static constexpr Products BY_COUNT[DECODED][MOST] = {
        {products<1, 1>, products<1, 2>, products<1, 3>, products<1, 4>},
        {products<2, 1>, products<2, 2>, products<2, 3>, products<2, 4>},
    };
    for (int64_t j = 0; j < m; j += MOST) {
        const int64_t some = m - j < MOST ? m - j : MOST;
        BY_COUNT[count - 1][some - 1](w, w_step, x + j * x_step, x_step, k, out + j * out_step, out_step);
    }
}

// Few rows of x: dot products with the rows of w where they lie.
inline void mul_mat_few(const Node &node, Part &part) {
    const Operand &w = node.src[0], &out = node.out;
    Operand x = node.src[1];
    const RowType *type = row_type(w.type);
    const int64_t k = w.ne[0], n = w.ne[1], m = x.ne[1], row_size = aligned(k * 4) / 4;
    char *room = part.scratch;
    if (!is_plain_rows(x)) {
        const Span rows = share(row_count(x), part);
        for (int64_t row = rows.first; row < rows.last; row++) read_row(x, place(x, row), (float *)room + row * k);
        if (!part.barrier()) return;
        x.data = room, x.nb[0] = 4;
        for (int d = 1; d < 4; d++) x.nb[d] = x.nb[d - 1] * (d == 1 ? k : x.ne[d - 1]);
        room += packed_size(node);
    }
    float *decoded = (float *)room + part.thread * DECODED * row_size;
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
        int64_t count = left >= AT_ONCE ? AT_ONCE : 1;
        if (m == 1) {
            (count == 1 ? type->dot : type->dot4)(weights, w.nb[1], xs, k, results);
        } else {
            count = left < DECODED ? left : DECODED;
            for (int64_t r = 0; r < count; r++) type->decode(weights + r * w.nb[1], 0, k, decoded + r * row_size);
            few_products(decoded, row_size, count, xs, x.nb[1] / 4, m, k, results, out.nb[1] / 4);
        }
        item += count;
    }
}

} // namespace
