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
    pack_row8<part_of<TYPE>()>(x, k, packed_row8<part_of<TYPE>()>(k, room), 0, 1, 0, EXCESS<TYPE>);
}

// Products of the rows of a panel with one row of x.
template <int TYPE> void panel_dots(const char *panel, const Packed8 &x, int64_t k, float *out) {
    typedef Block<TYPE> B;
    constexpr int PART = part_of<TYPE>(), EACH = GROUP / PART;
    constexpr int64_t SIZE = B::SIZE * PANEL_ROWS;
    constexpr bool S = SIGNED<TYPE>;
    vf sums[SLICES][2], least[SLICES];
    for (int s = 0; s < SLICES; s++) sums[s][0] = sums[s][1] = least[s] = vset(0);
    const byte *block = (const byte *)panel;
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

// The codes, scales and minima of a block of a panel, of the slices from `slice` on, as columns of a panel of codes
// from `lane` on, from code `i` on.
template <int TYPE>
inline void unfold_block8(const byte *block, int64_t i, int64_t lane, int slice, const Panel8<part_of<TYPE>()> &out) {
    typedef Block<TYPE> B;
    constexpr int PART = part_of<TYPE>(), VECTORS8 = GROUP / 4;
    constexpr int64_t TAKEN = COLUMNS < PANEL_ROWS ? COLUMNS : PANEL_ROWS;
    uint8_t *const codes = out.codes + i * COLUMNS + lane * 4;
    float *const ds = out.d + i / PART * COLUMNS + lane, *const ms = out.m + i / PART * COLUMNS + lane;
#pragma GCC unroll 8
    for (int g = 0; g < B::GROUPS; g++) {
        for (int s = 0; s < TAKEN / W; s++) {
#pragma GCC unroll 8
            for (int v = 0; v < VECTORS8; v++)
                istore(codes + (g * GROUP + v * 4) * COLUMNS + s * W * 4, panel_codes<TYPE>(block, g, v, slice + s));
#pragma GCC unroll 2
            for (int h = 0; h < GROUP / PART; h++) {
                const int p = g * (GROUP / PART) + h;
                vf d, m;
                panel_scale<TYPE>(block, p, slice + s, d, m);
                vstore(ds + p * COLUMNS + s * W, d);
                if (B::MIN) vstore(ms + p * COLUMNS + s * W, m);
            }
        }
    }
}

// The codes, scales and minima of a part of two panels, or of one: as `read_panel8`.
template <int TYPE>
void unfold_panels8(const char *matrix, int64_t row, int64_t first, int64_t columns, int64_t k0, int64_t depth,
                    const Panel8<part_of<TYPE>()> &out) {
    typedef Block<TYPE> B;
    constexpr int WIDE = GROUP * B::GROUPS;
    constexpr int64_t TAKEN = COLUMNS < PANEL_ROWS ? COLUMNS : PANEL_ROWS; // rows of each panel
    for (int64_t column = 0; column < COLUMNS; column += TAKEN) {
        // Past the last row, any row does.
        const int64_t row0 = first + (column < columns ? column : 0);
        const int slice = TAKEN < PANEL_ROWS ? (int)(row0 % PANEL_ROWS) / W : 0;
        const char *panel = matrix + (row0 - slice * W) * row;
        const byte *block = (const byte *)panel + k0 / WIDE * B::SIZE * PANEL_ROWS;
        for (int64_t i = 0; i < depth; i += WIDE, block += B::SIZE * PANEL_ROWS) {
            prefetch((const char *)block, B::SIZE * PANEL_ROWS);
            unfold_block8<TYPE>(block, i, column, slice, out);
        }
    }
}

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
