// Units of 256 codes: a block, or eight blocks of 32. Their codes, by as many groups as a vector holds, and scales.
#pragma once

#include "round8.h"

namespace {

#if defined(TP_INT8)
constexpr int GROUPS8 = 8; // of a unit
template <int TYPE> constexpr int64_t UNIT_SIZE = Block<TYPE>::SIZE * (GROUPS8 / Block<TYPE>::GROUPS);
#endif

#if defined(__AVX512VNNI__)

constexpr int TOGETHER = 2; // groups in a vector

inline vi each_byte(int a) { return _mm512_set1_epi8((char)a); }
// The same for all bytes of the first group, and of the second.
inline vi by_group(int first, int second) {
    return _mm512_inserti64x4(iset(first), _mm256_set1_epi32(second), 1);
}
inline int four_bytes(int byte) { return (int)((unsigned)byte * 0x01010101u); }
inline vi bytes_by_group(int first, int second) { return by_group(four_bytes(first), four_bytes(second)); }
inline vi table_of(const int8_t *values, int excess) {
    const __m128i table = _mm_loadu_si128((const __m128i *)values);
    return _mm512_broadcast_i32x4(_mm_add_epi8(table, _mm_set1_epi8((char)excess)));
}

// The nibbles of 16 bytes at `a`, then of those at `b`, each the low ones first.
inline vi nibbles_of_two(const byte *a, const byte *b) {
    const vi first = _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)a));
    const vi both = _mm512_mask_broadcast_i32x4(first, 0xff00, _mm_loadu_si128((const __m128i *)b));
    const vi moved = _mm512_srlv_epi32(both, _mm512_setr_epi32(0, 0, 0, 0, 4, 4, 4, 4, 0, 0, 0, 0, 4, 4, 4, 4));
    return _mm512_and_si512(moved, each_byte(15));
}
inline vi plus_where(vi a, uint64_t bits, int more) { return _mm512_mask_add_epi8(a, bits, a, each_byte(more)); }

// 32 bytes for both groups, with bits from `shift` on for the first, and from `next` on for the second.
inline vi bits_of_two(const byte *p, int shift, int next, int mask) {
    return _mm512_and_si512(_mm512_srlv_epi32(_mm512_broadcast_i64x4(load32(p)), by_group(shift, next)), each_byte(mask));
}
// Bit `bit` of 32 bytes for the first group, the next one for the second.
inline uint64_t bit_of_two(const byte *p, int bit) {
    return _mm512_test_epi8_mask(_mm512_broadcast_i64x4(load32(p)), bytes_by_group(1 << bit, 2 << bit));
}

// The stored codes of groups g and g + 1 of a unit, g even.
template <int TYPE> inline vi stored_groups(const byte *unit, int g) {
    const byte *a = unit, *b = unit;
    if constexpr (Block<TYPE>::GROUPS == 1) a = unit + g * Block<TYPE>::SIZE, b = a + Block<TYPE>::SIZE;
    if constexpr (TYPE == Q4_0) return nibbles_of_two(a + 2, b + 2);
    if constexpr (TYPE == Q4_1) return nibbles_of_two(a + 4, b + 4);
    if constexpr (TYPE == Q5_0) return plus_where(nibbles_of_two(a + 6, b + 6), words(word_at(a + 2), word_at(b + 2)), 16);
    if constexpr (TYPE == Q5_1) return plus_where(nibbles_of_two(a + 8, b + 8), words(word_at(a + 4), word_at(b + 4)), 16);
    if constexpr (TYPE == IQ4_NL) return _mm512_shuffle_epi8(table_of(IQ4_VALUES, 128), nibbles_of_two(a + 2, b + 2));
    if constexpr (TYPE == MXFP4) return _mm512_shuffle_epi8(table_of(E2M1_VALUES, 12), nibbles_of_two(a + 1, b + 1));
    if constexpr (TYPE == Q2_K) return bits_of_two(a + 16 + g / 4 * 32, g % 4 * 2, g % 4 * 2 + 2, 3);
    if constexpr (TYPE == Q3_K) return plus_where(bits_of_two(a + 32 + g / 4 * 32, g % 4 * 2, g % 4 * 2 + 2, 3), bit_of_two(a, g), 4);
    if constexpr (TYPE == Q4_K) return bits_of_two(a + 16 + g / 2 * 32, 0, 4, 15);
    if constexpr (TYPE == Q5_K) return plus_where(bits_of_two(a + 48 + g / 2 * 32, 0, 4, 15), bit_of_two(a + 16, g), 16);
    if constexpr (TYPE == Q6_K) {
        const vi both = iload(a + g / 4 * 64);
        const vi low = _mm512_and_si512(g % 4 ? _mm512_srli_epi16(both, 4) : both, each_byte(15));
        const vi twos = _mm512_broadcast_i64x4(load32(a + 128 + g / 4 * 32));
        const vi high = g % 4 ? _mm512_srlv_epi32(twos, by_group(0, 2)) : _mm512_sllv_epi32(twos, by_group(4, 2));
        return _mm512_ternarylogic_epi32(high, each_byte(0x30), low, 0xea); // (high & 0x30) | low
    }
    return _mm512_inserti64x4(_mm512_castsi256_si512(stored_codes<TYPE>(a, g)), stored_codes<TYPE>(b, g + 1), 1);
}

// The scale of each lane.
template <bool HALVES> inline vf spread_scales(const __m256 *scales, int g) {
    const vi lane = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    const int first = HALVES ? 2 * g % 8 : g;
    const vi which = _mm512_add_epi32(_mm512_srli_epi32(lane, HALVES ? 2 : 3), iset(first));
    return _mm512_permutexvar_ps(which, _mm512_castps256_ps512(scales[HALVES ? g / 4 : 0]));
}

#elif defined(TP_INT8)

constexpr int TOGETHER = 1;

template <int TYPE> inline vi stored_groups(const byte *unit, int g) {
    typedef Block<TYPE> B;
    return B::GROUPS == 1 ? stored_codes<TYPE>(unit + g * B::SIZE, 0) : stored_codes<TYPE>(unit, g);
}

template <bool HALVES> inline vf spread_scales(const __m256 *scales, int g) {
    const float *floats = (const float *)scales;
    if (!HALVES) return _mm256_set1_ps(floats[g]);
    return _mm256_insertf128_ps(_mm256_set1_ps(floats[2 * g]), _mm_set1_ps(floats[2 * g + 1]), 1);
}

#endif

#if defined(TP_INT8)

// Eight f16 numbers, `step` bytes apart.
inline __m256 eight_halves(const byte *p, int step) {
    short h[8];
    for (int i = 0; i < 8; i++) std::memcpy(h + i, p + i * step, 2);
    return _mm256_cvtph_ps(_mm_setr_epi16(h[0], h[1], h[2], h[3], h[4], h[5], h[6], h[7]));
}

// Eight scales of MXFP4, as `half_of_power` makes them, `step` bytes apart.
inline __m256 eight_powers(const byte *p, int step) {
    uint64_t bytes = 0;
    for (int i = 0; i < 8; i++) bytes |= (uint64_t)p[i * step] << 8 * i;
    const __m256i e = _mm256_cvtepu8_epi32(_mm_cvtsi64_si128((long long)bytes)), two = _mm256_set1_epi32(2);
    const __m256i normal = _mm256_slli_epi32(_mm256_sub_epi32(e, _mm256_set1_epi32(1)), 23);
    const __m256i small = _mm256_sllv_epi32(_mm256_set1_epi32(0x00200000), e);
    return _mm256_castsi256_ps(_mm256_blendv_epi8(normal, small, _mm256_cmpgt_epi32(two, e)));
}

// The scales and minima of a unit.
template <int TYPE> inline void unit_scales(const byte *unit, __m256 *d, __m256 *m) {
    typedef Block<TYPE> B;
    if constexpr (B::GROUPS > 1) {
        B::scales(unit, (float *)d, (float *)m);
    } else if constexpr (TYPE == MXFP4) {
        d[0] = eight_powers(unit, B::SIZE);
    } else {
        d[0] = eight_halves(unit, B::SIZE);
        if (B::MIN) m[0] = eight_halves(unit + 2, B::SIZE);
    }
}

#endif

} // namespace
