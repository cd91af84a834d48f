// Weights in panels with x rounded to eight bits: the lanes of a vector are rows of w.
#pragma once

#include "many8.h"

namespace {

#if defined(TP_INT8)

constexpr int SLICES = PANEL_ROWS / W; // vectors that hold a word of each row

#if defined(__AVX512VNNI__)

inline vi iadd(vi a, vi b) { return _mm512_add_epi32(a, b); }
inline vi iand(vi a, vi b) { return _mm512_and_si512(a, b); }
inline vi ior(vi a, vi b) { return _mm512_or_si512(a, b); }
inline vi ixor(vi a, vi b) { return _mm512_xor_si512(a, b); }
inline vi high_nibbles(vi a) { return _mm512_srli_epi16(a, 4); }
inline vi left(vi a, vi n) { return _mm512_sllv_epi32(a, n); }
inline vi right(vi a, vi n) { return _mm512_srlv_epi32(a, n); }
inline vi last_byte_signed(vi a) { return _mm512_srai_epi32(a, 24); }
inline vi looked_up(vi table, vi at) { return _mm512_shuffle_epi8(table, at); }
inline vi bytes_at(const byte *p) { return _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)p)); }
// b where x is below `limit`, else a.
inline vi chosen(vi x, int limit, vi b, vi a) { return _mm512_mask_mov_epi32(a, _mm512_cmplt_epi32_mask(x, iset(limit)), b); }
inline vf as_floats(vi bits) { return _mm512_castsi512_ps(bits); }
inline vi in_each_lane(__m128i a) { return _mm512_broadcast_i32x4(a); }
// 16 in each byte that has a bit of `bits`.
inline vi sixteen_where(vi a, vi bits) { return _mm512_maskz_set1_epi8(_mm512_test_epi8_mask(a, bits), 16); }

#elif defined(__AVX2__)

inline vi each_byte(int a) { return _mm256_set1_epi8((char)a); }
inline vi iadd(vi a, vi b) { return _mm256_add_epi32(a, b); }
inline vi iand(vi a, vi b) { return _mm256_and_si256(a, b); }
inline vi ior(vi a, vi b) { return _mm256_or_si256(a, b); }
inline vi ixor(vi a, vi b) { return _mm256_xor_si256(a, b); }
inline vi high_nibbles(vi a) { return _mm256_srli_epi16(a, 4); }
inline vi left(vi a, vi n) { return _mm256_sllv_epi32(a, n); }
inline vi right(vi a, vi n) { return _mm256_srlv_epi32(a, n); }
inline vi last_byte_signed(vi a) { return _mm256_srai_epi32(a, 24); }
inline vi looked_up(vi table, vi at) { return _mm256_shuffle_epi8(table, at); }
inline vi bytes_at(const byte *p) { return _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)p)); }
inline vi chosen(vi x, int limit, vi b, vi a) { return _mm256_blendv_epi8(a, b, _mm256_cmpgt_epi32(iset(limit), x)); }
inline vf as_floats(vi bits) { return _mm256_castsi256_ps(bits); }
inline vi in_each_lane(__m128i a) { return _mm256_broadcastsi128_si256(a); }
inline vi sixteen_where(vi a, vi bits) { return iand(_mm256_cmpeq_epi8(iand(a, bits), bits), each_byte(16)); }
inline vi table_of(const int8_t *values, int excess) {
    return in_each_lane(_mm_add_epi8(_mm_loadu_si128((const __m128i *)values), _mm_set1_epi8((char)excess)));
}

#else

inline vi each_byte(int a) { return vreinterpretq_s32_s8(vdupq_n_s8((int8_t)a)); }
inline vi iadd(vi a, vi b) { return vaddq_s32(a, b); }
inline vi iand(vi a, vi b) { return vandq_s32(a, b); }
inline vi ior(vi a, vi b) { return vorrq_s32(a, b); }
inline vi ixor(vi a, vi b) { return veorq_s32(a, b); }
inline vi high_nibbles(vi a) { return vreinterpretq_s32_u8(vshrq_n_u8(vreinterpretq_u8_s32(a), 4)); }
inline vi left(vi a, vi n) { return vshlq_s32(a, n); }
inline vi right(vi a, vi n) { return vreinterpretq_s32_u32(vshlq_u32(vreinterpretq_u32_s32(a), vnegq_s32(n))); }
inline vi last_byte_signed(vi a) { return vshrq_n_s32(a, 24); }
inline vi looked_up(vi table, vi at) {
    return vreinterpretq_s32_s8(vqtbl1q_s8(vreinterpretq_s8_s32(table), vreinterpretq_u8_s32(at)));
}
inline vi bytes_at(const byte *p) {
    const uint8x8_t four = vreinterpret_u8_u32(vdup_n_u32(word_at(p)));
    return vreinterpretq_s32_u32(vmovl_u16(vget_low_u16(vmovl_u8(four))));
}
inline vi chosen(vi x, int limit, vi b, vi a) { return vbslq_s32(vcltq_s32(x, iset(limit)), b, a); }
inline vf as_floats(vi bits) { return vreinterpretq_f32_s32(bits); }
inline vi sixteen_where(vi a, vi bits) {
    return iand(vreinterpretq_s32_u8(vtstq_u8(vreinterpretq_u8_s32(a), vreinterpretq_u8_s32(bits))), each_byte(16));
}
inline vi table_of(const int8_t *values, int excess) {
    return vreinterpretq_s32_s8(vaddq_s8(vld1q_s8(values), vdupq_n_s8((int8_t)excess)));
}

#endif

// Byte `b` of each word in all four bytes of it.
#if defined(__AVX2__)
inline vi repeated_byte(vi words, char b) {
    const __m128i same = _mm_setr_epi8(b, b, b, b, 4 + b, 4 + b, 4 + b, 4 + b, 8 + b, 8 + b, 8 + b, 8 + b, 12 + b, 12 + b, 12 + b, 12 + b);
    return looked_up(words, in_each_lane(same));
}
#else
inline vi repeated_byte(vi words, char b) {
    const int8x16_t first = {0, 0, 0, 0, 4, 4, 4, 4, 8, 8, 8, 8, 12, 12, 12, 12};
    return looked_up(words, vreinterpretq_s32_s8(vaddq_s8(first, vdupq_n_s8(b))));
}
#endif

inline vi left(vi a, int n) { return left(a, iset(n)); }
inline vi right(vi a, int n) { return right(a, iset(n)); }

// What lies at byte `at` of the blocks of the rows of a slice.
inline vi words_at(const byte *block, int at, int slice) { return iload(block + at * PANEL_ROWS + slice * W * 4); }
inline vf halves_at(const byte *block, int at, int slice) {
    return vload16((const uint16_t *)(block + at * PANEL_ROWS) + slice * W);
}

inline vi nibbles(vi words, bool high) { return iand(high ? high_nibbles(words) : words, each_byte(15)); }
// Some bits of each byte, moved to where `mask` wants them.
inline vi bits(vi words, int to_left, int mask) {
    return iand(to_left < 0 ? right(words, -to_left) : left(words, to_left), each_byte(mask));
}
inline vi number(vi words, int from, int mask) { return iand(right(words, from), iset(mask)); }
// 16 in each byte of the codes 4 v to 4 v + 3 whose bit of `words` is set.
inline vi fifth_bits(vi words, int v) {
    return sixteen_where(repeated_byte(words, (char)(v / 2)), iset(v % 2 ? (int)0x80402010u : 0x08040201));
}

// Where the nibbles of a block of 32 begin.
template <int TYPE> constexpr int NIBBLES = Block<TYPE>::SIZE - 16;

// The stored codes 4 v to 4 v + 3 of group g of a block.
template <int TYPE> inline vi panel_codes(const byte *b, int g, int v, int slice) {
    if constexpr (TYPE == Q8_0) {
        const vi codes = words_at(b, 2 + 4 * v, slice);
        return SIGNED<TYPE> ? codes : ixor(codes, each_byte(128));
    }
    if constexpr (TYPE == Q2_K) return bits(words_at(b, 16 + g / 4 * 32 + 4 * v, slice), -2 * (g % 4), 3);
    if constexpr (TYPE == Q3_K) {
        return ior(bits(words_at(b, 32 + g / 4 * 32 + 4 * v, slice), -2 * (g % 4), 3), bits(words_at(b, 4 * v, slice), 2 - g, 4));
    }
    if constexpr (TYPE == Q4_K) return nibbles(words_at(b, 16 + g / 2 * 32 + 4 * v, slice), g % 2);
    if constexpr (TYPE == Q5_K) {
        return ior(nibbles(words_at(b, 48 + g / 2 * 32 + 4 * v, slice), g % 2), bits(words_at(b, 16 + 4 * v, slice), 4 - g, 16));
    }
    if constexpr (TYPE == Q6_K) {
        const vi low = nibbles(words_at(b, g / 4 * 64 + g % 2 * 32 + 4 * v, slice), g % 4 / 2);
        return ior(low, bits(words_at(b, 128 + g / 4 * 32 + 4 * v, slice), 4 - 2 * (g % 4), 0x30));
    }
    const vi low = nibbles(words_at(b, NIBBLES<TYPE> + v % 4 * 4, slice), v / 4);
    if constexpr (TYPE == Q5_0 || TYPE == Q5_1) return ior(low, fifth_bits(words_at(b, NIBBLES<TYPE> - 4, slice), v));
    if constexpr (TYPE == IQ4_NL) return looked_up(table_of(IQ4_VALUES, EXCESS<TYPE>), low);
    if constexpr (TYPE == MXFP4) return looked_up(table_of(E2M1_VALUES, EXCESS<TYPE>), low);
    return low;
}

// As `half_of_power`.
inline vf half_powers(vi e) {
    return as_floats(chosen(e, 2, left(iset(0x00200000), e), left(iadd(e, iset(-1)), 23)));
}

// The scale of part `p` of a block, and its minimum where the type has them.
template <int TYPE> inline void panel_scale(const byte *b, int p, int slice, vf &d, vf &m) {
    if constexpr (TYPE == Q2_K) {
        const vi both = words_at(b, p / 4 * 4, slice);
        d = vmul(halves_at(b, 80, slice), ifloat(number(both, p % 4 * 8, 15)));
        m = vmul(halves_at(b, 82, slice), vsub(vset(0), ifloat(number(both, p % 4 * 8 + 4, 15))));
    } else if constexpr (TYPE == Q3_K) {
        const vi low = number(words_at(b, 96 + p % 8 / 4 * 4, slice), p % 4 * 8 + p / 8 * 4, 15);
        const vi high = number(words_at(b, 104, slice), p % 4 * 8 + p / 4 * 2, 3);
        d = vmul(halves_at(b, 108, slice), ifloat(iadd(ior(low, left(high, 4)), iset(-32))));
    } else if constexpr (TYPE == Q4_K || TYPE == Q5_K) {
        const vi scales = words_at(b, 4, slice), minima = words_at(b, 8, slice), rest = words_at(b, 12, slice);
        const int at = p % 4 * 8;
        vi s, least;
        if (p < 4) {
            s = number(scales, at, 63), least = number(minima, at, 63);
        } else {
            s = ior(number(rest, at, 15), left(number(scales, at + 6, 3), 4));
            least = ior(number(rest, at + 4, 15), left(number(minima, at + 6, 3), 4));
        }
        d = vmul(halves_at(b, 0, slice), ifloat(s));
        m = vmul(halves_at(b, 2, slice), vsub(vset(0), ifloat(least)));
    } else if constexpr (TYPE == Q6_K) {
        d = vmul(halves_at(b, 208, slice), ifloat(last_byte_signed(left(words_at(b, 192 + p / 4 * 4, slice), 24 - p % 4 * 8))));
    } else if constexpr (TYPE == MXFP4) {
        d = half_powers(bytes_at(b + slice * W));
    } else {
        d = halves_at(b, 0, slice);
        if (Block<TYPE>::MIN) m = halves_at(b, 2, slice);
    }
}

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
                        first = dot_bytes<S>(first, panel_codes<TYPE>(block, g, v, s), four_of(values + 4 * v), panel_codes<TYPE>(block, g, v + 1, s), four_of(values + 4 * v + 4));
                        second = dot_bytes<S>(second, panel_codes<TYPE>(block, g, v + 2, s), four_of(values + 4 * v + 8), panel_codes<TYPE>(block, g, v + 3, s), four_of(values + 4 * v + 12));
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

// The codes, scales and minima of a block of a panel, of the slices from `slice` on, as columns of a panel of codes from `lane`
// on, from code `i` on.
template <int TYPE> inline void unfold_block8(const byte *block, int64_t i, int64_t lane, int slice, const Panel8<part_of<TYPE>()> &out) {
    typedef Block<TYPE> B;
    constexpr int PART = part_of<TYPE>(), VECTORS8 = GROUP / 4;
    constexpr int64_t TAKEN = COLUMNS < PANEL_ROWS ? COLUMNS : PANEL_ROWS;
    uint8_t *const codes = out.codes + i * COLUMNS + lane * 4;
    float *const ds = out.d + i / PART * COLUMNS + lane, *const ms = out.m + i / PART * COLUMNS + lane;
#pragma GCC unroll 8
    for (int g = 0; g < B::GROUPS; g++) {
        for (int s = 0; s < TAKEN / W; s++) {
#pragma GCC unroll 8
            for (int v = 0; v < VECTORS8; v++) istore(codes + (g * GROUP + v * 4) * COLUMNS + s * W * 4, panel_codes<TYPE>(block, g, v, slice + s));
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
template <int TYPE> void unfold_panels8(const char *matrix, int64_t row, int64_t first, int64_t columns, int64_t k0, int64_t depth, const Panel8<part_of<TYPE>()> &out) {
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

#if defined(__AVX512VNNI__)

constexpr int MOST_SIDE_BY_SIDE = 8; // rows of x whose sums the registers hold

// Adds the products of a block of sixteen rows with M rows of x, from code `i` on, side by side in a tile.
template <int TYPE, int M> inline void add_block8(const byte *block, int64_t i, const Packed8 &x, vf *sums) {
    typedef Block<TYPE> B;
    constexpr int PART = part_of<TYPE>(), PARTS = GROUP / PART * B::GROUPS;
#pragma GCC unroll 16
    for (int p = 0; p < PARTS; p++) {
        const int64_t at = (i / PART + p) * M;
        const int8_t *values = x.values + (i + p * PART) * M;
        vi dots[M];
        for (int j = 0; j < M; j++) dots[j] = iset(EXCESS<TYPE> ? x.shifts[at + j] : 0);
#pragma GCC unroll 8
        for (int v = 0; v < PART / 4; v++) {
            const int code = p * PART / 4 + v;
            const vi codes = panel_codes<TYPE>(block, code / 8, code % 8, 0);
            for (int j = 0; j < M; j++) dots[j] = dot_bytes<SIGNED<TYPE>>(dots[j], codes, four_of(values + (v * M + j) * 4));
        }
        vf d, m;
        panel_scale<TYPE>(block, p, 0, d, m);
        for (int j = 0; j < M; j++) sums[j] = vfma(ifloat(dots[j]), vmul(d, vset(x.d[at + j])), sums[j]);
        for (int j = 0; B::MIN && j < M; j++) sums[j] = vfma(m, vset(x.sums[at + j]), sums[j]);
    }
}

// Rows of x that are multiplied together: as many as there are, and zeros.
inline int64_t side_by_side(int64_t m) { return m <= 2 ? 2 : m <= 4 ? 4 : m <= 6 ? 6 : MOST_SIDE_BY_SIDE; }

// Bytes of x, packed; for a thread, of a row of x.
inline int64_t side_packed(const Node &node) {
    const Operand &x = node.src[1];
    return aligned(side_by_side(x.ne[1]) * x.ne[2] * x.ne[3] * x.ne[0] * 4);
}
inline int64_t side_room(int64_t k) { return aligned(k * 4); }

// Panels of w with few rows of x, M with those of zeros: a code is unfolded once for all of them, and stored nowhere.
template <int TYPE, int M> void mul_side_by_side(const Node &node, Part &part) {
    typedef Block<TYPE> B;
    constexpr int PART = part_of<TYPE>();
    constexpr int64_t SIZE = B::SIZE, WIDE = GROUP * B::GROUPS;
    const Operand &w = node.src[0], &x = node.src[1], &out = node.out;
    const int64_t k = w.ne[0], n = w.ne[1], m = x.ne[1], matrices = x.ne[2] * x.ne[3], step = w.nb[1];
    Operand padded = x;
    padded.ne[1] = M;
    const Packed8 packed = packed8<PART>(padded, part.scratch);
    float *copy = (float *)(part.scratch + side_packed(node) + part.thread * side_room(k));
    const Span rows = share(M * matrices, part);
    for (int64_t row = rows.first; row < rows.last; row++) {
        const int64_t j = row % M, matrix = row / M;
        if (j < m) read_row(x, {j, matrix % x.ne[2], matrix / x.ne[2]}, copy);
        else std::memset(copy, 0, k * 4);
        pack_row8<PART>(copy, k, packed, matrix * M, M, j, EXCESS<TYPE>);
    }
    if (!part.barrier()) return;
    Turns turns = turns_of_rows(n * matrices, step, PANEL_ROWS, part);
    Span turn{0, 0};
    for (int64_t item = 0;;) {
        if (item == turn.last) {
            if (part.stopped() || !turns.next(turn)) return;
            item = turn.first;
        }
        const int64_t matrix = item / n, i2 = matrix % x.ne[2], i3 = matrix / x.ne[2], first = item % n;
        const int64_t start = matrix * M, parts = start * (k / PART);
        const Packed8 xs = {packed.values + start * k, packed.d + parts, packed.sums + parts, packed.shifts + parts};
        const char *weights = at(w, first, i2 / (x.ne[2] / w.ne[2]), i3 / (x.ne[3] / w.ne[3]));
        vf sums[M];
        for (int j = 0; j < M; j++) sums[j] = vset(0);
        for (int64_t i = 0; i < k; i += WIDE, weights += SIZE * PANEL_ROWS) {
            prefetch(weights, SIZE * PANEL_ROWS);
            add_block8<TYPE, M>((const byte *)weights, i, xs, sums);
        }
        for (int64_t j = 0; j < m; j++) vstore((float *)at(out, j, i2, i3) + first, sums[j]);
        item += PANEL_ROWS;
    }
}

template <int TYPE> void mul_side_by_side(const Node &node, Part &part) {
    const int64_t m = side_by_side(node.src[1].ne[1]);
    if (m == 2) return mul_side_by_side<TYPE, 2>(node, part);
    if (m == 4) return mul_side_by_side<TYPE, 4>(node, part);
    if (m == 6) return mul_side_by_side<TYPE, 6>(node, part);
    mul_side_by_side<TYPE, MOST_SIDE_BY_SIDE>(node, part);
}

#endif

inline int64_t panel_room(int64_t k) { return aligned(k * 4) + aligned(k + 3 * (k / 16 * 4) + 64); }

// One row of x. Each thread rounds it for itself: that is quicker than to wait for each other.
template <int TYPE> void mul_panels8(const Node &node, Part &part) {
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
            panel_dots<TYPE>(w.data + column * w.nb[1], packed_row8<PART>(k, room), k, (float *)at(out, 0, i2, i3) + column);
        }
    }
}

#endif

} // namespace
