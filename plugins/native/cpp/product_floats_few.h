// Products of rows of w, of any type that has a decoder, with few rows of x: dot products in f32.
#pragma once

#include "product_halves.h"
#include "panels.h"
#include "product_tile.h"

namespace {

constexpr int64_t PORTIONS = 4; // of each thread, so that one that is done helps the others
constexpr int64_t FEW = 16;     // rows of x up to which dot products are faster than tiles
constexpr int64_t FEW8 = 4;     // the same where x is rounded to eight bits

// Whether x is read where it lies: f32 without gaps inside its rows.
inline bool is_plain_rows(const Operand &x) { return x.type == F32 && x.nb[0] == 4; }

inline int64_t aligned(int64_t bytes) { return (bytes + 63) / 64 * 64; }

inline int64_t packed_size(const Node &node) {
    return aligned(elements(node.src[1]) * 4);
}

// Rows of w that meet several rows of x at once, and are decoded at once: their sums fill the registers.
#if defined(__AVX512F__)
constexpr int64_t DECODED = 4;
#elif defined(__AVX2__)
constexpr int64_t DECODED = 3;
#else
constexpr int64_t DECODED = 2;
#endif

// Bytes for a thread: rows of w as f32, or a row of x in f16; and rows of w out of panels.
inline int64_t few_room(const Node &node) {
    const Operand &w = node.src[0];
    const bool one = node.src[1].ne[1] == 1;
    const int64_t first = !one ? DECODED * aligned(w.ne[0] * 4) : in_halves(w, node.i[0]) ? halves_size(w.ne[0]) : 0;
    return first + PlainRows::size(w, AT_ONCE);
}

template <class Held> int64_t floats_few_scratch(const Node &node, int threads) {
    const Operand &x = node.src[1];
    const int64_t copies = Held::HELD > 1 || !is_plain_rows(x) ? packed_size(node) : 0;
    return copies + threads * few_room(node);
}

// Rows of w that a thread takes at least.
inline int64_t rows_at_once(const Operand &w) { return in_panels(w) ? PANEL_ROWS : AT_ONCE; }

constexpr int64_t LEAST_PORTION = 1 << 13, MOST_PORTION = 1 << 17; // bytes

// Bytes between rows of w, up to what is more than a portion: the stride of a single row may be any number.
inline int64_t row_step(const Operand &w) {
    return w.nb[1] < 1 ? 1 : w.nb[1] > MOST_PORTION ? MOST_PORTION + 1 : w.nb[1];
}

// `total` rows of weights, each of `row` bytes, in portions: some for each thread, neither tiny nor huge.
inline Turns turns_of_rows(int64_t total, int64_t row, int64_t step, const Part &part) {
    const int64_t bytes = total * row / part.threads / PORTIONS;
    const int64_t portion = bytes < LEAST_PORTION ? LEAST_PORTION : bytes > MOST_PORTION ? MOST_PORTION : bytes;
    return Turns(total, step, portion / row + 1, part);
}

// Rows of w for all rows of x alike.
inline Turns turns_of_few(const Node &node, const Part &part) {
    const Operand &w = node.src[0], &x = node.src[1];
    return turns_of_rows(w.ne[1] * x.ne[2] * x.ne[3], row_step(w), rows_at_once(w), part);
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

// Rows of memory that are wanted soon: the one that lies `first` steps behind `rows`, and those behind it. `each` bytes
// of them are asked for with every vector of a row.
struct Soon {
    const char *rows;
    int64_t first, step, each;
};

// A vector of a row of plain type as `Held` multiplies it; `some` for the end of a row, the rest being zero.
template <class Held, int TYPE> inline vf load_held(const char *row, int64_t i) {
    if constexpr (Held::HELD > 1) return vload((const float *)row + i);
    else return load_floats<TYPE>(row, i);
}
template <class Held, int TYPE> inline vf load_held(const char *row, int64_t i, int some) {
    float values[W] = {};
    for (int j = 0; j < some; j++) values[j] = load_float<Held::HELD == 1 ? TYPE : F32>(row, i + j);
    return vload(values);
}

// Products of R rows of w, `step` bytes apart, with M rows of x of `k` fours of bytes: out[j * out_step + r]. Memory
// would be waited for in short bursts, so the next rows of w are asked for meanwhile.
template <int R, int M, class Held, int TYPE>
void products(const char *w, int64_t step, const Soon *soon, const float *x, int64_t x_step, int64_t k, float *out,
              int64_t out_step) {
    vf sums[R][M];
    for (int r = 0; r < R; r++) {
        for (int j = 0; j < M; j++) sums[r][j] = vset(0);
    }
    int64_t i = 0;
    for (int64_t done = 0; i + W <= k; i += W) {
        if (soon) {
            for (int r = 0; r < R; r++) prefetch_at<1>(soon->rows + done, soon->first + r, soon->step, 1);
            done += soon->each;
        }
        // A vector of each row of w meets one of each row of x: R + M loads for R * M products.
        vf ws[R];
        for (int r = 0; r < R; r++) ws[r] = load_held<Held, TYPE>(w + r * step, i);
        for (int j = 0; j < M; j++) {
            const vf xs = vload(x + j * x_step + i);
            for (int r = 0; r < R; r++) sums[r][j] = Held::add(xs, ws[r], sums[r][j]);
        }
    }
    // The ends of the rows, filled up with zeros.
    const int some = (int)(k - i);
    for (int j = 0; j < M && some; j++) {
        const vf xs = vload(x + j * x_step + i, some);
        for (int r = 0; r < R; r++)
            sums[r][j] = Held::add(xs, load_held<Held, TYPE>(w + r * step, i, some), sums[r][j]);
    }
    for (int j = 0; j < M; j++) {
        for (int r = 0; r < R; r++) out[j * out_step + r] = vsum(sums[r][j]);
    }
}

// The same for R rows of w and m rows of x.
template <int R, class Held, int TYPE>
void few_products(const char *w, int64_t step, const Soon &soon, const float *x, int64_t x_step, int64_t m, int64_t k,
                  float *out, int64_t out_step) {
    constexpr int64_t MOST = 4;
    static constexpr decltype(&products<R, 1, Held, TYPE>) BY_ROWS[MOST] = {
        products<R, 1, Held, TYPE>, products<R, 2, Held, TYPE>, products<R, 3, Held, TYPE>, products<R, 4, Held, TYPE>,
    };
    for (int64_t j = 0; j < m; j += MOST) {
        const int64_t some = m - j < MOST ? m - j : MOST;
        BY_ROWS[some - 1](w, step, j ? nullptr : &soon, x + j * x_step, x_step, k, out + j * out_step, out_step);
    }
}

// What is called for one row of w, and for DECODED of them. Rows of no plain type are decoded to f32 first.
struct FewProducts {
    typedef decltype(&few_products<1, Floats, F32>) Function;
    Function one, several;
    bool plain;
};
template <class Held, int TYPE> constexpr FewProducts few_of(bool plain) {
    return {few_products<1, Held, TYPE>, few_products<DECODED, Held, TYPE>, plain};
}
template <class Held> FewProducts few_of(int type) {
    if constexpr (Held::HELD > 1) return few_of<Held, BF16>(true);
    if (type == F16) return few_of<Held, F16>(true);
    if (type == BF16) return few_of<Held, BF16>(true);
    return few_of<Held, F32>(type == F32);
}

#if defined(__AVX512BF16__)
// Rounds a row to bf16, in its place; an odd one ends with zero.
inline void round_to_bf16(float *row, int64_t k) {
    uint16_t *out = (uint16_t *)row;
    for (int64_t i = 0; i < k; i += W) {
        const vf some = k - i < W ? vload(row + i, (int)(k - i)) : vload(row + i);
        const __m256i rounded = (__m256i)_mm512_cvtneps_pbh(some);
        // No further than the values that have been read.
        _mm256_mask_storeu_epi16(out + i, (__mmask16)(k - i < W ? (1u << (k - i + (k & 1))) - 1 : 0xffff), rounded);
    }
}
#endif

#if defined(__AVX512BF16__)
// f16 as bf16.
inline void round_to_bf16(const uint16_t *halves, int64_t n, uint16_t *out) {
    int64_t i = 0;
    for (; i + 2 * W <= n; i += 2 * W)
        _mm512_storeu_si512(out + i, (__m512i)_mm512_cvtne2ps_pbh(vload16(halves + i + W), vload16(halves + i)));
    for (; i + W <= n; i += W)
        _mm256_storeu_si256((__m256i *)(out + i), (__m256i)_mm512_cvtneps_pbh(vload16(halves + i)));
    for (; i < n; i++) out[i] = float_to_bf16(half_to_float(halves[i]));
}
#endif

// A row of x as `Held` wants it.
template <class Held> void read_held(const Operand &x, const Place &p, float *out) {
    read_row(x, p, out);
#if defined(__AVX512BF16__)
    if (Held::HELD > 1) round_to_bf16(out, x.ne[0]);
#endif
}

// x as rows that `Held` multiplies, without gaps, at `room`: threads share the work. False where the run ends.
template <class Held> bool copy_x(Operand &x, char *room, Part &part) {
    const int64_t k = x.ne[0];
    const Span rows = share(row_count(x), part);
    for (int64_t row = rows.first; row < rows.last; row++) {
        read_held<Held>(x, place(x, row), (float *)room + row * k);
    }
    if (!part.barrier()) return false;
    x.data = room, x.nb[0] = 4;
    for (int d = 1; d < 4; d++) x.nb[d] = x.nb[d - 1] * (d == 1 ? k : x.ne[d - 1]);
    return true;
}

// Few rows of x: dot products with the rows of w where they lie, or decoded.
template <class Held> void mul_mat_floats_few(const Node &node, Part &part) {
    const Operand &w = node.src[0], &out = node.out;
    Operand x = node.src[1];
    const RowType *type = row_type(w.type);
    const int64_t k = w.ne[0], n = w.ne[1], m = x.ne[1], row_size = aligned(k * 4) / 4;
    const FewProducts few = few_of<Held>(w.type);
    char *room = part.scratch;
    if (Held::HELD > 1 || !is_plain_rows(x)) {
        if (!copy_x<Held>(x, room, part)) return;
        room += packed_size(node);
    }
    room += part.thread * few_room(node);
    float *decoded = (float *)room;
    const PlainRows plain(w, room + few_room(node) - PlainRows::size(w, AT_ONCE));
    const bool halves = m == 1 && in_halves(w, node.i[0]);
    int64_t matrix = -1;
    float factor = 0;
    Turns turns = turns_of_few(node, part);
    Span turn{0, 0};
    for (int64_t item = 0;;) {
        if (item == turn.last) {
            if (part.stopped() || !turns.next(turn)) return;
            item = turn.first;
        }
        const int64_t i2 = item / n % x.ne[2], i3 = item / n / x.ne[2];
        const int64_t row = item % n, left = n - row < turn.last - item ? n - row : turn.last - item;
        // One row of x in f16, rounded once for each matrix.
        if (halves && matrix != item / n) {
            matrix = item / n;
            factor = round_to_halves(w.type, (const float *)at(x, 0, i2, i3), k, (uint16_t *)room);
        }
        if (factor != 0) {
            const char *weights = at(w, row, i2 / (x.ne[2] / w.ne[2]), i3 / (x.ne[3] / w.ne[3]));
            dots_of_halves(w.type, weights, left, (const uint16_t *)room, k, factor, (float *)at(out, 0, i2, i3) + row);
            item += left;
            continue;
        }
        // One row of x in f32: dot products with rows of w where they lie.
        const int64_t wanted = m == 1 ? AT_ONCE : DECODED, count = left >= wanted ? wanted : 1;
        const char *weights = plain.get(row, count, i2 / (x.ne[2] / w.ne[2]), i3 / (x.ne[3] / w.ne[3]));
        const float *xs = (const float *)at(x, 0, i2, i3);
        float *results = (float *)at(out, 0, i2, i3) + row;
        if (m == 1) {
            (count == 1 ? type->dot : type->dot4)(weights, w.nb[1], xs, k, results);
            item += count;
            continue;
        }
        // Several rows of x: rows of w that are blocks are decoded once for all of them.
        for (int64_t r = 0; r < count && !few.plain; r++) {
            type->decode(weights + r * w.nb[1], 0, k, decoded + r * row_size);
        }
        const Soon soon{weights, count, w.nb[1], W * Held::HELD * type->size / type->block};
        const char *rows = few.plain ? weights : (const char *)decoded;
        const int64_t step = few.plain ? w.nb[1] : row_size * 4;
        (count == 1 ? few.one : few.several)(rows, step, soon, xs, x.nb[1] / 4, m, k / Held::HELD, results,
                                             out.nb[1] / 4);
        item += count;
    }
}

} // namespace
