// Super-blocks in rows as columns of codes and scales, for products with many rows of x. With AVX2, where words are
// transposed before they are unfolded: that takes less than to transpose what they unfold to.
#pragma once

#include "product_bytes.h"
#include "product_tile.h"

namespace {

#if defined(TP_PAIRS)

// Words of eight rows: four vectors, the first words of all rows, the second ones and so on.
struct FourWords {
    vi at[4];

    // Of the 16 bytes that begin `offset` bytes into the rows.
    FourWords(const byte *const *rows, int64_t offset) {
        vi v[4];
        for (int r = 0; r < 4; r++)
            v[r] = _mm256_loadu2_m128i((const __m128i *)(rows[r + 4] + offset), (const __m128i *)(rows[r] + offset));
        const vi a = _mm256_unpacklo_epi32(v[0], v[1]), b = _mm256_unpacklo_epi32(v[2], v[3]);
        const vi c = _mm256_unpackhi_epi32(v[0], v[1]), d = _mm256_unpackhi_epi32(v[2], v[3]);
        at[0] = _mm256_unpacklo_epi64(a, b), at[1] = _mm256_unpackhi_epi64(a, b);
        at[2] = _mm256_unpacklo_epi64(c, d), at[3] = _mm256_unpackhi_epi64(c, d);
    }
};

// Some bits of each byte, moved to where `mask` wants them.
inline vi moved_bits(vi words, int to_left, int mask) {
    const vi moved = to_left < 0 ? _mm256_srli_epi32(words, -to_left) : _mm256_slli_epi32(words, to_left);
    return _mm256_and_si256(moved, _mm256_set1_epi8((char)mask));
}

// Half of the codes of each group, 16 h to 16 h + 15, of blocks of eight rows, four codes of a row side by side. `out`
// is where the codes of these rows begin.
template <int TYPE> void weave_half_groups8(const byte *const *units, int h, uint8_t *out) {
    const auto store = [out, h](int g, int i, vi codes) { istore(out + (g * 8 + h * 4 + i) * 4 * COLUMNS, codes); };
    if constexpr (TYPE == Q2_K || TYPE == Q3_K) {
        const FourWords high(units, TYPE == Q3_K ? h * 16 : 0);
#pragma GCC unroll 2
        for (int four = 0; four < 2; four++) {
            const FourWords low(units, (TYPE == Q2_K ? 16 : 32) + four * 32 + h * 16);
#pragma GCC unroll 4
            for (int j = 0; j < 4; j++) {
                const int g = four * 4 + j;
                for (int i = 0; i < 4; i++) {
                    const vi codes = moved_bits(low.at[i], -2 * j, 3);
                    store(g, i, TYPE == Q2_K ? codes : _mm256_or_si256(codes, moved_bits(high.at[i], 2 - g, 4)));
                }
            }
        }
    } else if constexpr (TYPE == Q6_K) {
#pragma GCC unroll 2
        for (int four = 0; four < 2; four++) {
            const FourWords high(units, 128 + four * 32 + h * 16);
#pragma GCC unroll 2
            for (int j = 0; j < 2; j++) {
                const FourWords low(units, four * 64 + j * 32 + h * 16);
                for (int i = 0; i < 4; i++) {
                    for (int k = 0; k < 2; k++) {
                        const vi codes = moved_bits(low.at[i], -4 * k, 15);
                        const vi twos = moved_bits(high.at[i], 4 - 2 * j - 4 * k, 0x30);
                        store(four * 4 + j + 2 * k, i, _mm256_or_si256(codes, twos));
                    }
                }
            }
        }
    } else {
        const FourWords high(units, TYPE == Q5_K ? 16 + h * 16 : 0);
#pragma GCC unroll 4
        for (int two = 0; two < 4; two++) {
            const FourWords low(units, Block<TYPE>::SIZE - 128 + two * 32 + h * 16);
            for (int i = 0; i < 4; i++) {
                for (int odd = 0; odd < 2; odd++) {
                    const int g = two * 2 + odd;
                    const vi codes = moved_bits(low.at[i], -4 * odd, 15);
                    store(g, i, TYPE == Q4_K ? codes : _mm256_or_si256(codes, moved_bits(high.at[i], 4 - g, 16)));
                }
            }
        }
    }
}
// The codes of blocks of COLUMNS rows.
template <int TYPE> void weave_super_blocks8(const byte *const *units, uint8_t *out) {
    for (int c = 0; c < COLUMNS; c += W) {
        for (int h = 0; h < 2; h++) weave_half_groups8<TYPE>(units + c, h, out + c * 4);
    }
}

// Byte `b` of each word as a number of 32 bits, and as two of 16 bits.
inline vi byte_of_words(vi words, int b) { return _mm256_srai_epi32(_mm256_slli_epi32(words, 24 - 8 * b), 24); }
inline vi byte_twice(vi words, char b) {
    const char no = -128;
    const __m128i at = _mm_setr_epi8(no, b, no, b, no, 4 + b, no, 4 + b, no, 8 + b, no, 8 + b, no, 12 + b, no, 12 + b);
    return _mm256_srai_epi16(_mm256_shuffle_epi8(words, _mm256_broadcastsi128_si256(at)), 8);
}

// The scales and minima of blocks of COLUMNS rows: `d` is a number of each, the others are numbers of each part.
template <int TYPE> void weave_scales8(const byte *const *units, float *d, float *m, int32_t *factors) {
    typedef Block<TYPE> B;
    constexpr int PARTS = B::GROUPS * GROUP / part_of<TYPE>();
    alignas(32) byte scales[COLUMNS][16], minima[COLUMNS][16];
    alignas(32) float least[COLUMNS];
    const byte *scales_at[COLUMNS], *minima_at[COLUMNS];
    for (int c = 0; c < COLUMNS; c++) {
        d[c] = B::factor(units[c]);
        _mm_store_si128((__m128i *)scales[c], B::whole_scales(units[c]));
        scales_at[c] = scales[c];
        if constexpr (B::MIN) {
            least[c] = -B::least(units[c]);
            minima_at[c] = minima[c];
            if constexpr (PARTS == 16) _mm_store_si128((__m128i *)minima[c], B::whole_minima(units[c]));
            else minima_at[c] = scales[c];
        }
    }
    for (int c = 0; c < COLUMNS; c += W) {
        const FourWords words(scales_at + c, 0);
#pragma GCC unroll 16
        for (int p = 0; p < PARTS; p++) istore(factors + p * COLUMNS + c, byte_twice(words.at[p / 4], (char)(p % 4)));
        if constexpr (B::MIN) {
            const FourWords more(minima_at + c, 0);
#pragma GCC unroll 16
            for (int p = 0; p < PARTS; p++) {
                const vi numbers = byte_of_words(more.at[(PARTS == 8 ? 2 : 0) + p / 4], p % 4);
                vstore(m + p * COLUMNS + c, vmul(ifloat(numbers), vload(least + c)));
            }
        }
    }
}

#endif

} // namespace
