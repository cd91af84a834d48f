// 32 codes at a time: taken out of bytes, looked up, as floats; and the numbers that go with them.
#pragma once

#include "program.h"
#include "simd.h"

namespace {

typedef unsigned char byte;

#if defined(__AVX2__)
typedef __m256i Codes;
inline Codes load32(const byte *p) { return _mm256_loadu_si256((const __m256i *)p); }
// Low halves of 16 bytes, then their high halves.
inline Codes nibbles16(const byte *p) {
    const __m256i twice = _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)p));
    const __m256i moved = _mm256_srlv_epi32(twice, _mm256_setr_epi32(0, 0, 0, 0, 4, 4, 4, 4));
    return _mm256_and_si256(moved, _mm256_set1_epi8(15));
}
inline Codes nibbles32(const byte *p, bool high) {
    const __m256i both = load32(p);
    return _mm256_and_si256(high ? _mm256_srli_epi16(both, 4) : both, _mm256_set1_epi8(15));
}
// `value` in each byte whose bit is set.
inline Codes spread(uint32_t bits, char value) {
#if defined(__AVX512VL__) && defined(__AVX512BW__)
    return _mm256_maskz_set1_epi8(bits, value);
#else
    const __m256i where = _mm256_set_epi64x(0x0303030303030303, 0x0202020202020202, 0x0101010101010101, 0);
    const __m256i bit = _mm256_set1_epi64x((long long)0x8040201008040201ull);
    const __m256i copies = _mm256_shuffle_epi8(_mm256_set1_epi32((int)bits), where);
    const __m256i set = _mm256_cmpeq_epi8(_mm256_and_si256(copies, bit), bit);
    return _mm256_and_si256(set, _mm256_set1_epi8(value));
#endif
}
// `value` in each of 32 bytes whose bit `bit` is set.
inline Codes spread_bit(const byte *p, int bit, char value) {
    const __m256i mask = _mm256_set1_epi8((char)(1 << bit));
#if defined(__AVX512VL__) && defined(__AVX512BW__)
    return _mm256_maskz_set1_epi8(_mm256_test_epi8_mask(load32(p), mask), value);
#else
    const __m256i set = _mm256_cmpeq_epi8(_mm256_and_si256(load32(p), mask), mask);
    return _mm256_and_si256(set, _mm256_set1_epi8(value));
#endif
}
// Two bits of each of 32 bytes, from bit `shift` on.
inline Codes pairs(const byte *p, int shift) {
    return _mm256_and_si256(_mm256_srl_epi16(load32(p), _mm_cvtsi32_si128(shift)), _mm256_set1_epi8(3));
}
inline Codes times16(Codes a) { return _mm256_slli_epi16(a, 4); } // of codes below 16
inline Codes looked_up(Codes a, const int8_t *table) {
    return _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)table)), a);
}
inline Codes merge(Codes a, Codes b) { return _mm256_or_si256(a, b); }
inline Codes plus(Codes a, Codes b) { return _mm256_add_epi8(a, b); }
inline Codes minus(Codes a, char b) { return _mm256_sub_epi8(a, _mm256_set1_epi8(b)); }
inline Codes each_code(char a) { return _mm256_set1_epi8(a); }
inline Codes twice16(const byte *p) {
    return _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)p));
}
// The first half of a, the second of b.
inline Codes halves16(Codes a, Codes b) { return _mm256_blend_epi32(a, b, 0xf0); }
inline Codes eights(uint64_t a, uint64_t b, uint64_t c, uint64_t d) {
    return _mm256_setr_epi64x((long long)a, (long long)b, (long long)c, (long long)d);
}
inline Codes fours(uint32_t a, uint32_t b, uint32_t c, uint32_t d, uint32_t e, uint32_t f, uint32_t g, uint32_t h) {
    return _mm256_setr_epi32((int)a, (int)b, (int)c, (int)d, (int)e, (int)f, (int)g, (int)h);
}
// Sixteen bytes as words, those at even places first.
inline __m256i words_apart(__m128i bytes) {
    const __m128i order = _mm_setr_epi8(0, 2, 4, 6, 8, 10, 12, 14, 1, 3, 5, 7, 9, 11, 13, 15);
    return _mm256_cvtepi8_epi16(_mm_shuffle_epi8(bytes, order));
}
// `signs` are 1 and -1.
inline Codes with_signs(Codes a, Codes signs) { return _mm256_sign_epi8(a, signs); }
#if defined(__AVX512F__)
inline vf codes_at(Codes c, int i) {
    const __m128i part = i ? _mm256_extracti128_si256(c, 1) : _mm256_castsi256_si128(c);
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(part));
}
#else
inline vf codes_at(Codes c, int i) {
    __m128i part = i < 2 ? _mm256_castsi256_si128(c) : _mm256_extracti128_si256(c, 1);
    if (i & 1) part = _mm_srli_si128(part, 8);
    return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(part));
}
#endif
#else
struct Codes {
    int8_t at[32];
};
#define EACH(expression)                                                                                               \
    Codes r;                                                                                                           \
    for (int i = 0; i < 32; i++) r.at[i] = (int8_t)(expression);                                                       \
    return r
inline Codes load32(const byte *p) { EACH(p[i]); }
inline Codes nibbles16(const byte *p) { EACH(i < 16 ? p[i] & 15 : p[i - 16] >> 4); }
inline Codes nibbles32(const byte *p, bool high) { EACH(high ? p[i] >> 4 : p[i] & 15); }
inline Codes spread(uint32_t bits, char value) { EACH(bits >> i & 1 ? value : 0); }
inline Codes spread_bit(const byte *p, int bit, char value) { EACH(p[i] >> bit & 1 ? value : 0); }
inline Codes pairs(const byte *p, int shift) { EACH(p[i] >> shift & 3); }
inline Codes times16(Codes a) { EACH(a.at[i] << 4); }
inline Codes looked_up(Codes a, const int8_t *table) { EACH(table[a.at[i]]); }
inline Codes merge(Codes a, Codes b) { EACH(a.at[i] | b.at[i]); }
inline Codes plus(Codes a, Codes b) { EACH(a.at[i] + b.at[i]); }
inline Codes minus(Codes a, char b) { EACH(a.at[i] - b); }
inline Codes each_code(char a) { EACH(a); }
inline Codes twice16(const byte *p) { EACH(p[i % 16]); }
inline Codes halves16(Codes a, Codes b) { EACH(i < 16 ? a.at[i] : b.at[i]); }
inline Codes eights(uint64_t a, uint64_t b, uint64_t c, uint64_t d) {
    const uint64_t all[4] = {a, b, c, d};
    EACH(all[i / 8] >> i % 8 * 8);
}
inline Codes fours(uint32_t a, uint32_t b, uint32_t c, uint32_t d, uint32_t e, uint32_t f, uint32_t g, uint32_t h) {
    const uint32_t all[8] = {a, b, c, d, e, f, g, h};
    EACH(all[i / 4] >> i % 4 * 8);
}
inline Codes with_signs(Codes a, Codes signs) { EACH(a.at[i] * signs.at[i]); }
#undef EACH
inline vf codes_at(Codes c, int i) {
    float lanes[W];
    for (int j = 0; j < W; j++) lanes[j] = c.at[i * W + j];
    return vload(lanes);
}
#endif

constexpr int VECTORS = 32 / W; // that hold a group

inline void to_floats(Codes codes, vf *out) {
    for (int v = 0; v < VECTORS; v++) out[v] = codes_at(codes, v);
}

#if defined(__AVX512F__)
// Codes of four bits become floats by a look-up, which takes the low bits of an index and no notice of the others:
// `first` is the value of code 0. Where a fifth bit is set the value is 16 more.
inline vf codes_from(float first) {
    return _mm512_add_ps(_mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15), _mm512_set1_ps(first));
}
inline __m512i bytes16(const byte *p) { return _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)p)); }
inline vf looked_up(__m512i index, float first) { return _mm512_permutexvar_ps(index, codes_from(first)); }
inline vf looked_up(__m512i index, float first, uint32_t fifth) {
    return _mm512_mask_permutexvar_ps(looked_up(index, first), (__mmask16)fifth, index, codes_from(first + 16));
}
inline void table_floats16(const byte *p, const int8_t *table, vf *out) {
    const vf values = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)table)));
    const __m512i both = bytes16(p);
    out[0] = _mm512_permutexvar_ps(both, values);
    out[1] = _mm512_permutexvar_ps(_mm512_srli_epi32(both, 4), values);
}
inline void nibble_floats16(const byte *p, float first, vf *out) {
    const __m512i both = bytes16(p);
    out[0] = looked_up(both, first);
    out[1] = looked_up(_mm512_srli_epi32(both, 4), first);
}
inline void nibble_floats16(const byte *p, float first, uint32_t fifth, vf *out) {
    const __m512i both = bytes16(p);
    out[0] = looked_up(both, first, fifth);
    out[1] = looked_up(_mm512_srli_epi32(both, 4), first, fifth >> 16);
}
inline void nibble_floats32(const byte *p, bool high, vf *out) {
    const __m512i a = bytes16(p), b = bytes16(p + 16);
    out[0] = looked_up(high ? _mm512_srli_epi32(a, 4) : a, 0);
    out[1] = looked_up(high ? _mm512_srli_epi32(b, 4) : b, 0);
}
inline void nibble_floats32(const byte *p, bool high, uint32_t fifth, vf *out) {
    const __m512i a = bytes16(p), b = bytes16(p + 16);
    out[0] = looked_up(high ? _mm512_srli_epi32(a, 4) : a, 0, fifth);
    out[1] = looked_up(high ? _mm512_srli_epi32(b, 4) : b, 0, fifth >> 16);
}
// The bit `bit` of 32 bytes.
inline uint32_t bits_of(const byte *p, int bit) {
    return _mm256_test_epi8_mask(load32(p), _mm256_set1_epi8((char)(1 << bit)));
}
#define FLOATS(fast) static void floats(const byte *b, int g, vf *out) { (void)g, fast; }
#else
#define FLOATS(fast) static void floats(const byte *b, int g, vf *out) { to_floats(codes(b, g), out); }
#endif

inline float half_at(const byte *p) {
    uint16_t h;
    std::memcpy(&h, p, 2);
    return half_to_float(h);
}
inline uint64_t long_at(const byte *p) {
    uint64_t w;
    std::memcpy(&w, p, 8);
    return w;
}
inline uint32_t word_at(const byte *p) {
    uint32_t w;
    std::memcpy(&w, p, 4);
    return w;
}
inline uint64_t words(uint32_t low, uint32_t high) { return (uint64_t)high << 32 | low; }

// Eight numbers of a byte each, from the lowest on; and times `factor`.
#if defined(__AVX2__)
inline __m256 eight_floats(__m128i bytes) { return _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(bytes)); }
#endif
inline void eight_floats(uint64_t bytes, float factor, float *out) {
#if defined(__AVX2__)
    const __m256 whole = eight_floats(_mm_cvtsi64_si128((long long)bytes));
    _mm256_storeu_ps(out, _mm256_mul_ps(whole, _mm256_set1_ps(factor)));
#else
    for (int i = 0; i < 8; i++) out[i] = factor * (float)(bytes >> 8 * i & 255);
#endif
}
inline void eight_signed_floats(uint64_t bytes, float factor, float *out) {
#if defined(__AVX2__)
    const __m256i whole = _mm256_cvtepi8_epi32(_mm_cvtsi64_si128((long long)bytes));
    _mm256_storeu_ps(out, _mm256_mul_ps(_mm256_cvtepi32_ps(whole), _mm256_set1_ps(factor)));
#else
    for (int i = 0; i < 8; i++) out[i] = factor * (float)(int8_t)(bytes >> 8 * i);
#endif
}

} // namespace
