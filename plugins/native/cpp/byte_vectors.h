// Vectors of bytes, or of words of four: what each level has to take them apart.
#pragma once

#include "product_bytes.h"

namespace {

#if defined(TP_INT8)

inline vi iand(vi a, vi b) { return a & b; }
inline vi ior(vi a, vi b) { return a | b; }
inline vi ixor(vi a, vi b) { return a ^ b; }

#if defined(__AVX512VNNI__)

inline vi each_byte(int a) { return _mm512_set1_epi8((char)a); }
inline vi iadd(vi a, vi b) { return _mm512_add_epi32(a, b); }
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
// `value` in each byte that has the bit of `bits`.
inline vi value_where(vi a, vi bits, char value) {
    return _mm512_maskz_set1_epi8(_mm512_test_epi8_mask(a, bits), value);
}

#elif defined(__AVX2__)

inline vi each_byte(int a) { return _mm256_set1_epi8((char)a); }
inline vi iadd(vi a, vi b) { return _mm256_add_epi32(a, b); }
inline vi high_nibbles(vi a) { return _mm256_srli_epi16(a, 4); }
inline vi left(vi a, vi n) { return _mm256_sllv_epi32(a, n); }
inline vi right(vi a, vi n) { return _mm256_srlv_epi32(a, n); }
inline vi last_byte_signed(vi a) { return _mm256_srai_epi32(a, 24); }
inline vi looked_up(vi table, vi at) { return _mm256_shuffle_epi8(table, at); }
inline vi bytes_at(const byte *p) { return _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)p)); }
inline vi chosen(vi x, int limit, vi b, vi a) { return _mm256_blendv_epi8(a, b, _mm256_cmpgt_epi32(iset(limit), x)); }
inline vf as_floats(vi bits) { return _mm256_castsi256_ps(bits); }
inline vi in_each_lane(__m128i a) { return _mm256_broadcastsi128_si256(a); }
inline vi value_where(vi a, vi bits, char value) {
    return iand(_mm256_cmpeq_epi8(iand(a, bits), bits), each_byte(value));
}

#else

inline vi each_byte(int a) { return vreinterpretq_s32_s8(vdupq_n_s8((int8_t)a)); }
inline vi iadd(vi a, vi b) { return vaddq_s32(a, b); }
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
inline vi value_where(vi a, vi bits, char value) {
    return iand(vreinterpretq_s32_u8(vtstq_u8(vreinterpretq_u8_s32(a), vreinterpretq_u8_s32(bits))), each_byte(value));
}

#endif

// `table_of`: sixteen bytes, each made larger by `excess`, as `looked_up` wants them. `repeated_byte`: byte `b` of each
// word in all four bytes of it.
#if defined(__AVX2__)
inline vi table_of(const int8_t *values, int excess) {
    return in_each_lane(_mm_add_epi8(_mm_loadu_si128((const __m128i *)values), _mm_set1_epi8((char)excess)));
}
inline vi repeated_byte(vi words, char b) {
    const __m128i same = _mm_setr_epi8(b, b, b, b, 4 + b, 4 + b, 4 + b, 4 + b, 8 + b, 8 + b, 8 + b, 8 + b, 12 + b,
                                       12 + b, 12 + b, 12 + b);
    return looked_up(words, in_each_lane(same));
}
#else
inline vi table_of(const int8_t *values, int excess) {
    return vreinterpretq_s32_s8(vaddq_s8(vld1q_s8(values), vdupq_n_s8((int8_t)excess)));
}
inline vi repeated_byte(vi words, char b) {
    const int8x16_t first = {0, 0, 0, 0, 4, 4, 4, 4, 8, 8, 8, 8, 12, 12, 12, 12};
    return looked_up(words, vreinterpretq_s32_s8(vaddq_s8(first, vdupq_n_s8(b))));
}
#endif

inline vi left(vi a, int n) { return left(a, iset(n)); }
inline vi right(vi a, int n) { return right(a, iset(n)); }

inline vi nibbles(vi words, bool high) { return iand(high ? high_nibbles(words) : words, each_byte(15)); }
// Some bits of each byte, moved to where `mask` wants them.
inline vi bits(vi words, int to_left, int mask) {
    return iand(to_left < 0 ? right(words, -to_left) : left(words, to_left), each_byte(mask));
}
inline vi number(vi words, int from, int mask) { return iand(right(words, from), iset(mask)); }

#endif

} // namespace
