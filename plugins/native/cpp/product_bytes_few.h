// Few rows of x, rounded, against rows of w where they lie.
#pragma once

#include "product_bytes_pairs.h"
#include "product_bytes_unfolded.h"
#include "product_floats_few.h"

namespace {

#if defined(TP_INT8)

inline int64_t units_of(int64_t k) { return (k / GROUP + GROUPS8 - 1) / GROUPS8; }

// Past the end of a row everything is zero.
template <int TYPE> void round_row(const float *values, int64_t k, Unit8<TYPE> *units) {
    constexpr int EACH = GROUP / part_of<TYPE>();
    static_assert(sizeof(Unit8<TYPE>) <= MOST_UNIT8, "as much as rows of x have room for");
    for (int64_t g = 0; g < units_of(k) * GROUPS8; g++) {
        Unit8<TYPE> &unit = units[g / GROUPS8];
        const int64_t at = g % GROUPS8;
        alignas(32) int8_t codes[GROUP] = {};
        int halves[2] = {0, 0};
        float d = 0;
        if (g < k / GROUP) d = round_group(values + g * GROUP, codes, halves);
        for (int e = 0; e < 4; e++) std::memcpy(unit.codes + place_of_eight<TYPE>((int)at, e), codes + e * 8, 8);
        for (int h = 0; h < EACH; h++) {
#if defined(__AVX512VNNI__)
            if (FOLDS_SCALES<TYPE>) {
                unit.sums[folded_part((int)at * EACH + h)] = d;
                continue;
            }
#endif
            unit.sums[at * EACH + h] = d * (float)(EACH == 2 ? halves[h] : halves[0] + halves[1]);
        }
        if constexpr (IN_PAIRS<TYPE>) {
            put_scale<TYPE>(unit, (int)at, d);
            continue;
        }
        for (int h = 0; h < EACH; h++) unit.d[at * EACH + h] = d;
        if (EXCESS<TYPE>) write_shifts(codes, -EXCESS<TYPE>, unit.shifts + at * 8);
    }
}

// Sums of a row of w with M rows of x, `next` units apart.
template <int TYPE, int M> struct Sums8 {
    typedef Block<TYPE> B;
    static constexpr int EIGHTS = B::HALVES ? 2 : 1;
    static constexpr bool SHIFTS = M == 1 && shifts_by_sums<TYPE>();
    static constexpr int CHAINS = SHIFTS ? 4 : M == 1 ? 2 : 1; // so that additions need not wait for each other
    vf sums[M][CHAINS];
    Eight least[M];

    Sums8() {
        for (int j = 0; j < M; j++) {
            for (int c = 0; c < CHAINS; c++) sums[j][c] = vset(0);
            least[j] = eight_zeros();
        }
    }

    // The first `groups` of a unit; those behind them are zero in x.
    void add(const byte *unit, const Unit8<TYPE> *x, int64_t next, int groups = GROUPS8) {
#if defined(__AVX512VNNI__)
        if constexpr (M == 1 && FOLDS_SCALES<TYPE>) {
            const vf scales = vmul(vset(B::factor(unit)), vload(x->sums));
            sums[0][0] = vfma(dots_of_unit<TYPE>(Found<TYPE>(unit), *x, scales_to_fold(unit)), scales, sums[0][0]);
            return;
        }
#endif
#if defined(TP_PAIRS)
        if constexpr (M == 1 && SCALES_PAIRS<TYPE>) {
            sums[0][0] = vadd(sums[0][0], dots_of_unit<TYPE>(unit, *x));
            return;
        }
#endif
        [[maybe_unused]] const bool folds = M == 1 && FOLDS<TYPE> && groups == GROUPS8;
        Eight d[EIGHTS], m[EIGHTS], scales[M][EIGHTS];
        unit_scales<TYPE>(unit, d, m, groups);
        for (int j = 0; j < M; j++) {
            for (int e = 0; e < EIGHTS; e++) {
                const Unit8<TYPE> &xs = x[j * next];
                scales[j][e] = times(d[e], load_eight(xs.d + 8 * e));
                if (B::MIN) least[j] = plus_product(m[e], load_eight(xs.sums + 8 * e), least[j]);
                if (SHIFTS) least[j] = plus_product(d[e], load_eight(xs.sums + 8 * e), least[j]);
            }
#if defined(__AVX2__)
            if (M == 1 && !folds) in_memory(scales[j]);
#endif
        }
        const Found<TYPE> source(unit);
#if defined(__AVX512VNNI__)
        if constexpr (M == 1 && FOLDS<TYPE>) {
            if (folds) {
                sums[0][0] = vfma(dots_of_unit<TYPE>(source, *x), folded_scales<TYPE>(scales[0]), sums[0][0]);
                return;
            }
        }
#endif
#pragma GCC unroll 8
        for (int g = 0; g < GROUPS8; g += TOGETHER) {
            if (g >= groups) break;
            const auto codes = groups_of<TYPE>(source, g, groups);
            for (int j = 0; j < M; j++) {
                vf &sum = sums[j][g / TOGETHER % CHAINS];
                sum = add_groups<TYPE, !SHIFTS>(codes, x[j * next], scales[j], g, sum);
            }
        }
    }

    float total(int j) const {
        vf all = CHAINS == 1 ? sums[j][0] : vadd(sums[j][0], sums[j][1 % CHAINS]);
        if (CHAINS == 4) all = vadd(all, vadd(sums[j][2 % CHAINS], sums[j][3 % CHAINS]));
        const float sum = vsum(all);
        if (SHIFTS) return sum - (float)EXCESS<TYPE> * sum_of(least[j]);
        return B::MIN ? sum + sum_of(least[j]) : sum;
    }
};

#if defined(__AVX2__)
template <int TYPE, int M> using SumsOf = std::conditional_t<IN_PAIRS<TYPE>, PairSums8<TYPE, M>, Sums8<TYPE, M>>;
#else
template <int TYPE, int M> using SumsOf = Sums8<TYPE, M>;
#endif

// Products of R rows of w, `apart` bytes apart, with M rows of x: out[r * out_apart + j * out_step].
template <int TYPE, int M, int R>
inline __attribute__((always_inline)) void dots8(const char *row, int64_t apart, const Unit8<TYPE> *x, int64_t k,
                                                 float *out, int64_t out_apart, int64_t out_step) {
    typedef Block<TYPE> B;
    constexpr int64_t SIZE = UNIT_SIZE<TYPE>;
    const int64_t units = units_of(k), whole = k / (GROUP * GROUPS8);
    SumsOf<TYPE, M> sums[R];
    for (int64_t u = 0; u < whole; u++) {
#pragma GCC unroll 4
        for (int r = 0; r < R; r++) {
            const char *unit = row + r * apart + u * SIZE;
            prefetch_at<2>(unit, 1, AHEAD / R, SIZE);
            sums[r].add((const byte *)unit, x + u, units);
        }
    }
    if (B::GROUPS < GROUPS8 && whole < units) {
        const int64_t groups = k / GROUP - whole * GROUPS8;
#pragma GCC unroll 4
        for (int r = 0; r < R; r++) {
            const char *unit = row + r * apart + whole * SIZE;
            prefetch_at<2>(unit, 1, AHEAD / R, SIZE * groups / GROUPS8);
            sums[r].add((const byte *)unit, x + whole, units, (int)groups);
        }
    }
#pragma GCC unroll 4
    for (int r = 0; r < R; r++) {
        for (int j = 0; j < M; j++) out[r * out_apart + j * out_step] = sums[r].total(j);
    }
}

// Rows of w that meet one row of x side by side, each in a stream of its own. One thread of an Intel Xeon with AMX
// reads four streams faster than one: 1.17 times as fast with q8_0, 1.14 with q4_K and 1.10 with q6_K (4096 x 4096,
// beyond the caches); four rows that follow each other were slower, 0.7 to 0.9. One of a Zen 5 read four streams at
// 0.87 to 1.08 of the speed of one.
#if defined(__AMX_BF16__)
constexpr int STREAMS8 = 4;
#else
constexpr int STREAMS8 = 1;
#endif

// Products of `count` rows of w, `step` bytes apart, with m rows of x, at most FEW8.
template <int TYPE, int M>
void rows_times8(const char *w, int64_t step, int64_t count, const char *x, int64_t k, float *out, int64_t out_step) {
    constexpr int R = M == 1 ? STREAMS8 : 1;
    const auto *units = (const Unit8<TYPE> *)x;
    const int64_t each = count / R;
    for (int64_t r = 0; r < each; r++) {
        dots8<TYPE, M, R>(w + r * step, each * step, units, k, out + r, each, out_step);
    }
    for (int64_t r = R * each; r < count; r++) dots8<TYPE, M, 1>(w + r * step, 0, units, k, out + r, 0, out_step);
}
template <int TYPE>
void rows_times8(const char *w, int64_t step, int64_t count, const char *x, int64_t m, int64_t k, float *out,
                 int64_t out_step) {
    static constexpr decltype(&rows_times8<TYPE, 1>) SEVERAL[FEW8] = {rows_times8<TYPE, 1>, rows_times8<TYPE, 2>,
                                                                      rows_times8<TYPE, 3>, rows_times8<TYPE, 4>};
    SEVERAL[m - 1](w, step, count, x, k, out, out_step);
}

// Products of a row of w with M rows of x, unit by unit of KIND.
template <int KIND, int M>
void unfolded_dots8(const Unfolding &how, const char *row, const char *rounded, int64_t k, float *out,
                    int64_t out_step) {
    const auto *x = (const Unit8<KIND> *)rounded;
    alignas(64) byte room[UNIT_SIZE<KIND>];
    const int64_t units = units_of(k);
    Sums8<KIND, M> sums;
    for (int64_t u = 0; u < units; u++, row += how.size) {
        const int64_t left = k / GROUP - u * GROUPS8;
        const int groups = left < GROUPS8 ? (int)left : GROUPS8;
        prefetch(row, how.size);
        how.unfold((const byte *)row, groups, room);
        sums.add(room, x + u, units, groups);
    }
    for (int j = 0; j < M; j++) out[j * out_step] = sums.total(j);
}

template <int KIND>
void unfolded_times8(const Unfolding &how, const char *w, int64_t step, int64_t count, const char *x, int64_t m,
                     int64_t k, float *out, int64_t out_step) {
    static constexpr decltype(&unfolded_dots8<KIND, 2>) SEVERAL[FEW8 - 1] = {
        unfolded_dots8<KIND, 2>, unfolded_dots8<KIND, 3>, unfolded_dots8<KIND, 4>};
    for (int64_t r = 0; r < count; r++) SEVERAL[m - 2](how, w + r * step, x, k, out + r, out_step);
}

// What few rows of x want for a type of w: how a row of x is rounded, and the products of some rows of w with m of x.
struct FewBytes {
    void (*round)(const float *values, int64_t k, char *units);
    int64_t unit; // bytes of 256 values
    void (*times)(const char *w, int64_t step, int64_t count, const char *x, int64_t m, int64_t k, float *out,
                  int64_t out_step);
};

template <int TYPE> void round8(const float *values, int64_t k, char *units) {
    round_row(values, k, (Unit8<TYPE> *)units);
}
template <int TYPE> constexpr FewBytes few_bytes() { return {round8<TYPE>, sizeof(Unit8<TYPE>), rows_times8<TYPE>}; }

// The same for types that are unfolded: one row of x meets codes where they lie.
template <int TYPE>
void one_row8(const char *w, int64_t step, int64_t count, const char *x, int64_t, int64_t k, float *out, int64_t) {
    rows_times8<TYPE, 1>(w, step, count, x, k, out, 0);
}
template <int TYPE>
void several_rows8(const char *w, int64_t step, int64_t count, const char *x, int64_t m, int64_t k, float *out,
                   int64_t out_step) {
    unfolded_times8<kind_of<TYPE>()>(unfolding<TYPE>(), w, step, count, x, m, k, out, out_step);
}
template <int TYPE> constexpr FewBytes one_row_bytes() { return {round8<TYPE>, sizeof(Unit8<TYPE>), one_row8<TYPE>}; }
template <int TYPE> constexpr FewBytes several_rows_bytes() {
    constexpr int KIND = kind_of<TYPE>();
    return {round8<KIND>, sizeof(Unit8<KIND>), several_rows8<TYPE>};
}

inline int64_t few8_room(int64_t k, int64_t m) { return m * units_of(k) * MOST_UNIT8 + aligned(k * 4); }

// Each thread rounds x for itself: that is quicker than to wait for each other.
inline void mul_mat_bytes_few(const Node &node, const FewBytes &few, Part &part) {
    const Operand &w = node.src[0], &x = node.src[1], &out = node.out;
    const int64_t k = w.ne[0], n = w.ne[1], m = x.ne[1];
    char *room = part.scratch + part.thread * few8_room(k, m);
    const int64_t row_size = units_of(k) * few.unit;
    float *copy = (float *)(room + aligned(m * row_size));
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
                few.round(copy, k, room + j * row_size);
            }
        }
        const int64_t row = item % n, left = n - row < turn.last - item ? n - row : turn.last - item;
        const char *weights = at(w, row, i2 / (x.ne[2] / w.ne[2]), i3 / (x.ne[3] / w.ne[3]));
        few.times(weights, w.nb[1], left, room, m, k, (float *)at(out, 0, i2, i3) + row, out.nb[1] / 4);
        item += left;
    }
}

#endif

} // namespace
