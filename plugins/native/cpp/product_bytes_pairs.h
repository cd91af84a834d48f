// Super-blocks in rows, and tq2_0, with few rows of x: products of two vectors of codes are added up in 16 bits before
// whole scales multiply them. x is rounded into the order in which its codes are met.
#pragma once

#include <type_traits>

#include "product_bytes_units.h"

namespace {

#if defined(TP_INT8)

// By level: where the codes 8 e to 8 e + 7 of group g lie in a unit of x (`place_of_eight`), and where the scale of the
// group, which is told after them (`put_scale`).

#if defined(__AVX512VNNI__)

// q4_K and q5_K keep the codes of two groups in the same 32 bytes, the even group in their low nibbles. Sixteen bytes
// of each pair make a vector, the sixteen that follow another: then a vector is half of all even groups, or of all odd
// ones, and the products of both halves are summed by `dot_bytes`. x lies in this order: even groups, then odd ones.
template <int TYPE> constexpr int place_of_eight(int g, int e) {
    if (!IN_PAIRS<TYPE>) return g * GROUP + e * 8;
    return g % 2 * 128 + e / 2 * 64 + g / 2 * 16 + e % 2 * 8;
}
template <int TYPE> inline void put_scale(Unit8<TYPE> &unit, int g, float d) { unit.d[2 * g] = unit.d[2 * g + 1] = d; }

// The word `a` in the first quarter of a vector, and so on.
inline vi by_quarter(int a, int b, int c, int d) {
    return _mm512_setr_epi32(a, a, a, a, b, b, b, b, c, c, c, c, d, d, d, d);
}
// A bit in each byte: that of group g, then of g + 2 and so on.
inline vi bits_by_quarter(int g) {
    return by_quarter(four_bytes(1 << g), four_bytes(4 << g), four_bytes(16 << g), four_bytes(64 << g));
}

template <int TYPE> struct PairCodes {
    vi evens[2], odds[2]; // the odd ones of q4_K sixteen times as large

    explicit PairCodes(const byte *unit) {
        const byte *nibbles = unit + Block<TYPE>::SIZE - 128;
        const vi a = iload(nibbles), b = iload(nibbles + 64);
        const vi halves[2] = {_mm512_shuffle_i32x4(a, b, 0x88), _mm512_shuffle_i32x4(a, b, 0xdd)};
        for (int h = 0; h < 2; h++) {
            evens[h] = _mm512_and_si512(halves[h], each_byte(0x0f));
            if constexpr (TYPE == Q4_K) {
                odds[h] = _mm512_and_si512(halves[h], each_byte(0xf0));
            } else {
                const vi fifths = _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)(unit + 16 + h * 16)));
                odds[h] = _mm512_and_si512(_mm512_srli_epi16(halves[h], 4), each_byte(0x0f));
                evens[h] = plus_where(evens[h], _mm512_test_epi8_mask(fifths, bits_by_quarter(0)), 16);
                odds[h] = plus_where(odds[h], _mm512_test_epi8_mask(fifths, bits_by_quarter(1)), 16);
            }
        }
    }

    // Sums of eight products: in each quarter four of an even group, then four of the odd one that follows it.
    vi times(const int8_t *x) const {
        const vi even = dot_bytes<false>(iset(0), evens[0], iload(x), evens[1], iload(x + 64));
        const vi odd = dot_bytes<false>(iset(0), odds[0], iload(x + 128), odds[1], iload(x + 192));
        return _mm512_packs_epi32(even, TYPE == Q4_K ? _mm512_srai_epi32(odd, 4) : odd);
    }
};

// Scales for the sums of `PairCodes`, the factor of all, and minima.
struct PairScales {
    vi whole;
    vf d;
    Eight minima;

    explicit PairScales(const byte *b) {
        const auto place = [](unsigned scale) { return (int)(0x80008000 + scale * 0x00010001); };
        whole = _mm512_shuffle_epi8(_mm512_set1_epi64((long long)six_bit_scales(b)),
                                    _mm512_setr_epi32(place(0), place(0), place(1), place(1), place(2), place(2),
                                                      place(3), place(3), place(4), place(4), place(5), place(5),
                                                      place(6), place(6), place(7), place(7)));
        const __m128 factors = _mm_cvtph_ps(_mm_cvtsi32_si128((int)word_at(b)));
        d = _mm512_broadcastss_ps(factors);
        minima = times(eight_floats(_mm_cvtsi64_si128((long long)six_bit_minima(b))),
                       _mm256_broadcastss_ps(_mm_movehdup_ps(factors)));
    }
};

#elif defined(TP_PAIRS)

// A unit is four pairs of vectors. Both vectors of a pair hold codes of the same parts in the same lanes, so sums of
// four products, which fit into 16 bits, have one scale.
//
// q4_K and q5_K keep the codes of two groups in the same 32 bytes: a vector has half of group g and half of g + 2. q6_K
// has a scale for each half of a group: a vector has eight codes of each half of the groups g and g + 1. Types of two
// bits keep four groups in the same 32 bytes: a vector has eight codes of each of them. One pair then has their first
// halves, the next one the second, and both share the scales of x.
//
// One to four rows of x took 0.70 to 0.85 of the time of scaling each group (one thread of a Zen 3, in the cache).
template <int TYPE> constexpr int place_of_eight(int g, int e) {
    if (!IN_PAIRS<TYPE>) return g * GROUP + e * 8;
    if (OF_TWO_BITS<TYPE>) return g / 4 * 128 + e * 32 + g % 4 * 8;
    if (TYPE == Q6_K) return g / 2 * 64 + e % 2 * 32 + e / 2 * 16 + g % 2 * 8;
    return g / 4 * 128 + g % 2 * 64 + e / 2 * 32 + g / 2 % 2 * 16 + e % 2 * 8;
}
// In each lane that has sums of the group; and behind the last group, what is taken off the sums of each pair.
template <int TYPE> inline void put_scale(Unit8<TYPE> &unit, int g, float d) {
    if (OF_TWO_BITS<TYPE>) {
        for (int i : {0, 1}) unit.d[g * 2 + i] = d;
    } else if (TYPE == Q6_K) {
        for (int i : {0, 1, 4, 5}) unit.d[g / 2 * 8 + g % 2 * 2 + i] = d;
    } else {
        for (int i : {0, 1, 2, 3}) unit.d[g / 4 * 16 + g % 2 * 8 + g / 2 % 2 * 4 + i] = d;
    }
    if (!EXCESS<TYPE> || g < GROUPS8 - 1) return;
    const vi ones = _mm256_set1_epi8(1), factor = _mm256_set1_epi16(-EXCESS<TYPE>);
    for (int pair = 0; pair < 4; pair++) {
        const int8_t *const codes = unit.codes + pair * 64;
        const vi first = _mm256_maddubs_epi16(ones, iload(codes));
        const vi fours = _mm256_add_epi16(first, _mm256_maddubs_epi16(ones, iload(codes + 32)));
        istore(unit.shifts + pair * 8, _mm256_mullo_epi16(fours, factor));
    }
}

// The vectors of one pair or two, whose products share the scales of x, and their own scales, in 16 bits.
template <int PAIRS> struct PairsOfCodes {
    vi codes[PAIRS][2], scales[PAIRS];
};

// A unit of w; `get` has the pairs of a step. This is q4_K and q5_K: the even ones of four groups, then the odd ones.
template <int TYPE, bool = OF_TWO_BITS<TYPE>> struct UnitInPairs {
    static constexpr int PAIRS = 1; // of a step
    vf d;
    Eight minima[1];

    explicit UnitInPairs(const byte *unit) : unit_(unit) {
        const __m128i all = _mm_loadu_si128((const __m128i *)unit), both = six_bit_pairs(all);
        const __m128 factors = _mm_cvtph_ps(all);
        d = _mm256_broadcastss_ps(factors);
        minima[0] = times(eight_floats(_mm_unpackhi_epi64(both, both)),
                          _mm256_broadcastss_ps(_mm_movehdup_ps(factors)));
        scales_ = _mm256_broadcastq_epi64(both);
    }
    PairsOfCodes<1> get(int step) const {
        const int g = step / 2 * 4 + step % 2;
        const __m128i first = _mm_set1_epi16((short)(0x8000 | g)), second = _mm_set1_epi16((short)(0x8000 | (g + 2)));
        const vi scales = _mm256_shuffle_epi8(scales_, _mm256_setr_m128i(first, second));
        return {{{half(step, g, 0), half(step, g, 1)}}, {scales}};
    }

  private:
    const byte *const unit_;
    vi scales_;

    vi half(int step, int g, int h) const {
        const byte *const at = unit_ + Block<TYPE>::SIZE - 128 + step / 2 * 64 + h * 16;
        const vi both = _mm256_loadu2_m128i((const __m128i *)(at + 32), (const __m128i *)at);
        const vi codes = nibbles(both, step % 2);
        if (TYPE == Q4_K) return codes;
        const vi bits = _mm256_setr_m128i(_mm_set1_epi8((char)(1 << g)), _mm_set1_epi8((char)(4 << g)));
        return ior(codes, value_where(twice16(unit_ + 16 + h * 16), bits, 16));
    }
};

// Two groups at a time.
template <> struct UnitInPairs<Q6_K, false> {
    static constexpr int PAIRS = 1;
    vf d;

    explicit UnitInPairs(const byte *unit) : d(vset(Block<Q6_K>::factor(unit))), unit_(unit) {
        scales_ = words_apart(Block<Q6_K>::whole_scales(unit));
    }
    PairsOfCodes<1> get(int step) const {
        const auto word = [](int g) { return (2 * g | (2 * g + 1) << 8) * 0x00010001; };
        const int first = word(2 * step), second = word(2 * step + 1);
        const vi places = _mm256_broadcastsi128_si256(_mm_setr_epi32(first, first, second, second));
        return {{{half<false>(step), half<true>(step)}}, {_mm256_shuffle_epi8(scales_, places)}};
    }

  private:
    const byte *const unit_;
    vi scales_;

    // Of each 16 bytes the first eight, or the second, of those at `a` and of those at `b`.
    template <bool SECOND> vi eights_at(int a, int b) const {
        const vi first = iload(unit_ + a), second = iload(unit_ + b);
        return SECOND ? _mm256_unpackhi_epi64(first, second) : _mm256_unpacklo_epi64(first, second);
    }
    template <bool SECOND> vi half(int step) const {
        const vi both = eights_at<SECOND>(step / 2 * 64, step / 2 * 64 + 32);
        const vi twos = eights_at<SECOND>(128 + step / 2 * 32, 128 + step / 2 * 32);
        const vi high = step % 2 ? _mm256_srlv_epi64(twos, _mm256_setr_epi64x(0, 2, 0, 2))
                                 : _mm256_sllv_epi64(twos, _mm256_setr_epi64x(4, 2, 4, 2));
        return ior(nibbles(both, step % 2), iand(high, each_byte(0x30)));
    }
};

// Types of two bits: four groups at a time.
template <int TYPE> struct UnitInPairs<TYPE, true> {
    typedef Block<TYPE> B;
    static constexpr int PAIRS = 2;
    vf d;
    Eight minima[2];

    explicit UnitInPairs(const byte *unit) : d(vset(B::factor(unit))), unit_(unit) {
        scales_[0] = scales_[1] = _mm256_set1_epi16(1);
        if constexpr (B::HALVES) {
            const vi scales = words_apart(B::whole_scales(unit));
            scales_[0] = _mm256_permute2x128_si256(scales, scales, 0x00);
            scales_[1] = _mm256_permute2x128_si256(scales, scales, 0x11);
        }
        if constexpr (B::MIN) {
            const __m128i least = B::whole_minima(unit);
            minima[0] = times(eight_floats(least), vset(B::least(unit)));
            minima[1] = times(eight_floats(_mm_unpackhi_epi64(least, least)), vset(B::least(unit)));
        }
    }
    PairsOfCodes<2> get(int step) const {
        const auto word = [step](int g) { return (short)(2 * (4 * step + g) | (2 * (4 * step + g) + 1) << 8); };
        const short a = word(0), b = word(1), c = word(2), d = word(3);
        const vi places = _mm256_setr_epi16(a, a, a, a, b, b, b, b, c, c, c, c, d, d, d, d);
        PairsOfCodes<2> found;
        for (int h = 0; h < 2; h++) {
            for (int i = 0; i < 2; i++) found.codes[h][i] = eights_of(step, h * 2 + i);
            found.scales[h] = B::HALVES ? _mm256_shuffle_epi8(scales_[h], places) : scales_[h];
        }
        return found;
    }

  private:
    const byte *const unit_;
    vi scales_[2];

    vi eight_bytes(int at) const {
        long long eight;
        std::memcpy(&eight, unit_ + at, 8);
        return _mm256_set1_epi64x(eight);
    }
    vi eights_of(int step, int e) const {
        const int at = (TYPE == Q2_K ? 16 : TYPE == Q3_K ? 32 : 0) + step * 32 + e * 8;
        const vi moved = _mm256_srlv_epi64(eight_bytes(at), _mm256_setr_epi64x(0, 2, 4, 6));
        const vi twos = iand(moved, each_byte(3));
        if (TYPE != Q3_K) return twos;
        const uint64_t bit = 0x0101010101010101ull << 4 * step;
        return ior(twos, value_where(eight_bytes(e * 8), eights(bit, bit << 1, bit << 2, bit << 3), 4));
    }
};

#else

template <int> constexpr int place_of_eight(int g, int e) { return g * GROUP + e * 8; }
template <int TYPE> inline void put_scale(Unit8<TYPE> &, int, float) {}

#endif

#if defined(__AVX2__)

// Sums of a row of w with M rows of x, `next` units apart: as Sums8 for other types.
template <int TYPE, int M> struct PairSums8 {
    typedef Block<TYPE> B;
    static constexpr int EIGHTS = B::HALVES ? 2 : 1;
    vf sums[M];
    Eight least[M];

    PairSums8() {
        for (int j = 0; j < M; j++) sums[j] = vset(0), least[j] = eight_zeros();
    }

#if defined(TP_PAIRS)
    void add(const byte *unit, const Unit8<TYPE> *x, int64_t next, int = GROUPS8) {
        static_assert(4 * 127 * B::MOST <= INT16_MAX && 2 * 127 * (B::MOST + EXCESS<TYPE>) <= INT16_MAX, "sums fit");
        typedef UnitInPairs<TYPE> Unit;
        constexpr int PAIRS = Unit::PAIRS;
        const Unit in_pairs(unit);
        vf dots[M];
#pragma GCC unroll 4
        for (int step = 0; step < 4 / PAIRS; step++) {
            const PairsOfCodes<PAIRS> w = in_pairs.get(step);
            for (int j = 0; j < M; j++) {
                const Unit8<TYPE> &xs = x[j * next];
                vi all;
                for (int h = 0, p = step * PAIRS; h < PAIRS; h++, p++) {
                    vi fours = _mm256_maddubs_epi16(w.codes[h][0], iload(xs.codes + p * 64));
                    if (EXCESS<TYPE>) fours = _mm256_add_epi16(fours, iload(xs.shifts + p * 8));
                    fours = _mm256_add_epi16(fours, _mm256_maddubs_epi16(w.codes[h][1], iload(xs.codes + p * 64 + 32)));
                    const vi scaled = _mm256_madd_epi16(fours, w.scales[h]);
                    all = h ? _mm256_add_epi32(all, scaled) : scaled;
                }
                const vf d = vload(xs.d + step * 8);
                dots[j] = step ? vfma(ifloat(all), d, dots[j]) : vmul(ifloat(all), d);
            }
        }
        for (int j = 0; j < M; j++) {
            sums[j] = vfma(dots[j], in_pairs.d, sums[j]);
            if constexpr (B::MIN) {
                for (int e = 0; e < EIGHTS; e++)
                    least[j] = less_product(in_pairs.minima[e], load_eight(x[j * next].sums + 8 * e), least[j]);
            }
        }
    }
#else
    void add(const byte *unit, const Unit8<TYPE> *x, int64_t next, int = GROUPS8) {
        const PairScales scales(unit);
        const PairCodes<TYPE> codes(unit);
        for (int j = 0; j < M; j++) {
            const Unit8<TYPE> &xs = x[j * next];
            const vf dots = ifloat(_mm512_madd_epi16(codes.times(xs.codes), scales.whole));
            sums[j] = vfma(dots, vmul(scales.d, vload(xs.d)), sums[j]);
            least[j] = less_product(scales.minima, load_eight(xs.sums), least[j]);
        }
    }
#endif

    float total(int j) const { return B::MIN ? vsum(sums[j]) + sum_of(least[j]) : vsum(sums[j]); }
};

#endif

#endif

} // namespace
