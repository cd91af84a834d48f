// Units of 256 codes: a block, or several smaller ones. Their codes, by as many groups as a vector holds, and scales.
#pragma once

#include "byte_vectors.h"

namespace {

#if defined(TP_INT8)
constexpr int GROUPS8 = 8; // of a unit
template <int TYPE> constexpr int64_t UNIT_SIZE = Block<TYPE>::SIZE * (GROUPS8 / Block<TYPE>::GROUPS);

// Types whose products are added up in 16 bits before they are scaled (product_bytes_pairs.h); and those of them that
// keep two bits of four groups in the same bytes.
template <int TYPE> constexpr bool OF_TWO_BITS = TYPE == Q2_K || TYPE == Q3_K || TYPE == TQ2_0;
#if defined(__AVX512VNNI__)
template <int TYPE> constexpr bool IN_PAIRS = TYPE == Q4_K || TYPE == Q5_K;
#elif defined(TP_PAIRS)
template <int TYPE> constexpr bool IN_PAIRS = is_super_block(TYPE) || OF_TWO_BITS<TYPE>;
#else
template <int> constexpr bool IN_PAIRS = false;
#endif

// 256 values of a row of x, rounded to eight bits, as products with rows of a type of w want them. For each part of w,
// the scale and the scaled sum of x. `shifts`: w's codes are stored without a sign, so each sum of four products (with
// AVX2 of two, in 16 bits) is too large by this. Some types (`IN_PAIRS`, `FOLDS_SCALES`) have codes, shifts and scales
// in the order in which their kernel meets them. What a type does not want takes no room, so long rows of x stay in the
// first-level cache: 14,336 values came up to 1.17 times as fast (one thread of a Zen 3).
template <int TYPE> struct alignas(W * 4) Unit8 {
    static constexpr int PARTS = Block<TYPE>::HALVES ? 16 : 8;
    static constexpr int LANES = W == 16 || OF_TWO_BITS<TYPE> ? 16 : 32; // that have scales, of types in pairs
    static constexpr int SHIFTS = IN_PAIRS<TYPE> ? 32 : 64;
    int8_t codes[GROUPS8 * GROUP];
    float d[IN_PAIRS<TYPE> ? LANES : PARTS], sums[PARTS];
    int32_t shifts[EXCESS<TYPE> ? SHIFTS : 8];
};
constexpr int64_t MOST_UNIT8 = 704; // bytes
#endif

// Types of few bits for which it pays to take off what stored codes are larger by once for a unit, by sums of x.
template <int TYPE> constexpr bool shifts_by_sums() {
#if defined(TP_PAIRS)
    return TYPE == IQ1_S || TYPE == IQ1_M || TYPE == TQ1_0 || TYPE == NVFP4 || TYPE == Q1_0 || TYPE == Q2_0;
#else
    return false;
#endif
}

// Eight floats, for scales and minima.
#if defined(__AVX2__)
typedef __m256 Eight;
inline Eight load_eight(const float *p) { return _mm256_load_ps(p); }
inline void store_eight(float *p, Eight a) { _mm256_store_ps(p, a); }
inline Eight eight_zeros() { return _mm256_setzero_ps(); }
inline Eight times(Eight a, Eight b) { return _mm256_mul_ps(a, b); }
inline Eight plus_product(Eight a, Eight b, Eight more) { return _mm256_fmadd_ps(a, b, more); }
inline Eight less_product(Eight a, Eight b, Eight all) { return _mm256_fnmadd_ps(a, b, all); }
inline float sum_of(Eight a) {
    const __m128 half = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    const __m128 s = _mm_add_ps(half, _mm_movehl_ps(half, half));
    return _mm_cvtss_f32(_mm_add_ss(s, _mm_movehdup_ps(s)));
}
#elif defined(TP_INT8)
struct Eight {
    float at[8];
};
inline Eight load_eight(const float *p) {
    Eight r;
    std::memcpy(r.at, p, sizeof r.at);
    return r;
}
inline void store_eight(float *p, const Eight &a) { std::memcpy(p, a.at, sizeof a.at); }
inline Eight eight_zeros() { return {}; }
inline Eight times(const Eight &a, const Eight &b) {
    Eight r;
    for (int i = 0; i < 8; i += W) vstore(r.at + i, vmul(vload(a.at + i), vload(b.at + i)));
    return r;
}
inline Eight plus_product(const Eight &a, const Eight &b, const Eight &more) {
    Eight r;
    for (int i = 0; i < 8; i += W) vstore(r.at + i, vfma(vload(a.at + i), vload(b.at + i), vload(more.at + i)));
    return r;
}
inline float sum_of(const Eight &a) { return vsum(vadd(vload(a.at), vload(a.at + W))); }
#endif

#if defined(__AVX512VNNI__)

constexpr int TOGETHER = 2; // groups in a vector

// The same for all bytes of the first group, and of the second.
inline vi by_group(int first, int second) {
    return _mm512_inserti64x4(iset(first), _mm256_set1_epi32(second), 1);
}
inline int four_bytes(int byte) { return (int)((unsigned)byte * 0x01010101u); }
inline vi bytes_by_group(int first, int second) { return by_group(four_bytes(first), four_bytes(second)); }

// The nibbles of 16 bytes at `a`, then of those at `b`, each the low ones first.
inline vi nibbles_of_two(const byte *a, const byte *b) {
    const vi first = _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)a));
    const vi both = _mm512_mask_broadcast_i32x4(first, 0xff00, _mm_loadu_si128((const __m128i *)b));
    const vi moved = _mm512_srlv_epi32(both, _mm512_setr_epi32(0, 0, 0, 0, 4, 4, 4, 4, 0, 0, 0, 0, 4, 4, 4, 4));
    return _mm512_and_si512(moved, each_byte(15));
}
inline vi side_by_side(Codes first, Codes second) {
    return _mm512_inserti64x4(_mm512_castsi256_si512(first), second, 1);
}
inline vi plus_where(vi a, uint64_t bits, int more) { return _mm512_mask_add_epi8(a, bits, a, each_byte(more)); }

// 32 bytes for both groups, with bits from `shift` on for the first, and from `next` on for the second.
inline vi bits_of_two(const byte *p, int shift, int next, int mask) {
    return _mm512_and_si512(_mm512_srlv_epi32(_mm512_broadcast_i64x4(load32(p)), by_group(shift, next)),
                            each_byte(mask));
}
// Bit `bit` of 32 bytes for the first group, the next one for the second.
inline uint64_t bit_of_two(const byte *p, int bit) {
    return _mm512_test_epi8_mask(_mm512_broadcast_i64x4(load32(p)), bytes_by_group(1 << bit, 2 << bit));
}

// The stored codes of groups g and g + 1 of a unit, g even; those of g twice where it is the last of `groups`.
template <int TYPE> inline vi stored_groups(const byte *unit, int g, int groups = GROUPS8) {
    const byte *a = unit, *b = unit;
    constexpr int GROUPS = Block<TYPE>::GROUPS; // 1, or even
    if constexpr (GROUPS == 1) a = unit + g * Block<TYPE>::SIZE, b = a + (g + 1 < groups ? Block<TYPE>::SIZE : 0);
    else a = b = unit + g / GROUPS * Block<TYPE>::SIZE;
    if constexpr (TYPE == Q4_0) return nibbles_of_two(a + 2, b + 2);
    if constexpr (TYPE == Q4_1) return nibbles_of_two(a + 4, b + 4);
    if constexpr (TYPE == Q5_0)
        return plus_where(nibbles_of_two(a + 6, b + 6), words(word_at(a + 2), word_at(b + 2)), 16);
    if constexpr (TYPE == Q5_1)
        return plus_where(nibbles_of_two(a + 8, b + 8), words(word_at(a + 4), word_at(b + 4)), 16);
    if constexpr (TYPE == IQ4_NL) return _mm512_shuffle_epi8(table_of(IQ4_VALUES, 128), nibbles_of_two(a + 2, b + 2));
    if constexpr (TYPE == MXFP4) return _mm512_shuffle_epi8(table_of(E2M1_VALUES, 12), nibbles_of_two(a + 1, b + 1));
    if constexpr (TYPE == Q2_K) return bits_of_two(a + 16 + g / 4 * 32, g % 4 * 2, g % 4 * 2 + 2, 3);
    if constexpr (TYPE == Q3_K)
        return plus_where(bits_of_two(a + 32 + g / 4 * 32, g % 4 * 2, g % 4 * 2 + 2, 3), bit_of_two(a, g), 4);
    if constexpr (TYPE == Q4_K) return bits_of_two(a + 16 + g / 2 * 32, 0, 4, 15);
    if constexpr (TYPE == Q5_K)
        return plus_where(bits_of_two(a + 48 + g / 2 * 32, 0, 4, 15), bit_of_two(a + 16, g), 16);
    if constexpr (TYPE == Q6_K) {
        const vi both = iload(a + g / 4 * 64);
        const vi low = _mm512_and_si512(g % 4 ? _mm512_srli_epi16(both, 4) : both, each_byte(15));
        const vi twos = _mm512_broadcast_i64x4(load32(a + 128 + g / 4 * 32));
        const vi high = g % 4 ? _mm512_srlv_epi32(twos, by_group(0, 2)) : _mm512_sllv_epi32(twos, by_group(4, 2));
        return _mm512_ternarylogic_epi32(high, each_byte(0x30), low, 0xea); // (high & 0x30) | low
    }
    if constexpr (TYPE == TQ2_0) return bits_of_two(a + g / 4 * 32, g % 4 * 2, g % 4 * 2 + 2, 3);
    if constexpr (TYPE == TQ1_0) {
        typedef Block<TQ1_0> B;
        const vi both = side_by_side(B::fractions(a, g), B::fractions(a, g + 1));
        const vi one = _mm512_maskz_set1_epi8(_mm512_cmpgt_epi8_mask(both, each_byte(B::ONE)), 1);
        return plus_where(one, _mm512_cmpgt_epi8_mask(both, each_byte(B::TWO)), 1);
    }
    return side_by_side(stored_codes<TYPE>(a, g % GROUPS), stored_codes<TYPE>(b, (g + 1) % GROUPS));
}

template <int TYPE> inline vi groups_of(const Found<TYPE> &found, int g, int groups = GROUPS8) {
    if constexpr (tells_signs(TYPE)) {
        return _mm512_add_epi8(side_by_side(found.codes(g), found.codes(g + 1)), each_byte(EXCESS<TYPE>));
    } else if constexpr (is_of_grid(TYPE)) {
        return side_by_side(found.raw(g), found.raw(g + 1));
    } else {
        return stored_groups<TYPE>(found.unit, g, groups);
    }
}

// The scale of each lane.
template <int TYPE> inline vf spread_scales(const Eight *scales, int g) {
    constexpr bool HALVES = Block<TYPE>::HALVES;
    const vi lane = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    const vi part = _mm512_add_epi32(_mm512_srli_epi32(lane, HALVES ? 2 : 3), iset(HALVES ? 2 * g % 8 : g));
    return _mm512_permutexvar_ps(part, _mm512_castps256_ps512(scales[HALVES ? g / 4 : 0]));
}

// Whether sums of eight products fit into 16 bits: then those of a unit with one row of x are folded before they are
// scaled, which takes fewer instructions than to scale each vector.
template <int TYPE> constexpr bool FOLDS = Block<TYPE>::MOST * 127 * 8 <= INT16_MAX;

// Sums of the fours of numbers that each quarter of four vectors has: those of their first quarters side by side, then
// those of the second ones and so on. Sums of two numbers must fit into 16 bits; two of them times `scales`, two
// numbers of 16 bits, make one of the result.
inline vi fold_quarters(const vi *v, vi scales) {
    const vi ones = _mm512_set1_epi16(1);
    const vi first = _mm512_madd_epi16(_mm512_packs_epi32(v[0], v[1]), ones);
    const vi second = _mm512_madd_epi16(_mm512_packs_epi32(v[2], v[3]), ones);
    return _mm512_madd_epi16(_mm512_packs_epi32(first, second), scales);
}

// The scale of each sum of `fold_quarters`: a group is two quarters, or each of them has a scale.
template <int TYPE> inline vf folded_scales(const Eight *scales) {
    const __m512 first = _mm512_castps256_ps512(scales[0]);
    if constexpr (!Block<TYPE>::HALVES)
        return _mm512_permutexvar_ps(_mm512_setr_epi32(0, 2, 4, 6, 0, 2, 4, 6, 1, 3, 5, 7, 1, 3, 5, 7), first);
    const vi part = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    return _mm512_permutexvar_ps(part, _mm512_insertf32x8(first, scales[1], 1));
}

// The products of the codes of a whole unit with those of one of x, folded.
template <int TYPE>
inline vf dots_of_unit(const Found<TYPE> &source, const Unit8<TYPE> &x, vi scales = _mm512_set1_epi16(1)) {
    vi dots[GROUPS8 / TOGETHER];
#pragma GCC unroll 4
    for (int g = 0; g < GROUPS8; g += TOGETHER) {
        const vi start = EXCESS<TYPE> ? iload(x.shifts + 8 * g) : iset(0);
        dots[g / TOGETHER] =
            dot_bytes<SIGNED<TYPE>>(start, groups_of<TYPE>(source, g), iload(x.codes + g * GROUP));
    }
    return ifloat(fold_quarters(dots, scales));
}

// The part of each sum of `fold_quarters`, where groups have two.
constexpr int folded_part(int sum) { return sum % 4 * 4 + sum / 4; }
// Whether `fold_quarters` is given the scales, which are whole numbers. That is worth a tenth of the time from the
// second-level cache. Such a unit of x has its scales once more as `sums`, in the order of the fold.
template <int TYPE> constexpr bool FOLDS_SCALES = TYPE == Q6_K;
inline vi scales_to_fold(const byte *b) {
    const auto high = [](int sum) { return (int)(0x00800080u | (unsigned)folded_part(sum) * 0x01000100u); };
    const vi bytes = _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)(b + 192)));
    const vi order = _mm512_setr_epi32(high(0), high(1), high(2), high(3), high(4), high(5), high(6), high(7), high(8),
                                       high(9), high(10), high(11), high(12), high(13), high(14), high(15));
    return _mm512_srai_epi16(_mm512_shuffle_epi8(bytes, order), 8);
}

#elif defined(TP_INT8)

constexpr int TOGETHER = 1;
template <int TYPE> constexpr bool FOLDS = false;

#if defined(__AVX2__)
// Codes of which it is known what the instructions want: sizes to multiply by, and signs that x takes.
struct SizesAndSigns {
    Codes sizes, signs;
};
#endif

template <int TYPE> inline Codes stored_groups(const byte *unit, int g, int = GROUPS8) {
    typedef Block<TYPE> B;
    return stored_codes<TYPE>(unit + g / B::GROUPS * B::SIZE, g % B::GROUPS);
}
template <int TYPE> inline auto groups_of(const Found<TYPE> &found, int g, int groups = GROUPS8) {
#if defined(__AVX2__)
    if constexpr (tells_signs(TYPE)) return SizesAndSigns{found.sizes(g), found.signs(g)};
    else if constexpr (is_of_grid(TYPE)) return found.raw(g);
    else
#endif
        return stored_groups<TYPE>(found.unit, g, groups);
}

#endif

#if defined(__AVX2__)

#if defined(TP_PAIRS)

template <int TYPE> inline vf spread_scales(const Eight *scales, int g) {
    constexpr bool HALVES = Block<TYPE>::HALVES;
    const float *floats = (const float *)scales;
    if (!HALVES) return _mm256_set1_ps(floats[g]);
    const __m256 both = _mm256_castpd_ps(_mm256_broadcast_sd((const double *)(floats + 2 * g)));
    return _mm256_permutevar_ps(both, _mm256_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1));
}

// Products of the stored codes of a group with those of x, in pairs, in 16 bits. `SHIFTS`: what stored codes are larger
// by is taken off.
template <int TYPE, bool SHIFTS> inline vi pairs_of(vi codes, const Unit8<TYPE> &x, int g) {
    const vi pairs = multiply_pairs<SIGNED<TYPE>>(codes, iload(x.codes + g * GROUP));
    return SHIFTS && EXCESS<TYPE> ? _mm256_add_epi16(pairs, iload(x.shifts + 8 * g)) : pairs;
}
template <int TYPE, bool> inline vi pairs_of(const SizesAndSigns &codes, const Unit8<TYPE> &x, int g) {
    return _mm256_maddubs_epi16(codes.sizes, _mm256_sign_epi8(iload(x.codes + g * GROUP), codes.signs));
}

// `sum` and the products of the group g with that of x, scaled.
template <int TYPE, bool SHIFTS, class Stored>
inline vf add_groups(const Stored &codes, const Unit8<TYPE> &x, const Eight *scales, int g, vf sum) {
    const vi fours = pairs_to_fours(pairs_of<TYPE, SHIFTS>(codes, x, g));
    return vfma(ifloat(fours), spread_scales<TYPE>(scales, g), sum);
}

// Types whose halves of groups have whole scales, which multiply pairs of products: with one row of x the common factor
// of a unit is met once. On one thread of a Zen 3 that is worth 5 % in the cache.
template <int TYPE> constexpr bool SCALES_PAIRS = TYPE == IQ2_XS || TYPE == IQ2_S;

// Of sixteen words, those of even parts first, the two of group g for their halves of a vector.
inline vi words_of_group(vi whole, int g) {
    return _mm256_shuffle_epi8(whole, _mm256_set1_epi16((short)(2 * g | (2 * g + 1) << 8)));
}

// The products of the codes of a whole unit with those of one of x, scaled as w is.
template <int TYPE> inline vf dots_of_unit(const byte *unit, const Unit8<TYPE> &x) {
    const vi whole = words_apart(Block<TYPE>::whole_scales(unit));
    const Found<TYPE> source(unit);
    vf sums[2] = {vset(0), vset(0)};
#pragma GCC unroll 8
    for (int g = 0; g < GROUPS8; g++) {
        const vi pairs = pairs_of<TYPE, true>(groups_of<TYPE>(source, g), x, g);
        const vf dots = ifloat(_mm256_madd_epi16(pairs, words_of_group(whole, g)));
        sums[g % 2] = vfma(dots, _mm256_set1_ps(x.d[2 * g]), sums[g % 2]);
    }
    return vmul(vadd(sums[0], sums[1]), vset(Block<TYPE>::factor(unit)));
}

#else

// `sum` and the products of the stored codes of the groups at the place g with those of x, scaled. `SHIFTS`: what
// stored codes are larger by is taken off.
template <int TYPE, bool SHIFTS>
inline vf add_groups(vi codes, const Unit8<TYPE> &x, const Eight *scales, int g, vf sum) {
    const vi start = SHIFTS && EXCESS<TYPE> ? iload(x.shifts + 8 * g) : iset(0);
    const vf dot = ifloat(dot_bytes<SIGNED<TYPE>>(start, codes, iload(x.codes + g * GROUP)));
    return vfma(dot, spread_scales<TYPE>(scales, g), sum);
}

#endif

// The shifts of 32 codes of x, for stored codes that are larger by -`factor`.
inline void write_shifts(const int8_t *codes, int factor, int32_t *out) {
    const __m256i ones = _mm256_set1_epi8(1), c = _mm256_loadu_si256((const __m256i *)codes);
    const __m256i pairs = _mm256_maddubs_epi16(ones, c);
#if defined(TP_PAIRS)
    const __m256i shifts = _mm256_mullo_epi16(pairs, _mm256_set1_epi16((short)factor));
#else
    const __m256i fours = _mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
    const __m256i shifts = _mm256_mullo_epi32(fours, _mm256_set1_epi32(factor));
#endif
    _mm256_storeu_si256((__m256i *)out, shifts);
}

#if defined(__AVX512VNNI__)

// The 64 bytes at `chunk` of `size`; past the end zeros.
inline vi chunk_of(const byte *p, int chunk, int size) {
    const int left = size - 64 * chunk;
    if (left >= 64) return iload(p + 64 * chunk);
    return left <= 0 ? iset(0) : _mm512_maskz_loadu_epi16((1u << left / 2) - 1, p + 64 * chunk);
}

// The f16 numbers that begin `first` bytes into `count` blocks of SIZE bytes, at most eight, the others zero: words are
// picked out of two vectors at a time.
template <int SIZE> inline Eight eight_halves(const byte *blocks, int first, int count) {
    constexpr int STEP = SIZE / 2, PAIR = 64; // words of a block, words of two vectors
    static_assert(SIZE % 2 == 0 && 8 * SIZE <= 4 * 2 * PAIR, "four vectors hold eight blocks");
    const int all = count * SIZE;
    const int at = first / 2;
    const vi where = _mm512_castsi128_si512(
        _mm_add_epi16(_mm_setr_epi16(0, STEP, 2 * STEP, 3 * STEP, 4 * STEP, 5 * STEP, 6 * STEP, 7 * STEP),
                      _mm_set1_epi16((short)at)));
    vi words = _mm512_permutex2var_epi16(chunk_of(blocks, 0, all), where, chunk_of(blocks, 1, all));
    if (7 * STEP + at >= PAIR) {
        const int in_first = (PAIR - 1 - at) / STEP + 1;
        const vi more = _mm512_permutex2var_epi16(chunk_of(blocks, 2, all), where, chunk_of(blocks, 3, all));
        words = _mm512_mask_blend_epi16(~0u << in_first, words, more);
    }
    return _mm256_cvtph_ps(_mm512_castsi512_si128(words));
}

#else

// The f16 numbers that begin `first` bytes into `count` blocks of SIZE bytes, at most eight, the others zero.
template <int SIZE> inline Eight eight_halves(const byte *blocks, int first, int count) {
    const auto half = [=](int i) { // not through memory: a load of eight would wait for the stores of each
        short h = 0;
        if (i < count) std::memcpy(&h, blocks + i * SIZE + first, 2);
        return h;
    };
    return _mm256_cvtph_ps(
        _mm_setr_epi16(half(0), half(1), half(2), half(3), half(4), half(5), half(6), half(7)));
}

#endif

// `count` scales of MXFP4, as `half_of_power` makes them, `step` bytes apart.
inline Eight eight_powers(const byte *p, int step, int count) {
    uint64_t bytes = 0;
    for (int i = 0; i < count; i++) bytes |= (uint64_t)p[i * step] << 8 * i;
    const __m256i e = _mm256_cvtepu8_epi32(_mm_cvtsi64_si128((long long)bytes)), two = _mm256_set1_epi32(2);
    const __m256i normal = _mm256_slli_epi32(_mm256_sub_epi32(e, _mm256_set1_epi32(1)), 23);
    const __m256i small = _mm256_sllv_epi32(_mm256_set1_epi32(0x00200000), e);
    return _mm256_castsi256_ps(_mm256_blendv_epi8(normal, small, _mm256_cmpgt_epi32(two, e)));
}

// The scales and minima of `count` blocks of 32, at most eight.
template <int TYPE> inline void eight_scales(const byte *blocks, Eight *d, Eight *m, int count) {
    typedef Block<TYPE> B;
    if constexpr (TYPE == MXFP4) {
        d[0] = eight_powers(blocks, B::SIZE, count);
    } else {
        d[0] = eight_halves<B::SIZE>(blocks, 0, count);
        if (B::MIN) m[0] = eight_halves<B::SIZE>(blocks, 2, count);
    }
}

#elif defined(TP_INT8)

inline void istore(void *p, const Codes &codes) { std::memcpy(p, codes.at, sizeof codes.at); }

template <int TYPE, bool SHIFTS>
inline vf add_groups(const Codes &codes, const Unit8<TYPE> &x, const Eight *scales, int g, vf sum) {
    vi dots[2];
    for (int h = 0; h < 2; h++) {
        const vi start = SHIFTS && EXCESS<TYPE> ? iload(x.shifts + 8 * g + 4 * h) : iset(0);
        dots[h] = dot_bytes<SIGNED<TYPE>>(start, iload(codes.at + 16 * h), iload(x.codes + g * GROUP + 16 * h));
    }
    if (!Block<TYPE>::HALVES) return vfma(ifloat(vaddq_s32(dots[0], dots[1])), vset(scales[0].at[g]), sum);
    const float *halves = scales[g / 4].at + 2 * g % 8;
    return vfma(ifloat(dots[1]), vset(halves[1]), vfma(ifloat(dots[0]), vset(halves[0]), sum));
}

inline void write_shifts(const int8_t *codes, int factor, int32_t *out) {
    const vi ones = vreinterpretq_s32_s8(vdupq_n_s8(1));
    for (int i = 0; i < 8; i += W)
        vst1q_s32(out + i, vmulq_n_s32(dot_bytes<true>(iset(0), iload(codes + 4 * i), ones), factor));
}

template <int TYPE> inline void eight_scales(const byte *blocks, Eight *d, Eight *m, int count) {
    *d = *m = eight_zeros();
    for (int i = 0; i < count; i++) Block<TYPE>::scales(blocks + i * Block<TYPE>::SIZE, d->at + i, m->at + i);
}

#endif

#if defined(TP_INT8)

// The scales and minima of the first `groups` of a unit.
template <int TYPE> inline void unit_scales(const byte *unit, Eight *d, Eight *m, int groups = GROUPS8) {
    typedef Block<TYPE> B;
    if constexpr (B::GROUPS == GROUPS8) {
        B::scales(unit, (float *)d, (float *)m);
    } else if constexpr (B::GROUPS > 1) {
        constexpr int EACH = B::HALVES ? 2 * B::GROUPS : B::GROUPS;
        for (int e = 0; groups < GROUPS8 && e < (B::HALVES ? 2 : 1); e++) d[e] = eight_zeros();
        for (int i = 0; i < GROUPS8 / B::GROUPS && i * B::GROUPS < groups; i++)
            B::scales(unit + i * B::SIZE, (float *)d + i * EACH, nullptr);
    } else {
        eight_scales<TYPE>(unit, d, m, groups);
    }
}

#endif

} // namespace
