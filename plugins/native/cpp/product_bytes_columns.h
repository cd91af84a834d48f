// Super-blocks in rows as columns of codes and scales, for products with many rows of x. With AVX2, where words are
// transposed before they are unfolded: that takes less than to transpose what they unfold to.
#pragma once

#include "byte_vectors.h"
#include "product_tile.h"

namespace {

#if defined(TP_PAIRS)

// Words of eight rows: four vectors, the first words of all rows, the second ones and so on.
struct FourWords {
    vi at[4];

    // `sixteen(r)` has 16 bytes of row r.
    template <class Sixteen> explicit FourWords(const Sixteen &sixteen) {
        vi v[4];
        for (int r = 0; r < 4; r++) v[r] = _mm256_setr_m128i(sixteen(r), sixteen(r + 4));
        const vi a = _mm256_unpacklo_epi32(v[0], v[1]), b = _mm256_unpacklo_epi32(v[2], v[3]);
        const vi c = _mm256_unpackhi_epi32(v[0], v[1]), d = _mm256_unpackhi_epi32(v[2], v[3]);
        at[0] = _mm256_unpacklo_epi64(a, b), at[1] = _mm256_unpackhi_epi64(a, b);
        at[2] = _mm256_unpacklo_epi64(c, d), at[3] = _mm256_unpackhi_epi64(c, d);
    }
    // Those that begin `offset` bytes into blocks of the rows.
    FourWords(const byte *const *units, int offset)
        : FourWords([=](int r) { return _mm_loadu_si128((const __m128i *)(units[r] + offset)); }) {}
};

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
                    const vi codes = bits(low.at[i], -2 * j, 3);
                    store(g, i, TYPE == Q2_K ? codes : ior(codes, bits(high.at[i], 2 - g, 4)));
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
                        const vi codes = bits(low.at[i], -4 * k, 15);
                        const vi twos = bits(high.at[i], 4 - 2 * j - 4 * k, 0x30);
                        store(four * 4 + j + 2 * k, i, ior(codes, twos));
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
                    const vi codes = bits(low.at[i], -4 * odd, 15);
                    store(g, i, TYPE == Q4_K ? codes : ior(codes, bits(high.at[i], 4 - g, 16)));
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

// Minima of W blocks, `words` of bytes of four parts each, times their factors.
template <int PARTS> void store_minima8(const vi *words, vf factors, float *m) {
#pragma GCC unroll 16
    for (int p = 0; p < PARTS; p++)
        vstore(m + p * COLUMNS, vmul(ifloat(number(words[p / 4], p % 4 * 8, 255)), factors));
}

// The scales and minima of blocks of COLUMNS rows: `d` is a number of each, the others are numbers of each part.
template <int TYPE> void weave_scales8(const byte *const *units, float *d, float *m, int32_t *factors) {
    typedef Block<TYPE> B;
    constexpr int PARTS = B::GROUPS * GROUP / part_of<TYPE>();
    for (int c = 0; c < COLUMNS; c += W, units += W) {
        for (int r = 0; r < W; r++) d[c + r] = B::factor(units[r]);
        const FourWords scales([=](int r) { return B::whole_scales(units[r]); });
#pragma GCC unroll 16
        for (int p = 0; p < PARTS; p++) {
            const vi twice = _mm256_srai_epi16(repeated_byte(scales.at[p / 4], (char)(p % 4)), 8);
            istore(factors + p * COLUMNS + c, twice);
        }
        if constexpr (B::MIN) {
            alignas(32) float least[W];
            for (int r = 0; r < W; r++) least[r] = -B::least(units[r]);
            if constexpr (B::HALVES) {
                const FourWords minima([=](int r) { return B::whole_minima(units[r]); });
                store_minima8<PARTS>(minima.at, vload(least), m + c);
            } else {
                store_minima8<PARTS>(scales.at + PARTS / 4, vload(least), m + c);
            }
        }
    }
}

#endif

} // namespace
