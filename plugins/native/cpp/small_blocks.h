// Block types of few bits that no grid is needed for: iq4_xs, three values (tq1_0, tq2_0), nvfp4, one and two bits.
//
// These and the types of grids (grid_blocks.h) have no minima.
#pragma once

#include "superblocks.h"

namespace {

template <> struct Block<IQ4_XS> {
    static constexpr int SIZE = 136, GROUPS = 8, MOST = 127;
    static constexpr bool MIN = false, HALVES = false;
    // Eight scales of six bits, 32 too large: two bits of each in two bytes, four in the four that follow.
    static void scales(const byte *b, float *d, float *) {
#if defined(__AVX2__)
        const __m256i place = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
        const __m256i four = _mm256_srlv_epi32(_mm256_set1_epi32((int)word_at(b + 4)), _mm256_slli_epi32(place, 2));
        const __m256i two = _mm256_srlv_epi32(_mm256_set1_epi32(b[2] << 4 | b[3] << 12), _mm256_slli_epi32(place, 1));
        const __m256i both = _mm256_or_si256(_mm256_and_si256(four, _mm256_set1_epi32(15)),
                                             _mm256_and_si256(two, _mm256_set1_epi32(0x30)));
        const __m256 whole = _mm256_cvtepi32_ps(_mm256_sub_epi32(both, _mm256_set1_epi32(32)));
        _mm256_storeu_ps(d, _mm256_mul_ps(whole, _mm256_set1_ps(half_at(b))));
#else
        const uint32_t four = word_at(b + 4), two = b[2] | b[3] << 8;
        for (int i = 0; i < 8; i++)
            d[i] = half_at(b) * (float)((int)((four >> 4 * i & 15) | (two >> 2 * i & 3) << 4) - 32);
#endif
    }
    static constexpr int ZERO = 128;
    static Codes raw(const byte *b, int g) { return minus(codes(b, g), -128); }
    static Codes codes(const byte *b, int g) { return looked_up(nibbles16(b + 8 + 16 * g), IQ4_VALUES); }
    FLOATS(table_floats16(b + 8 + 16 * g, IQ4_VALUES, out))
};

// The same scale for `count` groups.
inline void one_scale(const byte *b, int count, float *d) {
    const float scale = half_at(b);
    for (int i = 0; i < count; i++) d[i] = scale;
}

template <> struct Block<TQ2_0> {
    static constexpr int SIZE = 66, GROUPS = 8, MOST = 2;
    static constexpr bool MIN = false, HALVES = false;
    static void scales(const byte *b, float *d, float *) { one_scale(b + 64, 8, d); }
    static float factor(const byte *b) { return half_at(b + 64); }
    static constexpr int ZERO = 1;
    static Codes raw(const byte *b, int g) { return pairs(b + g / 4 * 32, g % 4 * 2); }
    static Codes codes(const byte *b, int g) { return minus(raw(b, g), ZERO); }
    static void floats(const byte *b, int g, vf *out) { to_floats(codes(b, g), out); }
};

// Numbers of five digits below three are fractions of 256: the whole part of three times such a fraction is the first
// digit, what is behind the point has the others.
template <> struct Block<TQ1_0> {
    static constexpr int SIZE = 54, GROUPS = 8, MOST = 1;
    static constexpr bool MIN = false, HALVES = false;
    static void scales(const byte *b, float *d, float *) { one_scale(b + 52, 8, d); }
    static constexpr int ZERO = 1;
    static Codes raw(const byte *b, int g) { return first_digits(fractions(b, g)); }
    static Codes codes(const byte *b, int g) { return minus(raw(b, g), ZERO); }
    static void floats(const byte *b, int g, vf *out) { to_floats(codes(b, g), out); }

    // Fractions whose first digits are the codes of a group. 32 bytes are for five groups, 16 for half a group each,
    // 4 for four fours. On x86 all bytes are less 128, so that they compare as signed ones; so is three times a byte.
    static Codes fractions(const byte *b, int g) {
        if (g < 5) return without(moved(load32(b)), g);
        const Codes first = without(moved(twice16(b + 32)), 2 * (g - 5));
        return halves16(first, g < 7 ? without(first, 1) : moved(last_half(b)));
    }
    // Four bytes, then these without their first digit, without two and three: in the second half.
    static Codes last_half(const byte *b) {
#if defined(__AVX2__)
        const __m128i all = _mm_set1_epi32((int)word_at(b + 48)), low = _mm_set1_epi16(255);
        const __m128i powers = _mm_setr_epi16(1, 1, 3, 3, 9, 9, 27, 27);
        const __m128i even = _mm_and_si128(_mm_mullo_epi16(_mm_and_si128(all, low), powers), low);
        const __m128i odd = _mm_slli_epi16(_mm_mullo_epi16(_mm_srli_epi16(all, 8), powers), 8);
        return _mm256_broadcastsi128_si256(_mm_or_si128(even, odd));
#else
        const uint32_t all = word_at(b + 48), once = without(all), again = without(once);
        return fours(0, 0, 0, 0, all, once, again, without(again));
#endif
    }
    // Bytes without their first digits.
    static Codes without(Codes a, int digits) {
        if (digits > 2) a = without(a, digits - 2), digits = 2;
        if (digits > 1) a = plus(plus(a, a), a);
        if (digits > 0) a = plus(plus(a, a), a);
        return a;
    }
#if defined(__AVX2__)
    static Codes moved(Codes a) { return _mm256_xor_si256(a, each_code(-128)); }
    // 86 * 3 is above 256, 171 * 3 above 512.
    static constexpr int ONE = 85 - 128, TWO = 170 - 128;
    static Codes first_digits(Codes a) {
        Codes most_of_none = each_code(ONE), most_of_one = each_code(TWO);
        asm("" : "+x"(most_of_none), "+x"(most_of_one)); // with constants GCC compares in two instructions
        const Codes one = _mm256_cmpgt_epi8(a, most_of_none), two = _mm256_cmpgt_epi8(a, most_of_one);
        return _mm256_abs_epi8(_mm256_add_epi8(one, two));
    }
#else
    static uint32_t without(uint32_t bytes) {
        const uint32_t odd = 0xff00ff00, even = 0x00ff00ff;
        return ((bytes & even) * 3 & even) | ((bytes >> 8 & even) * 3 << 8 & odd);
    }
    static Codes moved(Codes a) { return a; }
    static Codes first_digits(Codes a) {
        for (int i = 0; i < 32; i++) a.at[i] = (int8_t)((uint8_t)a.at[i] * 3 >> 8);
        return a;
    }
#endif
};

// The scales of NVFP4 by their byte: floats with four bits of exponent and three of fraction (E4M3, the sign is not
// used). They are halved, so that codes are whole numbers. The byte 127 stands for NaN, and its scale is 0 here.
struct Nvfp4Scales {
    float at[256];
};
constexpr Nvfp4Scales nvfp4_scales() {
    Nvfp4Scales table{};
    for (int i = 0; i < 256; i++) {
        const int e = i >> 3 & 15;
        float value = (float)((e ? 8 : 0) + (i & 7)) / 1024;
        for (int power = 1; power < e; power++) value *= 2;
        table.at[i] = i == 127 ? 0 : value;
    }
    return table;
}
constexpr Nvfp4Scales NVFP4_SCALES = nvfp4_scales();

template <> struct Block<NVFP4> {
    static constexpr int SIZE = 36, GROUPS = 2, MOST = 12;
    static constexpr bool MIN = false, HALVES = true;
    static void scales(const byte *b, float *d, float *) {
        for (int i = 0; i < 4; i++) d[i] = NVFP4_SCALES.at[b[i]];
    }
    static constexpr int ZERO = 12;
    // E2M1_VALUES and ZERO.
    static constexpr int8_t STORED[16] = {12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0};
    static Codes raw(const byte *b, int g) { return looked_up(nibbles8(b + 4 + 16 * g), STORED); }
    static Codes codes(const byte *b, int g) { return looked_up(nibbles8(b + 4 + 16 * g), E2M1_VALUES); }
    static void floats(const byte *b, int g, vf *out) { to_floats(codes(b, g), out); }

    // Low halves of eight bytes, then their high halves; the same for eight more.
    static Codes nibbles8(const byte *p) {
#if defined(__AVX2__)
        return _mm256_permute4x64_epi64(nibbles16(p), 0xd8);
#else
        Codes r;
        for (int i = 0; i < 32; i++) r.at[i] = (int8_t)(p[i / 16 * 8 + i % 8] >> i % 16 / 8 * 4 & 15);
        return r;
#endif
    }
};

template <> struct Block<Q1_0> {
    static constexpr int SIZE = 18, GROUPS = 4, MOST = 1;
    static constexpr bool MIN = false, HALVES = false;
    static void scales(const byte *b, float *d, float *) { one_scale(b, 4, d); }
    static constexpr int ZERO = 1;
    static Codes raw(const byte *b, int g) { return spread(word_at(b + 2 + 4 * g), 2); }
    static Codes codes(const byte *b, int g) { return minus(raw(b, g), ZERO); }
    static void floats(const byte *b, int g, vf *out) { to_floats(codes(b, g), out); }
};

template <> struct Block<Q2_0> {
    static constexpr int SIZE = 18, GROUPS = 2, MOST = 2;
    static constexpr bool MIN = false, HALVES = false;
    static void scales(const byte *b, float *d, float *) { one_scale(b, 2, d); }
    static constexpr int ZERO = 1;
    // Four codes in each of eight bytes.
    static Codes raw(const byte *b, int g) {
        const byte *p = b + 2 + 8 * g;
#if defined(__AVX2__)
        const __m256i a = _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)p));
        const __m256i two = _mm256_or_si256(a, _mm256_slli_epi32(a, 6));
        return _mm256_and_si256(_mm256_or_si256(two, _mm256_slli_epi32(two, 12)), each_code(3));
#else
        Codes r;
        for (int i = 0; i < 32; i++) r.at[i] = (int8_t)(p[i / 4] >> 2 * (i % 4) & 3);
        return r;
#endif
    }
    static Codes codes(const byte *b, int g) { return minus(raw(b, g), ZERO); }
    static void floats(const byte *b, int g, vf *out) { to_floats(codes(b, g), out); }
};

} // namespace
