// Block types whose codes are rows of a grid: iq1_s, iq1_m, iq2_xxs, iq2_xs, iq2_s, iq3_xxs, iq3_s. Blocks hold the
// number of a row, of as many bits as the grid has rows, so no block names one that is not there.
#pragma once

#include "grids.h"
#include "small_blocks.h"

namespace {

// Rows of a grid with a byte for each code.
template <class Row, int N> struct Grid {
    Row rows[N];
    constexpr const Row &operator[](int i) const { return rows[i]; }
};
template <class Row, int N, int VALUES>
constexpr Grid<Row, N> grid_of(const uint16_t (&packed)[N], const int8_t (&values)[VALUES], int factor, int divisor,
                               int more) {
    constexpr int LENGTH = sizeof(Row), BITS = 16 / LENGTH;
    Grid<Row, N> grid{};
    for (int row = 0; row < N; row++) {
        for (int i = 0; i < LENGTH; i++) {
            const int value = values[packed[row] >> BITS * i & ((1 << BITS) - 1)] * factor / divisor + more;
            grid.rows[row] |= (Row)value << 8 * i;
        }
    }
    return grid;
}
// Eight times the values, and eight.
constexpr auto IQ1_ROWS = grid_of<uint64_t>(GRID_IQ1_S, VALUES_IQ1_S, 8, 1, 8);
constexpr auto IQ2_XXS_ROWS = grid_of<uint64_t>(GRID_IQ2_XXS, VALUES_IQ2_XXS, 1, 1, 0);
constexpr auto IQ2_XS_ROWS = grid_of<uint64_t>(GRID_IQ2_XS, VALUES_IQ2_XS, 1, 1, 0);
constexpr auto IQ2_S_ROWS = grid_of<uint64_t>(GRID_IQ2_S, VALUES_IQ2_S, 1, 1, 0);
// Half of the values, which are even.
constexpr auto IQ3_XXS_ROWS = grid_of<uint32_t>(GRID_IQ3_XXS, VALUES_IQ3_XXS, 1, 2, 0);
constexpr auto IQ3_S_ROWS = grid_of<uint32_t>(GRID_IQ3_S, VALUES_IQ3_S, 1, 1, 0);

// Seven bits are the signs of seven values; the eighth makes the number of minuses even. As 1 and -1.
constexpr Grid<uint64_t, 128> signs_by_seven() {
    Grid<uint64_t, 128> table{};
    for (int bits = 0; bits < 128; bits++) {
        bool odd = false;
        for (int i = 0; i < 8; i++) {
            const bool minus = i < 7 ? bits >> i & 1 : odd;
            odd ^= minus;
            table.rows[bits] |= (uint64_t)(minus ? 255 : 1) << 8 * i;
        }
    }
    return table;
}
constexpr auto SIGNS = signs_by_seven();

// Of four times seven bits.
inline Codes four_signs(uint32_t bits) {
    return eights(SIGNS[bits & 127], SIGNS[bits >> 7 & 127], SIGNS[bits >> 14 & 127], SIGNS[bits >> 21 & 127]);
}
inline Codes signs_of(uint32_t bits) { return merge(spread(bits, -1), each_code(1)); }

inline int short_at(const byte *p) { return p[0] | p[1] << 8; }

// Eight scales in the top four bits of words: odd numbers times `factor`.
#if defined(__AVX2__)
inline void top_scales(__m256i words, float factor, float *d) {
    const __m256i odd = _mm256_or_si256(_mm256_srli_epi32(words, 27), _mm256_set1_epi32(1));
    _mm256_storeu_ps(d, _mm256_mul_ps(_mm256_cvtepi32_ps(odd), _mm256_set1_ps(factor)));
}
#else
inline void top_scales(const byte *words, int step, float factor, float *d) {
    for (int i = 0; i < 8; i++) d[i] = factor * (float)(word_at(words + step * i) >> 27 | 1);
}
#endif

// Sixteen scales of four bits in eight bytes, the low half of each first: odd numbers.
#if defined(__AVX2__)
inline __m128i nibble_bytes(const byte *p) {
    const __m128i both = _mm_cvtsi64_si128((long long)long_at(p)), even = _mm_set1_epi8(0x1e);
    const __m128i low = _mm_and_si128(_mm_slli_epi16(both, 1), even);
    const __m128i high = _mm_and_si128(_mm_srli_epi16(both, 3), even);
    return _mm_or_si128(_mm_unpacklo_epi8(low, high), _mm_set1_epi8(1));
}
#endif
// The same times `factor`.
inline void nibble_scales(const byte *p, float factor, float *d) {
#if defined(__AVX2__)
    const __m128i odd = nibble_bytes(p);
    const __m256 f = _mm256_set1_ps(factor);
    _mm256_storeu_ps(d, _mm256_mul_ps(f, _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(odd))));
    _mm256_storeu_ps(d + 8, _mm256_mul_ps(f, _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_srli_si128(odd, 8)))));
#else
    for (int i = 0; i < 16; i++) d[i] = factor * (float)((p[i / 2] >> i % 2 * 4 & 15) << 1 | 1);
#endif
}

#if defined(__AVX2__)

// Numbers of rows, and signs as bits, of the 256 codes of a block: sixteen numbers are found at a time.
struct Places {
    alignas(32) uint16_t rows[64];
    alignas(32) uint32_t signs[8];

    // The low bytes of sixteen numbers, and more bits for them.
    void keep_rows(int sixteen, const byte *low, __m256i more) {
        const __m256i bytes = _mm256_cvtepu8_epi16(_mm_loadu_si128((const __m128i *)low));
        _mm256_store_si256((__m256i *)(rows + 16 * sixteen), _mm256_or_si256(bytes, more));
    }
    // Seven signs in each byte; the eighth makes the number of minuses even.
    void keep_signs(__m256i sevens) {
        const __m256i table = _mm256_broadcastsi128_si256(
            _mm_setr_epi8(0, -128, -128, 0, -128, 0, 0, -128, -128, 0, 0, -128, 0, -128, -128, 0));
        const __m256i folded = _mm256_xor_si256(sevens, _mm256_srli_epi16(sevens, 4));
        const __m256i eighth = _mm256_shuffle_epi8(table, _mm256_and_si256(folded, _mm256_set1_epi8(15)));
        _mm256_store_si256((__m256i *)signs, _mm256_or_si256(sevens, eighth));
    }
    // The same, four times seven bits in each word.
    void keep_packed_signs(__m256i words) {
        const __m256i first = _mm256_set1_epi32(127);
        __m256i all = _mm256_and_si256(words, first);
        all = _mm256_or_si256(all, _mm256_and_si256(_mm256_slli_epi32(words, 1), _mm256_slli_epi32(first, 8)));
        all = _mm256_or_si256(all, _mm256_and_si256(_mm256_slli_epi32(words, 2), _mm256_slli_epi32(first, 16)));
        all = _mm256_or_si256(all, _mm256_and_si256(_mm256_slli_epi32(words, 3), _mm256_slli_epi32(first, 24)));
        keep_signs(all);
    }
    template <int N> Codes eight_of(const Grid<uint64_t, N> &grid, int g) const {
        const uint16_t *p = rows + 4 * g;
        return eights(grid[p[0]], grid[p[1]], grid[p[2]], grid[p[3]]);
    }
};

// Each of four words for four lanes.
inline __m256i words_by_fours(const byte *p) {
    const __m256i place = _mm256_setr_epi8(0, 1, 0, 1, 0, 1, 0, 1, 2, 3, 2, 3, 2, 3, 2, 3, //
                                           4, 5, 4, 5, 4, 5, 4, 5, 6, 7, 6, 7, 6, 7, 6, 7);
    return _mm256_shuffle_epi8(_mm256_set1_epi64x((long long)long_at(p)), place);
}

// The words at the odd places among sixteen.
inline __m256i odd_words(const byte *p) {
    const __m256 first = _mm256_loadu_ps((const float *)p), second = _mm256_loadu_ps((const float *)(p + 32));
    return _mm256_permute4x64_epi64(_mm256_castps_si256(_mm256_shuffle_ps(first, second, 0xdd)), 0xd8);
}

#endif

// What the types of signs and sizes have: `sizes` and `signs` of a group's codes.
#define SIGNS_AND_SIZES                                                                                                \
    static constexpr bool MIN = false;                                                                                 \
    static constexpr int ZERO = 128;                                                                                   \
    static Codes raw(const byte *b, int g) { return minus(codes(b, g), -128); }                                        \
    static Codes codes(const byte *b, int g) { return with_signs(sizes(b, g), signs(b, g)); }                          \
    static void floats(const byte *b, int g, vf *out) { to_floats(codes(b, g), out); }

template <> struct Block<IQ2_XXS> {
    static constexpr int SIZE = 66, GROUPS = 8, MOST = 43;
    static constexpr bool HALVES = false;
    SIGNS_AND_SIZES
    // For each group four rows of the grid, then a word of signs and scale.
    static void scales(const byte *b, float *d, float *) {
#if defined(__AVX2__)
        top_scales(odd_words(b + 2), half_at(b) / 8, d);
#else
        top_scales(b + 6, 8, half_at(b) / 8, d);
#endif
    }
    static Codes sizes(const byte *b, int g) {
        const byte *p = b + 2 + 8 * g;
        return eights(IQ2_XXS_ROWS[p[0]], IQ2_XXS_ROWS[p[1]], IQ2_XXS_ROWS[p[2]], IQ2_XXS_ROWS[p[3]]);
    }
    static Codes signs(const byte *b, int g) { return four_signs(word_at(b + 6 + 8 * g)); }
#if defined(__AVX2__)
    static void find(const byte *b, Places &places) { places.keep_packed_signs(odd_words(b + 2)); }
    static Codes sizes(const byte *b, const Places &, int g) { return sizes(b, g); }
#endif
};

template <> struct Block<IQ2_XS> {
    static constexpr int SIZE = 74, GROUPS = 8, MOST = 43;
    static constexpr bool HALVES = true;
    SIGNS_AND_SIZES
    static float factor(const byte *b) { return half_at(b) / 8; }
    static void scales(const byte *b, float *d, float *) { nibble_scales(b + 66, factor(b), d); }
#if defined(TP_ONLY_AVX2)
    static __m128i whole_scales(const byte *b) { return nibble_bytes(b + 66); }
#endif
    // Nine bits of a row, seven of signs.
    static uint64_t row(const byte *b, int i) { return IQ2_XS_ROWS[short_at(b + 2 + 2 * i) & 511]; }
    static uint64_t sign(const byte *b, int i) { return SIGNS[short_at(b + 2 + 2 * i) >> 9]; }
    static Codes sizes(const byte *b, int g) {
        return eights(row(b, 4 * g), row(b, 4 * g + 1), row(b, 4 * g + 2), row(b, 4 * g + 3));
    }
    static Codes signs(const byte *b, int g) {
        return eights(sign(b, 4 * g), sign(b, 4 * g + 1), sign(b, 4 * g + 2), sign(b, 4 * g + 3));
    }
#if defined(__AVX2__)
    static void find(const byte *b, Places &places) {
        __m256i sevens[2];
        for (int v = 0; v < 2; v++) {
            const __m256i both = load32(b + 2 + 32 * v);
            _mm256_store_si256((__m256i *)(places.rows + 16 * v), _mm256_and_si256(both, _mm256_set1_epi16(511)));
            sevens[v] = _mm256_srli_epi16(both, 9);
        }
        places.keep_signs(_mm256_permute4x64_epi64(_mm256_packus_epi16(sevens[0], sevens[1]), 0xd8));
    }
    static Codes sizes(const byte *, const Places &places, int g) { return places.eight_of(IQ2_XS_ROWS, g); }
#endif
};

template <> struct Block<IQ2_S> {
    static constexpr int SIZE = 82, GROUPS = 8, MOST = 43;
    static constexpr bool HALVES = true;
    SIGNS_AND_SIZES
    static float factor(const byte *b) { return half_at(b) / 8; }
    static void scales(const byte *b, float *d, float *) { nibble_scales(b + 74, factor(b), d); }
#if defined(TP_ONLY_AVX2)
    static __m128i whole_scales(const byte *b) { return nibble_bytes(b + 74); }
#endif
    // Low bytes of the rows' numbers, signs; then two more bits of each number.
    static Codes sizes(const byte *b, int g) {
        const byte *p = b + 2 + 4 * g;
        const int more = b[66 + g];
        return eights(IQ2_S_ROWS[p[0] | (more << 8 & 0x300)], IQ2_S_ROWS[p[1] | (more << 6 & 0x300)],
                      IQ2_S_ROWS[p[2] | (more << 4 & 0x300)], IQ2_S_ROWS[p[3] | (more << 2 & 0x300)]);
    }
    static Codes signs(const byte *b, int g) { return signs_of(word_at(b + 34 + 4 * g)); }
#if defined(__AVX2__)
    static void find(const byte *b, Places &places) {
        const __m256i place = _mm256_setr_epi64x(0x8000800080008000ull, 0x8001800180018001ull, 0x8002800280028002ull,
                                                 0x8003800380038003ull);
        const __m256i to_left = _mm256_set1_epi64x(0x0004001000400100);
        for (int v = 0; v < 2; v++) {
            const __m256i more = _mm256_shuffle_epi8(_mm256_set1_epi32((int)word_at(b + 66 + 4 * v)), place);
            const __m256i bits = _mm256_and_si256(_mm256_mullo_epi16(more, to_left), _mm256_set1_epi16(0x300));
            places.keep_rows(v, b + 2 + 16 * v, bits);
        }
        _mm256_store_si256((__m256i *)places.signs, load32(b + 34));
    }
    static Codes sizes(const byte *, const Places &places, int g) { return places.eight_of(IQ2_S_ROWS, g); }
#endif
};

template <> struct Block<IQ3_XXS> {
    static constexpr int SIZE = 98, GROUPS = 8, MOST = 31;
    static constexpr bool HALVES = false;
    SIGNS_AND_SIZES
    // 64 rows of the grid, then for each group a word of signs and scale.
    static void scales(const byte *b, float *d, float *) {
#if defined(__AVX2__)
        top_scales(load32(b + 66), half_at(b) / 2, d);
#else
        top_scales(b + 66, 4, half_at(b) / 2, d);
#endif
    }
    static uint32_t row(const byte *b, int i) { return IQ3_XXS_ROWS[b[2 + i]]; }
    static Codes sizes(const byte *b, int g) {
        const byte *p = b + 8 * g;
        return fours(row(p, 0), row(p, 1), row(p, 2), row(p, 3), row(p, 4), row(p, 5), row(p, 6), row(p, 7));
    }
    static Codes signs(const byte *b, int g) { return four_signs(word_at(b + 66 + 4 * g)); }
#if defined(__AVX2__)
    static void find(const byte *b, Places &places) { places.keep_packed_signs(load32(b + 66)); }
    static Codes sizes(const byte *b, const Places &, int g) { return sizes(b, g); }
#endif
};

template <> struct Block<IQ3_S> {
    static constexpr int SIZE = 110, GROUPS = 8, MOST = 15;
    static constexpr bool HALVES = false;
    SIGNS_AND_SIZES
    static void scales(const byte *b, float *d, float *) {
        const uint64_t four = word_at(b + 106), apart = (four | four << 16) & 0x0000ffff0000ffffull;
        const uint64_t bytes = (apart | apart << 8) & 0x00ff00ff00ff00ffull;
        const uint64_t nibbles = (bytes | bytes << 4) & 0x0f0f0f0f0f0f0f0full;
        eight_floats(nibbles << 1 | 0x0101010101010101ull, half_at(b), d);
    }
    // Low bytes of 64 rows' numbers, their ninth bits; then signs.
    static uint32_t row(const byte *p, int more, int i) { return IQ3_S_ROWS[p[i] | (more << (8 - i) & 256)]; }
    static Codes sizes(const byte *b, int g) {
        const byte *p = b + 2 + 8 * g;
        const int n = b[66 + g];
        return fours(row(p, n, 0), row(p, n, 1), row(p, n, 2), row(p, n, 3), row(p, n, 4), row(p, n, 5), row(p, n, 6),
                     row(p, n, 7));
    }
    static Codes signs(const byte *b, int g) { return signs_of(word_at(b + 74 + 4 * g)); }
#if defined(__AVX2__)
    static void find(const byte *b, Places &places) {
        const __m256i bits = _mm256_setr_epi16(1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384,
                                               (short)32768);
        for (int v = 0; v < 4; v++) {
            const __m256i all = _mm256_set1_epi16((short)short_at(b + 66 + 2 * v));
            const __m256i set = _mm256_cmpeq_epi16(_mm256_and_si256(all, bits), bits);
            places.keep_rows(v, b + 2 + 16 * v, _mm256_and_si256(set, _mm256_set1_epi16(256)));
        }
        _mm256_store_si256((__m256i *)places.signs, load32(b + 74));
    }
    static Codes sizes(const byte *, const Places &places, int g) {
        const uint16_t *p = places.rows + 8 * g;
        const auto &rows = IQ3_S_ROWS;
        return fours(rows[p[0]], rows[p[1]], rows[p[2]], rows[p[3]], rows[p[4]], rows[p[5]], rows[p[6]], rows[p[7]]);
    }
#endif
};

#undef SIGNS_AND_SIZES

// Values -1, 0 and 1, all an eighth more or less: codes are eight times as large.
template <> struct Block<IQ1_S> {
    static constexpr int SIZE = 50, GROUPS = 8, MOST = 9;
    static constexpr bool MIN = false, HALVES = false;
    // For each group a word: three more bits of each of four rows' numbers, a scale of three, whether it is less.
    static void scales(const byte *b, float *d, float *) {
        const float factor = half_at(b) / 8;
#if defined(__AVX2__)
        const __m256i words = _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)(b + 34)));
        const __m256i even = _mm256_and_si256(_mm256_srli_epi32(words, 11), _mm256_set1_epi32(14));
        const __m256 odd = _mm256_cvtepi32_ps(_mm256_or_si256(even, _mm256_set1_epi32(1)));
        _mm256_storeu_ps(d, _mm256_mul_ps(odd, _mm256_set1_ps(factor)));
#else
        for (int i = 0; i < 8; i++) d[i] = factor * (float)((short_at(b + 34 + 2 * i) >> 11 & 14) | 1);
#endif
    }
    static constexpr int ZERO = 9;
    static Codes raw(const byte *b, int g) {
        const byte *p = b + 2 + 4 * g;
        const int n = short_at(b + 34 + 2 * g);
        const Codes rows = eights(IQ1_ROWS[p[0] | (n << 8 & 0x700)], IQ1_ROWS[p[1] | (n << 5 & 0x700)],
                                  IQ1_ROWS[p[2] | (n << 2 & 0x700)], IQ1_ROWS[p[3] | (n >> 1 & 0x700)]);
        return shifted(b, g, rows);
    }
    static Codes shifted(const byte *b, int g, Codes rows) {
        return plus(rows, each_code(b[35 + 2 * g] & 128 ? 0 : 2));
    }
#if defined(__AVX2__)
    static void find(const byte *b, Places &places) {
        const __m256i to_left = _mm256_set1_epi64x(0x0000000400200100);
        for (int v = 0; v < 2; v++) {
            const __m256i words = words_by_fours(b + 34 + 8 * v);
            const __m256i moved =
                _mm256_blend_epi16(_mm256_mullo_epi16(words, to_left), _mm256_srli_epi16(words, 1), 0x88);
            places.keep_rows(v, b + 2 + 16 * v, _mm256_and_si256(moved, _mm256_set1_epi16(0x700)));
        }
    }
    static Codes raw(const byte *b, const Places &places, int g) {
        return shifted(b, g, places.eight_of(IQ1_ROWS, g));
    }
#endif
    static Codes codes(const byte *b, int g) { return minus(raw(b, g), ZERO); }
    static void floats(const byte *b, int g, vf *out) { to_floats(codes(b, g), out); }
};

template <> struct Block<IQ1_M> {
    static constexpr int SIZE = 56, GROUPS = 8, MOST = 9;
    static constexpr bool MIN = false, HALVES = true;
    // Four words with four scales of three bits each, and a quarter of the common scale.
    static void scales(const byte *b, float *d, float *) {
        const byte *p = b + 48;
        const int bits = p[1] >> 4 | (p[3] & 0xf0) | (p[5] & 0xf0) << 4 | (p[7] & 0xf0) << 8;
        const float factor = half_to_float((uint16_t)bits) / 8;
#if defined(__AVX2__)
        const __m256i words = _mm256_castsi128_si256(_mm_cvtepu16_epi32(_mm_loadl_epi64((const __m128i *)p)));
        const __m256i places[] = {_mm256_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1), _mm256_setr_epi32(2, 2, 2, 2, 3, 3, 3, 3)};
        for (int h = 0; h < 2; h++) {
            const __m256i twice = _mm256_slli_epi32(_mm256_permutevar8x32_epi32(words, places[h]), 1);
            const __m256i moved = _mm256_srlv_epi32(twice, _mm256_setr_epi32(0, 3, 6, 9, 0, 3, 6, 9));
            const __m256i even = _mm256_and_si256(moved, _mm256_set1_epi32(14));
            const __m256 odd = _mm256_cvtepi32_ps(_mm256_or_si256(even, _mm256_set1_epi32(1)));
            _mm256_storeu_ps(d + 8 * h, _mm256_mul_ps(odd, _mm256_set1_ps(factor)));
        }
#else
        for (int i = 0; i < 16; i++)
            d[i] = factor * (float)(((short_at(p + i / 4 * 2) >> i % 4 * 3 & 7) << 1) | 1);
#endif
    }
    static constexpr int ZERO = 9;
    // Four bits for each row: three more of its number, and whether it is less.
    static Codes raw(const byte *b, int g) {
        const byte *p = b + 4 * g;
        const int n = short_at(b + 32 + 2 * g);
        const Codes rows = eights(IQ1_ROWS[p[0] | (n << 8 & 0x700)], IQ1_ROWS[p[1] | (n << 4 & 0x700)],
                                  IQ1_ROWS[p[2] | (n & 0x700)], IQ1_ROWS[p[3] | (n >> 4 & 0x700)]);
        return shifted(b, g, rows);
    }
    static Codes shifted(const byte *b, int g, Codes rows) {
        const int n = short_at(b + 32 + 2 * g);
#if defined(__AVX2__)
        const __m256i bits = _mm256_setr_epi64x(0x0008000800080008, 0x0080008000800080, 0x0800080008000800,
                                                (long long)0x8000800080008000ull);
        const __m256i set = _mm256_and_si256(_mm256_set1_epi16((short)n), bits);
        const __m256i more = _mm256_cmpeq_epi16(set, _mm256_setzero_si256());
        return _mm256_add_epi8(rows, _mm256_and_si256(more, _mm256_set1_epi8(2)));
#else
        for (int i = 0; i < 32; i++) rows.at[i] = (int8_t)(rows.at[i] + (n >> (i / 8 * 4 + 3) & 1 ? 0 : 2));
        return rows;
#endif
    }
#if defined(__AVX2__)
    static void find(const byte *b, Places &places) {
        const __m256i to_left = _mm256_set1_epi64x(0x0000000100100100);
        for (int v = 0; v < 2; v++) {
            const __m256i words = words_by_fours(b + 32 + 8 * v);
            const __m256i moved =
                _mm256_blend_epi16(_mm256_mullo_epi16(words, to_left), _mm256_srli_epi16(words, 4), 0x88);
            places.keep_rows(v, b + 16 * v, _mm256_and_si256(moved, _mm256_set1_epi16(0x700)));
        }
    }
    static Codes raw(const byte *b, const Places &places, int g) {
        return shifted(b, g, places.eight_of(IQ1_ROWS, g));
    }
#endif
    static Codes codes(const byte *b, int g) { return minus(raw(b, g), ZERO); }
    static void floats(const byte *b, int g, vf *out) { to_floats(codes(b, g), out); }
};

// The types of this file and of small_blocks.h, which are only read in rows, for tables: EACH(type) for each.
#define TYPES_IN_ROWS(EACH)                                                                                            \
    EACH(IQ4_XS) EACH(IQ3_S) EACH(IQ3_XXS) EACH(IQ2_S) EACH(IQ2_XS) EACH(IQ2_XXS) EACH(IQ1_S) EACH(IQ1_M)              \
    EACH(TQ1_0) EACH(TQ2_0) EACH(NVFP4) EACH(Q1_0) EACH(Q2_0)

// By type: whether codes are sizes with signs, and whether rows of a grid are found for a whole block first.
constexpr bool tells_signs(int type) {
    return type == IQ2_XXS || type == IQ2_XS || type == IQ2_S || type == IQ3_XXS || type == IQ3_S;
}
constexpr bool is_of_grid(int type) { return tells_signs(type) || type == IQ1_S || type == IQ1_M; }

#if defined(__AVX2__)
constexpr bool finds_rows(int type) { return is_of_grid(type); }
#else
constexpr bool finds_rows(int) { return false; }
#endif

// A unit whose codes are wanted group by group; of grids, all rows are found first.
template <int TYPE, bool = finds_rows(TYPE)> struct Found {
    const byte *unit;

    explicit Found(const byte *unit) : unit(unit) {}
    Codes codes(int g) const {
        typedef Block<TYPE> B;
        return B::codes(unit + g / B::GROUPS * B::SIZE, g % B::GROUPS);
    }
};

#if defined(__AVX2__)

// The compiler may know no better than to read `a` out of memory: it would take numbers out of vectors one by one.
template <class T> inline void in_memory(T &a) { __asm__("" : "+m"(a)); }

template <int TYPE> struct Found<TYPE, true> {
    const byte *unit;
    Places places;

    explicit Found(const byte *unit) : unit(unit) {
        Block<TYPE>::find(unit, places);
        in_memory(places.rows), in_memory(places.signs);
    }
    Codes codes(int g) const {
        if constexpr (tells_signs(TYPE)) return with_signs(sizes(g), signs(g));
        else return minus(raw(g), Block<TYPE>::ZERO);
    }
    Codes sizes(int g) const { return Block<TYPE>::sizes(unit, places, g); }
    Codes signs(int g) const { return signs_of(places.signs[g]); }
    Codes raw(int g) const { return Block<TYPE>::raw(unit, places, g); }
};

#endif

} // namespace
