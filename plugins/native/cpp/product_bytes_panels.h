// Products of panels of w with x rounded to bytes: the lanes of a vector are rows of w.
#pragma once

#include "panel_codes.h"
#include "product_bytes_many.h"

namespace {

#if defined(TP_INT8)

// A row of x as products with panels need it.
template <int PART> Packed8 packed_row8(int64_t k, char *room) {
    const Operand row{nullptr, {k, 1, 1, 1}, {}, F32, 0};
    return packed8<PART>(row, room);
}

template <int TYPE> void round_for_panels(const float *x, int64_t k, char *room) {
    constexpr int PART = part_of<TYPE>();
    const Packed8 packed = packed_row8<PART>(k, room);
    pack_row8<PART, WHOLE<PART, chain_of<TYPE>()>>(x, k, packed, 0, 1, 0, EXCESS<TYPE>);
}

// Dot products of part `p` of a slice of a block of sixteen rows with M rows of x.
template <int TYPE, int M>
inline __attribute__((always_inline)) void part_dots8(const byte *block, int p, int slice, const int8_t *values,
                                                      const int32_t *shifts, vi (&dots)[M]) {
    constexpr int FOURS = part_of<TYPE>() / 4;
#if defined(TP_PAIRS)
    constexpr int CHAIN = chain_of<TYPE>();
    if constexpr (CHAIN > 0) {
        constexpr bool ALL = CHAIN == FOURS;
        for (int j = 0; j < M && !ALL; j++) dots[j] = iset(EXCESS<TYPE> ? shifts[j] : 0);
#pragma GCC unroll 4
        for (int first = 0; first < FOURS; first += CHAIN) {
            vi pairs[M];
            for (int j = 0; j < M; j++) pairs[j] = iset(ALL && EXCESS<TYPE> ? shifts[j] : 0);
#pragma GCC unroll 8
            for (int v = first; v < first + CHAIN; v++) {
                const int code = p * FOURS + v;
                const vi codes = panel_codes<TYPE>(block, code / 8, code % 8, slice);
                for (int j = 0; j < M; j++) pairs[j] = add_pairs(pairs[j], codes, four_of(values + 4 * (v * M + j)));
            }
            for (int j = 0; j < M; j++) {
                const vi fours = pairs_to_fours(pairs[j]);
                dots[j] = ALL ? fours : iadd(dots[j], fours);
            }
        }
        return;
    }
#endif
    for (int j = 0; j < M; j++) dots[j] = iset(EXCESS<TYPE> ? shifts[j] : 0);
#pragma GCC unroll 8
    for (int v = 0; v < FOURS; v += 2, values += 8 * M) {
        const int code = p * FOURS + v;
        const vi codes = panel_codes<TYPE>(block, code / 8, code % 8, slice);
        const vi next = panel_codes<TYPE>(block, code / 8, code % 8 + 1, slice);
        for (int j = 0; j < M; j++)
            dots[j] = dot_bytes<SIGNED<TYPE>>(dots[j], codes, four_of(values + 4 * j), next,
                                              four_of(values + 4 * M + 4 * j));
    }
}

// Adds the products of a slice of a block of sixteen rows, which is code `i` and those behind it, with M rows of x.
template <int TYPE, int M>
inline __attribute__((always_inline)) void add_block8(const byte *block, int slice, int64_t i, const Packed8 &x,
                                                      vf (&sums)[M]) {
    typedef Block<TYPE> B;
    constexpr int PART = part_of<TYPE>(), PARTS = GROUP / PART * B::GROUPS;
#pragma GCC unroll 16
    for (int p = 0; p < PARTS; p++) {
        const int64_t at = (i / PART + p) * M;
        const int8_t *values = x.values + (i + p * PART) * M;
        vi dots[M];
        part_dots8<TYPE>(block, p, slice, values, x.shifts + at, dots);
        vf d, m;
        panel_scale<TYPE>(block, p, slice, d, m);
        for (int j = 0; j < M; j++) sums[j] = vfma(ifloat(dots[j]), vmul(d, vset(x.d[at + j])), sums[j]);
        for (int j = 0; B::MIN && j < M; j++) sums[j] = vfma(m, vset(x.sums[at + j]), sums[j]);
    }
}

// The products of N slices of a panel, from `slice` on, with M rows of x.
template <int TYPE, int N, int M>
void panel_times8(const char *panel, int slice, int64_t k, const Packed8 &x, vf (*out)[M]) {
    constexpr int64_t SIZE = Block<TYPE>::SIZE * PANEL_ROWS, WIDE = GROUP * Block<TYPE>::GROUPS;
    vf sums[N][M];
    for (int s = 0; s < N; s++) {
        for (int j = 0; j < M; j++) sums[s][j] = vset(0);
    }
    for (int64_t i = 0; i < k; i += WIDE, panel += SIZE) {
        const byte *block = (const byte *)panel;
        // Slices of long rows are read from the cache again. Small blocks whose slices meet x together come faster
        // where nothing is asked for.
        if (N == 1 && slice == 0) prefetch(panel, SIZE);
        for (int s = 0; s < N; s++) add_block8<TYPE>(block, slice + s, i, x, sums[s]);
    }
    for (int s = 0; s < N; s++) {
        for (int j = 0; j < M; j++) out[s][j] = sums[s][j];
    }
}

// Products of the rows of a panel with one row of x.
template <int TYPE> void panel_dots(const char *panel, const Packed8 &x, int64_t k, float *out) {
    typedef Block<TYPE> B;
    constexpr int PART = part_of<TYPE>(), EACH = GROUP / PART;
    constexpr int64_t SIZE = B::SIZE * PANEL_ROWS;
    constexpr bool S = SIGNED<TYPE>;
    const byte *block = (const byte *)panel;
#if defined(TP_PAIRS)
    if constexpr (chain_of<TYPE>() > 0) {
        vf all[SLICES][1];
        panel_times8<TYPE, SLICES, 1>(panel, 0, k, x, all);
        for (int s = 0; s < SLICES; s++) vstore(out + s * W, all[s][0]);
        return;
    }
#endif
    vf sums[SLICES][2], least[SLICES];
    for (int s = 0; s < SLICES; s++) sums[s][0] = sums[s][1] = least[s] = vset(0);
    for (int64_t i = 0; i < k; i += GROUP * B::GROUPS, block += SIZE) {
        prefetch((const char *)block, SIZE);
#pragma GCC unroll 8
        for (int g = 0; g < B::GROUPS; g++) {
            const int8_t *values = x.values + i + g * GROUP;
#pragma GCC unroll 2
            for (int h = 0; h < EACH; h++) {
                const int p = g * EACH + h;
                const int64_t at = i / PART + p;
                for (int s = 0; s < SLICES; s++) {
                    vi first = iset(EXCESS<TYPE> ? x.shifts[at] : 0), second = iset(0);
#pragma GCC unroll 2
                    for (int v = h * PART / 4; v < (h + 1) * PART / 4; v += 4) {
                        first = dot_bytes<S>(first, panel_codes<TYPE>(block, g, v, s), four_of(values + 4 * v),
                                             panel_codes<TYPE>(block, g, v + 1, s), four_of(values + 4 * v + 4));
                        second =
                            dot_bytes<S>(second, panel_codes<TYPE>(block, g, v + 2, s), four_of(values + 4 * v + 8),
                                         panel_codes<TYPE>(block, g, v + 3, s), four_of(values + 4 * v + 12));
                    }
                    vf d, m;
                    panel_scale<TYPE>(block, p, s, d, m);
                    sums[s][p % 2] = vfma(ifloat(iadd(first, second)), vmul(d, vset(x.d[at])), sums[s][p % 2]);
                    if (B::MIN) least[s] = vfma(m, vset(x.sums[at]), least[s]);
                }
            }
        }
    }
    for (int s = 0; s < SLICES; s++) vstore(out + s * W, vadd(vadd(sums[s][0], sums[s][1]), least[s]));
}

// The scales and minima of a slice of a block as those of columns of a panel of codes; pointers are those of the block.
template <int TYPE> inline void unfold_scales8(const byte *block, int slice, float *ds, float *ms) {
    constexpr int PARTS = Block<TYPE>::GROUPS * GROUP / part_of<TYPE>();
#pragma GCC unroll 16
    for (int p = 0; p < PARTS; p++) {
        vf d, m;
        panel_scale<TYPE>(block, p, slice, d, m);
        vstore(ds + p * COLUMNS, d);
        if (Block<TYPE>::MIN) vstore(ms + p * COLUMNS, m);
    }
}

// Rows of w in panels, two of these or one, as panels of codes: as InRows8.
template <int T> struct InPanels8 {
    static constexpr int TYPE = T;
    static constexpr bool PANELS = true;
    static constexpr bool FACTORS = false;

    static void read(const Operand &w, const char *matrix, int64_t first, int64_t columns, int64_t k0, int64_t depth,
                     const Panel8<part_of<TYPE>()> &out) {
        constexpr int64_t SIZE = Block<TYPE>::SIZE * PANEL_ROWS;
        for (int64_t column = 0; column < COLUMNS; column += TAKEN) {
            // Past the last row, any row does.
            const int64_t row0 = first + (column < columns ? column : 0);
            const int slice = TAKEN < PANEL_ROWS ? (int)(row0 % PANEL_ROWS) / W : 0;
            const char *panel = matrix + (row0 - slice * W) * w.nb[1];
            const byte *block = (const byte *)panel + k0 / WIDE * SIZE;
            for (int64_t i = 0; i < depth; i += WIDE, block += SIZE) {
                prefetch((const char *)block, SIZE);
                unfold(block, i, column, slice, out);
            }
        }
    }

  private:
    static constexpr int GROUPS = Block<TYPE>::GROUPS, WIDE = GROUP * GROUPS;
    static constexpr int64_t TAKEN = COLUMNS < PANEL_ROWS ? COLUMNS : PANEL_ROWS; // rows of each panel

    // A block of a panel, of the slices from `slice` on, as columns from `lane` on, from code `i` on.
    static void unfold(const byte *block, int64_t i, int64_t lane, int slice, const Panel8<part_of<TYPE>()> &out) {
        constexpr int VECTORS8 = GROUP / 4;
        uint8_t *const codes = out.codes + i * COLUMNS + lane * 4;
        const int64_t scales = i / part_of<TYPE>() * COLUMNS + lane;
#pragma GCC unroll 8
        for (int g = 0; g < GROUPS; g++) {
            for (int s = 0; s < TAKEN / W; s++) {
                uint8_t *const group = codes + g * GROUP * COLUMNS + s * W * 4;
#pragma GCC unroll 8
                for (int v = 0; v < VECTORS8; v++)
                    istore(group + v * 4 * COLUMNS, panel_codes<TYPE>(block, g, v, slice + s));
            }
        }
        for (int s = 0; s < TAKEN / W; s++)
            unfold_scales8<TYPE>(block, slice + s, out.d + scales + s * W, out.m + scales + s * W);
    }
};

inline int64_t panel_room(int64_t k) { return aligned(k * 4) + aligned(k + 3 * (k / 16 * 4) + 64); }

// One row of x. Each thread rounds it for itself: that is quicker than to wait for each other.
template <int TYPE> void mul_mat_bytes_panels(const Node &node, Part &part) {
    constexpr int PART = part_of<TYPE>();
    const Operand &w = node.src[0], &x = node.src[1], &out = node.out;
    const int64_t k = w.ne[0], n = w.ne[1];
    float *row = (float *)(part.scratch + part.thread * panel_room(k));
    char *room = (char *)row + aligned(k * 4);
    Turns turns = turns_of_few(node, part);
    int64_t matrix = -1;
    for (Span turn; !part.stopped() && turns.next(turn);) {
        for (int64_t item = turn.first; item < turn.last; item += PANEL_ROWS) {
            const int64_t i2 = item / n % x.ne[2], i3 = item / n / x.ne[2];
            if (matrix != item / n) {
                matrix = item / n;
                read_row(x, {0, i2, i3}, row);
                round_for_panels<TYPE>(row, k, room);
            }
            const int64_t column = item % n;
            panel_dots<TYPE>(w.data + column * w.nb[1], packed_row8<PART>(k, room), k,
                             (float *)at(out, 0, i2, i3) + column);
        }
    }
}

#endif

} // namespace
