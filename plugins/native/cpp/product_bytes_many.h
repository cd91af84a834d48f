// Many rows of x, rounded: panels of codes of w meet all tiles of x.
#pragma once

#include "product_bytes_columns.h"
#include "product_bytes_unfolded.h"
#include "product_floats_many.h"

namespace {

#if defined(TP_INT8)

// Rows of x in a tile, at most. Where sums of 16 bits hold few products, sums of floats are added to often: with AVX2
// those of four rows take turns in the registers, and q6_K ran 1.18 times as fast as with six.
constexpr int ROWS8 = 6;
#if defined(TP_PAIRS)
template <int TYPE> constexpr int MOST_ROWS8 = chain_of<TYPE>() > 0 && chain_of<TYPE>() <= 4 ? 4 : ROWS8;
#else
template <int> constexpr int MOST_ROWS8 = ROWS8;
#endif

constexpr int SUPER = 256; // codes of a block whose scales are numbers of a few bits themselves

// A panel of w: stored codes, four of a column side by side; and the scale and minimum of each column for each part
// of `PART` codes. Where scales stay whole numbers, `factors` holds those of parts, each in both halves of a word, and
// `d` what they are multiplied by, for each SUPER codes.
template <int PART> struct Panel8 {
    uint8_t *codes;
    float *d, *m;
    int32_t *factors;

    static int64_t each(int64_t depth) { return aligned(depth / PART * COLUMNS * 4); }
    static int64_t size(int64_t depth) { return aligned(depth * COLUMNS) + 3 * each(depth); }
    Panel8(char *room, int64_t depth) {
        codes = (uint8_t *)room;
        d = (float *)(room + aligned(depth * COLUMNS));
        m = d + each(depth) / 4;
        factors = (int32_t *)(m + each(depth) / 4);
    }
};

// The scales and minima of the first `groups` of a unit.
template <int TYPE> inline void read_scales8(const byte *unit, float *d, float *m, int groups = GROUPS8) {
    constexpr int EIGHTS = Block<TYPE>::HALVES ? 2 : 1;
    Eight scales[EIGHTS], minima[EIGHTS];
    unit_scales<TYPE>(unit, scales, minima, groups);
    for (int e = 0; e < EIGHTS; e++) {
        store_eight(d + 8 * e, scales[e]);
        if (Block<TYPE>::MIN) store_eight(m + 8 * e, minima[e]);
    }
}

// The first `n` codes of the units of COLUMNS rows, four of each row side by side.
template <int TYPE> void weave_units8(const byte *const *units, int64_t n, uint8_t *out) {
    alignas(64) uint8_t codes[COLUMNS * DEPTH];
    const int groups = (int)(n / GROUP);
    for (int64_t c = 0; c < COLUMNS; c++) {
#pragma GCC unroll 8
        for (int g = 0; g < GROUPS8 && g < groups; g += TOGETHER)
            istore(codes + c * DEPTH + g * GROUP, stored_groups<TYPE>(units[c], g, groups));
    }
    transpose<DEPTH / 4>((const float *)codes, n / 4, (float *)out);
}

#if defined(__AVX512VNNI__)

// The same for whole units.
template <int TYPE> void weave_units8(const byte *const *units, uint8_t *out) {
    static_assert(COLUMNS == 32 && TOGETHER * GROUP == 64, "two transpositions for each vector of codes");
#pragma GCC unroll 4
    for (int g = 0; g < GROUPS8; g += TOGETHER) {
        for (int half = 0; half < 2; half++) {
            __m512i v[16];
#pragma GCC unroll 16
            for (int c = 0; c < 16; c++) v[c] = stored_groups<TYPE>(units[16 * half + c], g);
            transpose16(v);
#pragma GCC unroll 16
            for (int i = 0; i < 16; i++) istore(out + (g * GROUP / 4 + i) * COLUMNS * 4 + half * 64, v[i]);
        }
    }
}

#else

template <int TYPE> void weave_units8(const byte *const *units, uint8_t *out) { weave_units8<TYPE>(units, DEPTH, out); }

#endif

// Rows of w where they lie, as panels of codes. `InPanels8` is its like for rows in panels.
template <int T> struct InRows8 {
    static constexpr int TYPE = T;
    static constexpr bool PANELS = false;
#if defined(TP_PAIRS)
    static constexpr bool FACTORS = is_super_block(TYPE); // whether scales stay whole numbers
#else
    static constexpr bool FACTORS = false;
#endif

    // `depth` codes from `k0` on of `columns` rows of a matrix from row `first` on.
    static void read(const Operand &w, const char *matrix, int64_t first, int64_t columns, int64_t k0, int64_t depth,
                     const Panel8<part_of<TYPE>()> &panel) {
        typedef Block<TYPE> B;
        constexpr int64_t PART = part_of<TYPE>(), UNIT_PARTS = DEPTH / PART;
        static_assert(DEPTH == GROUPS8 * GROUP, "a unit is what is transposed at once");
        const Unfolding *const how = is_unfolded(TYPE) ? unfolding_of(w.type) : nullptr;
        const int64_t size = is_unfolded(TYPE) ? how->size : UNIT_SIZE<TYPE>;
        alignas(64) byte unfolded[is_unfolded(TYPE) ? COLUMNS * UNIT_SIZE<TYPE> : 1];
        alignas(64) float d[COLUMNS * UNIT_PARTS], m[COLUMNS * UNIT_PARTS];
        for (int64_t some = 0; some < depth; some += DEPTH) {
            const int64_t n = depth - some < DEPTH ? depth - some : DEPTH;
            const byte *units[COLUMNS];
            for (int64_t c = 0; c < COLUMNS; c++) {
                const int64_t row = first + (c < columns ? c : columns - 1);
                units[c] = (const byte *)matrix + row * w.nb[1] + (k0 + some) / DEPTH * size;
                // Rows are read a little at a time, which processors do not foresee.
                for (int64_t i = 0; i < size; i += 64) __builtin_prefetch(units[c] + size + i);
                if (is_unfolded(TYPE)) {
                    byte *const room = unfolded + c * UNIT_SIZE<TYPE>;
                    how->unfold(units[c], (int)(n / GROUP), room);
                    units[c] = room;
                }
                if (!FACTORS) read_scales8<TYPE>(units[c], d + c * UNIT_PARTS, m + c * UNIT_PARTS, (int)(n / GROUP));
            }
            const int64_t parts = some / PART * COLUMNS;
#if defined(TP_PAIRS)
            if constexpr (FACTORS) {
                weave_super_blocks8<TYPE>(units, panel.codes + some * COLUMNS);
                weave_scales8<TYPE>(units, panel.d + some / SUPER * COLUMNS, panel.m + parts, panel.factors + parts);
                continue;
            }
#endif
            if (n < DEPTH) weave_units8<TYPE>(units, n, panel.codes + some * COLUMNS);
            else weave_units8<TYPE>(units, panel.codes + some * COLUMNS);
            transpose<UNIT_PARTS>(d, n / PART, panel.d + parts);
            if (B::MIN) transpose<UNIT_PARTS>(m, n / PART, panel.m + parts);
        }
    }
};

// Signed codes in 16 bits are multiplied and added in pairs by one instruction, where those in bytes take three: one to
// move their signs to x, one to multiply and one to add. For up to FEW_WIDENED rows of x they are not worth widening.
#if defined(TP_PAIRS)
constexpr int64_t FEW_WIDENED = 9;
template <int TYPE> constexpr bool WIDENS = SIGNED<TYPE>;

// `n` signed codes of a panel, four of a column side by side, as 16 bits: for each four the first two of all columns,
// then the others.
inline void widen(const uint8_t *codes, int64_t n, uint8_t *out) {
    const char no = -128;
    const vi first = _mm256_setr_epi8(no, 0, no, 1, no, 4, no, 5, no, 8, no, 9, no, 12, no, 13, //
                                      no, 0, no, 1, no, 4, no, 5, no, 8, no, 9, no, 12, no, 13);
    const vi second = _mm256_add_epi16(first, _mm256_set1_epi16(2 << 8));
    for (int64_t i = 0; i < n; i += 4 * COLUMNS, out += 8 * COLUMNS) {
        for (int c = 0; c < 4 * COLUMNS; c += 4 * W) {
            const vi four = iload(codes + i + c);
            istore(out + c, _mm256_srai_epi16(_mm256_shuffle_epi8(four, first), 8));
            istore(out + 4 * COLUMNS + c, _mm256_srai_epi16(_mm256_shuffle_epi8(four, second), 8));
        }
    }
}
#else
template <int> constexpr bool WIDENS = false;
#endif

// Tiles of x: values [k / 4, rows, 4], and for each part its scale, and its sum as an integer and scaled. Where codes
// have 16 bits the values have them, too: [k / 2, rows, 2].
struct Packed8 {
    int8_t *values;
    float *d, *sums;
    // What the stored codes of w are too large by, times the sum of a part, to be taken off: with `WHOLE` the sums of
    // its first, third and further pairs of codes in the lower half of a number, those of the others in the upper.
    int32_t *shifts;
};

template <int PART, int WIDTH = 1> Packed8 packed8(const Operand &x, char *room) {
    const int64_t n = row_count(x) * x.ne[0];
    Packed8 p;
    p.values = (int8_t *)room;
    p.d = (float *)(room + aligned(n * WIDTH));
    p.sums = p.d + n / PART;
    p.shifts = (int32_t *)(p.sums + n / PART);
    return p;
}

#if defined(TP_PAIRS)
// Sums of 16 codes each: of their first, third and further pairs in the lower half of a number, of the others in the
// upper, all times `factor`.
inline void sum_pairs(const int8_t *codes, int factor, __m128i *halves) {
    const __m256i bytes = _mm256_loadu_si256((const __m256i *)codes);
    const __m256i pairs = _mm256_maddubs_epi16(_mm256_set1_epi8(1), bytes);
    const __m256i fours = _mm256_add_epi16(pairs, _mm256_unpackhi_epi64(pairs, pairs));
    const __m256i eights = _mm256_add_epi16(fours, _mm256_shuffle_epi32(fours, 1));
    const __m256i sums = _mm256_mullo_epi16(eights, _mm256_set1_epi16((short)factor));
    halves[0] = _mm256_castsi256_si128(sums), halves[1] = _mm256_extracti128_si256(sums, 1);
}
#endif

// The shifts of the parts of 32 codes, `step` apart; `halves` has the sums of 16 codes each.
template <int PART, bool PAIRS>
void store_shifts(const int8_t *codes, const int *halves, int zero, int32_t *shifts, int64_t step) {
#if defined(TP_PAIRS)
    if (PAIRS) {
        __m128i sums[2];
        sum_pairs(codes, -zero, sums);
        if (PART == 32) sums[0] = _mm_add_epi16(sums[0], sums[1]);
        for (int h = 0; h < GROUP / PART; h++) shifts[h * step] = _mm_cvtsi128_si32(sums[h]);
        return;
    }
#endif
    (void)codes;
    for (int h = 0; h < GROUP / PART; h++)
        shifts[h * step] = -zero * (PART == 16 ? halves[h] : halves[0] + halves[1]);
}

// A row of x as row `lane` of the `width` rows of a tile, which begins after `start` rows.
template <int PART, bool PAIRS, int WIDTH = 1>
void pack_row8(const float *values, int64_t k, const Packed8 &packed, int64_t start, int64_t width, int64_t lane,
               int zero) {
    int8_t *out = packed.values + start * k * WIDTH + lane * 4;
    for (int64_t i = 0; i < k; i += GROUP) {
        alignas(16) int8_t codes[GROUP];
        int halves[2];
        const float d = round_group(values + i, codes, halves);
        alignas(32) int16_t wide[GROUP];
        for (int j = 0; j < GROUP && WIDTH == 2; j++) wide[j] = codes[j];
        const char *const from = WIDTH == 2 ? (const char *)wide : (const char *)codes;
        for (int j = 0; j < GROUP * WIDTH; j += 4) std::memcpy(out + (i * WIDTH + j) * width, from + j, 4);
        for (int h = 0; h < GROUP / PART; h++) {
            const int sum = PART == 16 ? halves[h] : halves[0] + halves[1];
            const int64_t at = start * (k / PART) + (i / PART + h) * width + lane;
            packed.d[at] = d;
            packed.sums[at] = d * (float)sum;
        }
        const int64_t first = start * (k / PART) + i / PART * width + lane;
        store_shifts<PART, PAIRS>(codes, halves, zero, packed.shifts + first, width);
    }
}

template <int PART, bool PAIRS, int WIDTH>
void pack8(const Operand &x, const Packed8 &packed, int64_t tile, int zero, float *row, Part &part) {
    const int64_t m = x.ne[1];
    const Span rows = share(row_count(x), part);
    for (int64_t r = rows.first; r < rows.last; r++) {
        const Place p = place(x, r);
        const float *values = (const float *)at(x, p);
        if (!is_plain_rows(x)) read_row(x, p, row), values = row;
        const int64_t first = p.i1 / tile * tile, width = m - first < tile ? m - first : tile;
        pack_row8<PART, PAIRS, WIDTH>(values, x.ne[0], packed, r - p.i1 + first, width, p.i1 - first, zero);
    }
}

// The same four bytes all over.
inline vi four_of(const int8_t *bytes) {
    int32_t four;
    std::memcpy(&four, bytes, 4);
    return iset(four);
}

// Dot products of a part of the columns of a panel with M rows of x; with FACTORS they are multiplied by the part's
// scales, and with `more` added to `dots`.
template <int M, int PART, int CHAIN, int WIDTH, bool FACTORS>
inline __attribute__((always_inline)) void part_dots8(const int8_t *values, const uint8_t *codes, const int32_t *shifts,
                                                      const int32_t *factors, bool more, vi (&dots)[M][2]) {
#if defined(TP_PAIRS)
    if constexpr (WIDTH == 2) {
        for (int s = 0; s < PART / 2; s++, values += 4 * M, codes += 4 * COLUMNS) {
            const vi w0 = iload(codes), w1 = iload(codes + 4 * W);
            for (int i = 0; i < M; i++) {
                const vi same = four_of(values + 4 * i);
                const vi first = _mm256_madd_epi16(w0, same), second = _mm256_madd_epi16(w1, same);
                dots[i][0] = s ? add32(dots[i][0], first) : first;
                dots[i][1] = s ? add32(dots[i][1], second) : second;
            }
        }
        return;
    }
    if constexpr (CHAIN > 0) {
        constexpr bool ALL = WHOLE<PART, CHAIN>;
        for (int i = 0; i < M && !ALL && !FACTORS; i++) dots[i][0] = dots[i][1] = iset(shifts[i]);
#pragma GCC unroll 2
        for (int done = 0; done < PART / 4; done += CHAIN) {
            const bool begins = (ALL || FACTORS) && done == 0 && !more;
            vi pairs[M][2];
            for (int i = 0; i < M; i++) pairs[i][0] = pairs[i][1] = iset(ALL ? shifts[i] : 0);
#pragma GCC unroll 2
            for (int s = 0; s < CHAIN; s++, values += 4 * M, codes += 4 * COLUMNS) {
                const vi w0 = iload(codes), w1 = iload(codes + 4 * W);
                for (int i = 0; i < M; i++) {
                    const vi same = four_of(values + 4 * i);
                    pairs[i][0] = add_pairs(pairs[i][0], w0, same);
                    pairs[i][1] = add_pairs(pairs[i][1], w1, same);
                }
            }
            const vi by0 = FACTORS ? iload(factors) : ones16(), by1 = FACTORS ? iload(factors + W) : by0;
            for (int i = 0; i < M; i++) {
                const vi first = _mm256_madd_epi16(pairs[i][0], by0), second = _mm256_madd_epi16(pairs[i][1], by1);
                dots[i][0] = begins ? first : _mm256_add_epi32(dots[i][0], first);
                dots[i][1] = begins ? second : _mm256_add_epi32(dots[i][1], second);
            }
        }
        return;
    }
#endif
    (void)factors, (void)more;
    for (int i = 0; i < M; i++) dots[i][0] = dots[i][1] = iset(shifts[i]);
    for (int s = 0; s < PART / 8; s++, values += 8 * M, codes += 8 * COLUMNS) {
        const vi w0 = iload(codes), w1 = iload(codes + 4 * W);
        const vi next0 = iload(codes + 4 * COLUMNS), next1 = iload(codes + 4 * COLUMNS + 4 * W);
        for (int i = 0; i < M; i++) {
            const vi same = four_of(values + 4 * i), next = four_of(values + 4 * M + 4 * i);
            dots[i][0] = dot_bytes<CHAIN == 0>(dots[i][0], w0, same, next0, next);
            dots[i][1] = dot_bytes<CHAIN == 0>(dots[i][1], w1, same, next1, next);
        }
    }
}

// c [M, COLUMNS] = (or +=) x w. With FACTORS the sums of a group are whole numbers.
template <int M, int PART, bool MIN, int CHAIN, int WIDTH, bool FACTORS>
void multiply_tile8(int64_t depth, const Packed8 &x, const Panel8<PART> &w, float *c, int64_t ldc, bool add,
                    Next &soon) {
    constexpr int EACH = FACTORS ? GROUP / PART : 1; // parts whose sums are added up
    vf sums[M][2];
    for (int i = 0; i < M; i++) {
        sums[i][0] = add ? vload(c + i * ldc) : vset(0);
        sums[i][1] = add ? vload(c + i * ldc + W) : vset(0);
    }
    for (int64_t p = 0; p < depth / PART; p += EACH) {
        soon.ask();
        vi dots[M][2];
#pragma GCC unroll 2
        for (int h = 0; h < EACH; h++) {
            const int64_t done = (p + h) * PART * WIDTH;
            part_dots8<M, PART, CHAIN, WIDTH, FACTORS>(x.values + done * M, w.codes + done * COLUMNS,
                                                       x.shifts + (p + h) * M, w.factors + (p + h) * COLUMNS, h > 0,
                                                       dots);
        }
        const float *const ds = w.d + (FACTORS ? p / (SUPER / PART) : p) * COLUMNS;
        const vf d0 = vload(ds), d1 = vload(ds + W);
        for (int i = 0; i < M; i++) {
            const vf d = vset(x.d[p * M + i]);
            sums[i][0] = vfma(ifloat(dots[i][0]), vmul(d, d0), sums[i][0]);
            sums[i][1] = vfma(ifloat(dots[i][1]), vmul(d, d1), sums[i][1]);
        }
        for (int64_t h = p; h < p + EACH && MIN; h++) {
            const vf m0 = vload(w.m + h * COLUMNS), m1 = vload(w.m + h * COLUMNS + W);
            for (int i = 0; i < M; i++) {
                const vf sum = vset(x.sums[h * M + i]);
                sums[i][0] = vfma(sum, m0, sums[i][0]);
                sums[i][1] = vfma(sum, m1, sums[i][1]);
            }
        }
    }
    for (int i = 0; i < M; i++) {
        vstore(c + i * ldc, sums[i][0]);
        vstore(c + i * ldc + W, sums[i][1]);
    }
}

template <class Source, int WIDTH>
void multiply_part8(int64_t m, int64_t depth, const Packed8 &x, const Panel8<part_of<Source::TYPE>()> &w, float *c,
                    int64_t ldc, bool add, int64_t columns, Next &soon) {
    constexpr int TYPE = Source::TYPE, PART = part_of<TYPE>();
    constexpr bool MIN = Block<TYPE>::MIN, F = Source::FACTORS;
    constexpr int C = chain_of<TYPE>(), MOST = MOST_ROWS8<TYPE>, FIVE = MOST < 5 ? MOST : 5;
    static_assert(!F || !EXCESS<TYPE> || WHOLE<PART, C>, "sums begin with what is taken off");
    // By number of rows, less one; nothing asks for more than MOST.
    static constexpr decltype(&multiply_tile8<1, PART, MIN, C, WIDTH, F>) tiles[ROWS8] = {
        multiply_tile8<1, PART, MIN, C, WIDTH, F>,    multiply_tile8<2, PART, MIN, C, WIDTH, F>,
        multiply_tile8<3, PART, MIN, C, WIDTH, F>,    multiply_tile8<4, PART, MIN, C, WIDTH, F>,
        multiply_tile8<FIVE, PART, MIN, C, WIDTH, F>, multiply_tile8<MOST, PART, MIN, C, WIDTH, F>,
    };
    if (columns == COLUMNS) return tiles[m - 1](depth, x, w, c, ldc, add, soon);
    float whole[ROWS8 * COLUMNS];
    tiles[m - 1](depth, x, w, whole, COLUMNS, false, soon);
    write_sums(whole, m, columns, c, ldc, add);
}

// Elements of a panel: with their scales they stay in the second-level cache, as `PANEL` says.
inline int64_t panel_depth8(int64_t k) { return k < PANEL ? k : PANEL; }

// Bytes for a thread: a row of x, a panel, and its codes as 16 bits.
template <int TYPE> int64_t many8_room(int64_t k) {
    const int64_t depth = panel_depth8(k), wide = WIDENS<TYPE> ? 2 * depth * COLUMNS : 0;
    return aligned(k * 4) + Panel8<part_of<TYPE>()>::size(depth) + wide;
}

// `Source` is InRows8 or InPanels8; codes are multiplied in WIDTH bytes.
template <class Source, int WIDTH = 1> void mul_mat_bytes_many(const Node &node, Part &part) {
    constexpr int TYPE = Source::TYPE, PART = part_of<TYPE>();
    const Operand &w = node.src[0], &x = node.src[1], &out = node.out;
    const int64_t k = w.ne[0], m = x.ne[1], tile = rows_of_tile(m, MOST_ROWS8<TYPE>);
    const Packed8 packed = packed8<PART, WIDTH>(x, part.scratch);
    char *room = part.scratch + packed_size(node) + part.thread * many8_room<TYPE>(k);
    pack8<PART, WHOLE<PART, chain_of<TYPE>()>, WIDTH>(x, packed, tile, EXCESS<TYPE>, (float *)room, part);
    if (!part.barrier()) return;
    const int64_t most = panel_depth8(k);
    const Panel8<PART> panel(room + aligned(k * 4), most);
    Panel8<PART> multiplied = panel;
    if (WIDTH == 2) multiplied.codes = (uint8_t *)room + many8_room<TYPE>(k) - 2 * most * COLUMNS;
    PanelTurns turns(node, COLUMNS, part);
    for (PanelTurn turn; turns.next(turn);) {
        const char *weights = at(w, 0, turn.w2, turn.w3);
        for (int64_t k0 = 0; k0 < k; k0 += most) {
            const int64_t depth = k - k0 < most ? k - k0 : most;
            Source::read(w, weights, turn.column, turn.columns, k0, depth, panel);
#if defined(TP_PAIRS)
            if (WIDTH == 2) widen(panel.codes, depth * COLUMNS, multiplied.codes);
#endif
            const int64_t tiles = (m + tile - 1) / tile, steps = depth / (Source::FACTORS ? GROUP : PART);
            Next soon = next_of_panel(w, weights, turn.column, turn.columns, k0, depth, turns_of_tiles(steps, tiles));
            for (int64_t j = 0; j < m; j += tile) {
                if (part.stopped()) return;
                const int64_t height = m - j < tile ? m - j : tile, start = turn.matrix * m + j;
                const int64_t parts = start * (k / PART) + k0 / PART * height;
                const Packed8 here = {packed.values + (start * k + k0 * height) * WIDTH, packed.d + parts,
                                      packed.sums + parts, packed.shifts + parts};
                float *c = (float *)at(out, j, turn.i2, turn.i3) + turn.column;
                multiply_part8<Source, WIDTH>(height, depth, here, multiplied, c, out.nb[1] / 4, k0 > 0, turn.columns,
                                              soon);
            }
        }
    }
}

#endif

} // namespace
