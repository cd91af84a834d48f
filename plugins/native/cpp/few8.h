// Few rows of x, rounded, against rows of w where they lie.
#pragma once

#include "units8.h"

namespace {

#if defined(TP_INT8)

inline int64_t units_of(int64_t k) { return (k / GROUP + GROUPS8 - 1) / GROUPS8; }

// Past the end of a row everything is zero.
template <int TYPE> void round_row(const float *values, int64_t k, Unit8 *units) {
    constexpr int EACH = GROUP / part_of<TYPE>();
    for (int64_t g = 0; g < units_of(k) * GROUPS8; g++) {
        Unit8 &unit = units[g / GROUPS8];
        const int64_t at = g % GROUPS8;
        int8_t *codes = unit.codes + at * GROUP;
        int halves[2] = {0, 0};
        float d = 0;
        if (g < k / GROUP) d = round_group(values + g * GROUP, codes, halves);
        else std::memset(codes, 0, GROUP);
        for (int h = 0; h < EACH; h++) {
            unit.d[at * EACH + h] = d;
            unit.sums[at * EACH + h] = d * (float)(EACH == 2 ? halves[h] : halves[0] + halves[1]);
        }
        if (EXCESS<TYPE>) sum_fours(codes, -EXCESS<TYPE>, unit.shifts + at * 8);
    }
}

// Sums of R rows of w, `step` bytes apart, with M rows of x, `next` units apart.
template <int TYPE, int R, int M> struct Sums8 {
    typedef Block<TYPE> B;
    static constexpr int EIGHTS = B::HALVES ? 2 : 1;
    static constexpr int CHAINS = M == 1 ? 2 : 1; // so that additions need not wait for each other
    vf sums[R][M][CHAINS];
    Eight least[R][M];

    Sums8() {
        for (int r = 0; r < R; r++) {
            for (int j = 0; j < M; j++) {
                for (int c = 0; c < CHAINS; c++) sums[r][j][c] = vset(0);
                least[r][j] = eight_zeros();
            }
        }
    }

    // The first `groups` of a unit; those behind them are zero in x.
    void add(const byte *unit, int64_t step, const Unit8 *x, int64_t next, int groups = GROUPS8) {
        for (int r = 0; r < R; r++) {
            const byte *w = unit + r * step;
            Eight d[EIGHTS], m[EIGHTS], scales[M][EIGHTS];
            unit_scales<TYPE>(w, d, m);
            for (int j = 0; j < M; j++) {
                for (int e = 0; e < EIGHTS; e++) {
                    const Unit8 &xs = x[j * next];
                    scales[j][e] = times(d[e], load_eight(xs.d + 8 * e));
                    if (B::MIN) least[r][j] = plus_product(m[e], load_eight(xs.sums + 8 * e), least[r][j]);
                }
            }
#pragma GCC unroll 8
            for (int g = 0; g < GROUPS8; g += TOGETHER) {
                if (g >= groups) break;
                const auto codes = stored_groups<TYPE>(w, g);
                for (int j = 0; j < M; j++) {
                    vf &sum = sums[r][j][g / TOGETHER % CHAINS];
                    sum = add_groups<TYPE>(codes, x[j * next], scales[j], g, sum);
                }
            }
        }
    }

    float total(int r, int j) const {
        const float sum = vsum(CHAINS == 1 ? sums[r][j][0] : vadd(sums[r][j][0], sums[r][j][1 % CHAINS]));
        return B::MIN ? sum + sum_of(least[r][j]) : sum;
    }
};

// Products of R rows of w, `step` bytes apart, with M rows of x: out[j * out_step + r].
template <int TYPE, int R, int M> void dots8(const char *rows, int64_t step, const Unit8 *x, int64_t k, float *out, int64_t out_step) {
    typedef Block<TYPE> B;
    constexpr int64_t SIZE = UNIT_SIZE<TYPE>;
    const int64_t units = units_of(k), whole = k / (GROUP * GROUPS8);
    Sums8<TYPE, R, M> sums;
    const byte *unit = (const byte *)rows;
    for (int64_t u = 0; u < whole; u++, unit += SIZE) {
        prefetch_rows<R>(rows, step, (const char *)unit - rows, SIZE);
        sums.add(unit, step, x + u, units);
    }
    if (B::GROUPS == 1 && whole < units) {
        byte last[R * SIZE] = {};
        const int64_t groups = k / GROUP - whole * GROUPS8;
        for (int r = 0; r < R; r++) std::memcpy(last + r * SIZE, unit + r * step, groups * B::SIZE);
        sums.add(last, SIZE, x + whole, units, (int)groups);
    }
    for (int j = 0; j < M; j++) {
        for (int r = 0; r < R; r++) out[j * out_step + r] = sums.total(r, j);
    }
}

template <int TYPE> struct Few8 {
    typedef void (*Dots)(const char *, int64_t, const Unit8 *, int64_t, float *, int64_t);
    static constexpr Dots SEVERAL[FEW8] = {dots8<TYPE, 1, 1>, dots8<TYPE, 1, 2>, dots8<TYPE, 1, 3>, dots8<TYPE, 1, 4>};

    // Products of `count` rows of w, at most AT_ONCE, with m rows of x, at most FEW8. Where several threads wait for the
    // memory, one stream for each of them is up to a fifth faster than AT_ONCE streams; types with less to read have to
    // compute.
    static void rows(const char *w, int64_t step, int64_t count, const Unit8 *x, int64_t m, int64_t k, float *out, int64_t out_step, int threads) {
        if (m == 1 && count == AT_ONCE && (TYPE != Q8_0 || threads == 1)) return dots8<TYPE, AT_ONCE, 1>(w, step, x, k, out, 0);
        for (int64_t r = 0; r < count; r++) SEVERAL[m - 1](w + r * step, step, x, k, out + r, out_step);
    }
};

inline int64_t few8_room(int64_t k, int64_t m) { return m * units_of(k) * (int64_t)sizeof(Unit8) + aligned(k * 4); }

// Each thread rounds x for itself: that is quicker than to wait for each other.
template <int TYPE> void mul_few8(const Node &node, Part &part) {
    const Operand &w = node.src[0], &x = node.src[1], &out = node.out;
    const int64_t k = w.ne[0], n = w.ne[1], m = x.ne[1];
    char *room = part.scratch + part.thread * few8_room(k, m);
    Unit8 *rounded = (Unit8 *)room;
    float *copy = (float *)(rounded + m * units_of(k));
    Turns turns = turns_of_few(node, part);
    Span turn{0, 0};
    int64_t matrix = -1;
    for (int64_t item = 0;;) {
        if (item == turn.last) {
            if (part.stopped() || !turns.next(turn)) return;
            item = turn.first;
        }
        const int64_t i2 = item / n % x.ne[2], i3 = item / n / x.ne[2];
        if (matrix != item / n) {
            matrix = item / n;
            for (int64_t j = 0; j < m; j++) {
                read_row(x, {j, i2, i3}, copy);
                round_row<TYPE>(copy, k, rounded + j * units_of(k));
            }
        }
        const int64_t row = item % n, left = n - row < turn.last - item ? n - row : turn.last - item;
        const char *weights = at(w, row, i2 / (x.ne[2] / w.ne[2]), i3 / (x.ne[3] / w.ne[3]));
        const int64_t count = left < AT_ONCE ? left : AT_ONCE;
        Few8<TYPE>::rows(weights, w.nb[1], count, rounded, m, k, (float *)at(out, 0, i2, i3) + row, out.nb[1] / 4, part.threads);
        item += count;
    }
}

#endif

} // namespace
