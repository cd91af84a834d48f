// Codes and scales of blocks in panels, by type: the lanes of a vector are rows of w.
#pragma once

#include "panels.h"
#include "product_bytes.h"

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
inline vi chosen(vi x, int limit, vi b, vi a) {
    return _mm512_mask_mov_epi32(a, _mm512_cmplt_epi32_mask(x, iset(limit)), b);
}
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
    const __m128i same = _mm_setr_epi8(b, b, b, b, 4 + b, 4 + b, 4 + b, 4 + b, 8 + b, 8 + b, 8 + b, 8 + b, 12 + b,
                                       12 + b, 12 + b, 12 + b);
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
