// Block types of 256 codes whose scales are numbers of a few bits themselves.
#pragma once

#include "blocks.h"

namespace {

constexpr bool is_super_block(int type) {
    return type == Q2_K || type == Q3_K || type == Q4_K || type == Q5_K || type == Q6_K;
}

// Eight scales and eight minima of six bits in twelve bytes: the first four of each lie in the low six bits of a byte;
// the others have four bits in the last four bytes, and two where those of the first four end.
inline uint64_t six_bit_bytes(uint32_t first, uint32_t rest) {
    return words(first & 0x3f3f3f3f, (rest & 0x0f0f0f0f) | (first >> 2 & 0x30303030));
}
inline uint64_t six_bit_scales(const byte *b) { return six_bit_bytes(word_at(b + 4), word_at(b + 12)); }
inline uint64_t six_bit_minima(const byte *b) { return six_bit_bytes(word_at(b + 8), word_at(b + 12) >> 4); }
#if defined(__AVX2__)
// All of them, of a block that begins with two halves and these twelve bytes.
inline __m128i six_bit_pairs(__m128i b) {
    const __m128i low = _mm_srlv_epi32(_mm_shuffle_epi32(b, 0xed), _mm_setr_epi32(0, 0, 0, 4));
    const __m128i high = _mm_srli_epi32(_mm_shuffle_epi32(b, 0xa5), 2);
    return _mm_or_si128(_mm_and_si128(low, _mm_setr_epi32(0x3f3f3f3f, 0x0f0f0f0f, 0x3f3f3f3f, 0x0f0f0f0f)),
                        _mm_and_si128(high, _mm_setr_epi32(0, 0x30303030, 0, 0x30303030)));
}
#endif
// The same as numbers.
inline void six_bit_pairs(const byte *b, float *d, float *m) {
#if defined(__AVX2__)
    const __m128i all = _mm_loadu_si128((const __m128i *)b), both = six_bit_pairs(all);
    const __m128 factors = _mm_xor_ps(_mm_cvtph_ps(all), _mm_setr_ps(0, -0.0f, 0, 0));
    const __m256 scales = eight_floats(both), minima = eight_floats(_mm_unpackhi_epi64(both, both));
    _mm256_storeu_ps(d, _mm256_mul_ps(scales, _mm256_broadcastss_ps(factors)));
    _mm256_storeu_ps(m, _mm256_mul_ps(minima, _mm256_broadcastss_ps(_mm_movehdup_ps(factors))));
#else
    eight_floats(six_bit_scales(b), half_at(b), d);
    eight_floats(six_bit_minima(b), -half_at(b + 2), m);
#endif
}

template <> struct Block<Q2_K> {
    static constexpr int SIZE = 84, GROUPS = 8, MOST = 3;
    static constexpr bool MIN = true, HALVES = true;
    static float factor(const byte *b) { return half_at(b + 80); }
    static float least(const byte *b) { return half_at(b + 82); }
    static void scales(const byte *b, float *d, float *m) {
        for (int i = 0; i < 16; i += 8) {
            const uint64_t both = long_at(b + i), low = 0x0f0f0f0f0f0f0f0full;
            eight_floats(both & low, factor(b), d + i);
            eight_floats(both >> 4 & low, -least(b), m + i);
        }
    }
#if defined(TP_ONLY_AVX2)
    static __m128i whole_scales(const byte *b) {
        return _mm_and_si128(_mm_loadu_si128((const __m128i *)b), _mm_set1_epi8(15));
    }
    static __m128i whole_minima(const byte *b) {
        return _mm_and_si128(_mm_srli_epi16(_mm_loadu_si128((const __m128i *)b), 4), _mm_set1_epi8(15));
    }
#endif
    static constexpr int ZERO = 0;
    // 32 bytes hold two bits of each of four groups.
    static Codes raw(const byte *b, int g) { return pairs(b + 16 + g / 4 * 32, g % 4 * 2); }
    static Codes codes(const byte *b, int g) { return raw(b, g); }
    static void floats(const byte *b, int g, vf *out) { to_floats(codes(b, g), out); }
};

template <> struct Block<Q3_K> {
    static constexpr int SIZE = 110, GROUPS = 8, MOST = 4;
    static constexpr bool MIN = false, HALVES = true;
    // Sixteen scales of six bits, 32 too large: four bits of each in eight bytes, two in the four that follow.
    static uint64_t eight_scales(const byte *b, bool second) {
        const uint32_t two = word_at(b + 104), top = 0x30303030;
        const uint64_t tops = second ? words(two & top, two >> 2 & top) : words(two << 4 & top, two << 2 & top);
        return less32((long_at(b + 96) >> (second ? 4 : 0) & 0x0f0f0f0f0f0f0f0full) | tops);
    }
    static float factor(const byte *b) { return half_at(b + 108); }
    static void scales(const byte *b, float *d, float *) {
        for (int i = 0; i < 2; i++) eight_signed_floats(eight_scales(b, i), factor(b), d + 8 * i);
    }
#if defined(TP_ONLY_AVX2)
    static __m128i whole_scales(const byte *b) {
        return _mm_set_epi64x((long long)eight_scales(b, true), (long long)eight_scales(b, false));
    }
#endif
    // Of bytes below 64, without borrowing from the next one.
    static uint64_t less32(uint64_t bytes) {
        const uint64_t tops = 0x8080808080808080ull;
        return ((bytes | tops) - 0x2020202020202020ull) ^ tops;
    }
    static constexpr int ZERO = 4;
    static Codes raw(const byte *b, int g) {
        return merge(pairs(b + 32 + g / 4 * 32, g % 4 * 2), spread_bit(b, g, 4));
    }
    static Codes codes(const byte *b, int g) { return minus(raw(b, g), ZERO); }
    static void floats(const byte *b, int g, vf *out) { to_floats(codes(b, g), out); }
};

// Blocks that begin with two halves and those twelve bytes.
struct SixBitScales {
    static constexpr bool MIN = true, HALVES = false;
    static void scales(const byte *b, float *d, float *m) { six_bit_pairs(b, d, m); }
    static float factor(const byte *b) { return half_at(b); }
    static float least(const byte *b) { return half_at(b + 2); }
#if defined(TP_ONLY_AVX2)
    // The minima follow the scales.
    static __m128i whole_scales(const byte *b) { return six_bit_pairs(_mm_loadu_si128((const __m128i *)b)); }
#endif
};

template <> struct Block<Q4_K> : SixBitScales {
    static constexpr int SIZE = 144, GROUPS = 8, MOST = 15;
    static constexpr int ZERO = 0;
    static Codes raw(const byte *b, int g) { return nibbles32(b + 16 + g / 2 * 32, g & 1); }
    static Codes codes(const byte *b, int g) { return raw(b, g); }
    FLOATS(nibble_floats32(b + 16 + g / 2 * 32, g & 1, out))
};

template <> struct Block<Q5_K> : SixBitScales {
    static constexpr int SIZE = 176, GROUPS = 8, MOST = 31;
    static constexpr int ZERO = 0;
    static Codes raw(const byte *b, int g) {
        return merge(nibbles32(b + 48 + g / 2 * 32, g & 1), spread_bit(b + 16, g, 16));
    }
    static Codes codes(const byte *b, int g) { return raw(b, g); }
    FLOATS(nibble_floats32(b + 48 + g / 2 * 32, g & 1, bits_of(b + 16, g), out))
};

template <> struct Block<Q6_K> {
    static constexpr int SIZE = 210, GROUPS = 8, MOST = 32;
    static constexpr bool MIN = false, HALVES = true;
    static float factor(const byte *b) { return half_at(b + 208); }
    static void scales(const byte *b, float *d, float *) {
        for (int i = 0; i < 16; i += 8) eight_signed_floats(long_at(b + 192 + i), factor(b), d + i);
    }
#if defined(TP_ONLY_AVX2)
    static __m128i whole_scales(const byte *b) { return _mm_loadu_si128((const __m128i *)(b + 192)); }
#endif
    static constexpr int ZERO = 32;
    static Codes raw(const byte *b, int g) {
        // Each half of a block: 64 bytes whose low, then high halves make two groups each, and 32 bytes with two
        // more bits for each of the four.
        const int half = g / 4, quarter = g % 4;
        const Codes low = nibbles32(b + 64 * half + 32 * (quarter & 1), quarter >> 1);
        return merge(low, times16(pairs(b + 128 + 32 * half, 2 * quarter)));
    }
    static Codes codes(const byte *b, int g) { return minus(raw(b, g), ZERO); }
    static void floats(const byte *b, int g, vf *out) { to_floats(codes(b, g), out); }
};

} // namespace
