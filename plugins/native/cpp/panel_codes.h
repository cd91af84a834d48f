// Codes and scales of blocks in panels, by type: the lanes of a vector are rows of w.
#pragma once

#include "byte_vectors.h"
#include "panels.h"

namespace {

#if defined(TP_INT8)

constexpr int SLICES = PANEL_ROWS / W; // vectors that hold a word of each row

// What lies at byte `at` of the blocks of the rows of a slice.
inline vi words_at(const byte *block, int at, int slice) { return iload(block + at * PANEL_ROWS + slice * W * 4); }
inline vf halves_at(const byte *block, int at, int slice) {
    return vload16((const uint16_t *)(block + at * PANEL_ROWS) + slice * W);
}

// 16 in each byte of the codes 4 v to 4 v + 3 whose bit of `words` is set.
inline vi fifth_bits(vi words, int v) {
    return value_where(repeated_byte(words, (char)(v / 2)), iset(v % 2 ? (int)0x80402010u : 0x08040201), 16);
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
        return ior(bits(words_at(b, 32 + g / 4 * 32 + 4 * v, slice), -2 * (g % 4), 3),
                   bits(words_at(b, 4 * v, slice), 2 - g, 4));
    }
    if constexpr (TYPE == Q4_K) return nibbles(words_at(b, 16 + g / 2 * 32 + 4 * v, slice), g % 2);
    if constexpr (TYPE == Q5_K) {
        return ior(nibbles(words_at(b, 48 + g / 2 * 32 + 4 * v, slice), g % 2),
                   bits(words_at(b, 16 + 4 * v, slice), 4 - g, 16));
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
        d = vmul(halves_at(b, 208, slice),
                 ifloat(last_byte_signed(left(words_at(b, 192 + p / 4 * 4, slice), 24 - p % 4 * 8))));
    } else if constexpr (TYPE == MXFP4) {
        d = half_powers(bytes_at(b + slice * W));
    } else {
        d = halves_at(b, 0, slice);
        if (Block<TYPE>::MIN) m = halves_at(b, 2, slice);
    }
}

#endif

} // namespace
