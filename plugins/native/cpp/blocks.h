// Block types: 32 codes at a time, and the scale (and minimum) that goes with them.
//
// Each type says how long a block is, how many groups of 32 codes it has, whether each 16 codes have a scale of
// their own (HALVES), whether a minimum is added (MIN), and reads
//   scales(block, d, m)  d[GROUPS] (two for each group with HALVES) and m[GROUPS]
//   raw(block, group)      32 codes as bytes, ZERO more than they are
//   codes(block, group)    the same as signed numbers
//   floats(block, group, out)  and as floats
// so that an element is d * code + m.
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
// Two bits of each of 32 bytes, times 16.
inline Codes pairs(const byte *p, int shift) {
    const __m256i moved = _mm256_srl_epi16(load32(p), _mm_cvtsi32_si128(shift));
    return _mm256_slli_epi16(_mm256_and_si256(moved, _mm256_set1_epi8(3)), 4);
}
inline Codes merge(Codes a, Codes b) { return _mm256_or_si256(a, b); }
inline Codes minus(Codes a, char b) { return _mm256_sub_epi8(a, _mm256_set1_epi8(b)); }
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
inline Codes pairs(const byte *p, int shift) { EACH((p[i] >> shift & 3) << 4); }
inline Codes merge(Codes a, Codes b) { EACH(a.at[i] | b.at[i]); }
inline Codes minus(Codes a, char b) { EACH(a.at[i] - b); }
#undef EACH
inline vf codes_at(Codes c, int i) {
    vf r;
    for (int j = 0; j < W; j++) r.at[j] = c.at[i * W + j];
    return r;
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
inline uint32_t word_at(const byte *p) {
    uint32_t w;
    std::memcpy(&w, p, 4);
    return w;
}

template <int TYPE> struct Block;

template <> struct Block<Q8_0> {
    static constexpr int SIZE = 34, GROUPS = 1;
    static constexpr bool MIN = false, HALVES = false;
    static void scales(const byte *b, float *d, float *) { d[0] = half_at(b); }
    static constexpr int ZERO = 128;
    static Codes raw(const byte *b, int) { return minus(load32(b + 2), -128); }
    static Codes codes(const byte *b, int) { return load32(b + 2); }
    static void floats(const byte *b, int g, vf *out) { to_floats(codes(b, g), out); }
};

template <> struct Block<Q4_0> {
    static constexpr int SIZE = 18, GROUPS = 1;
    static constexpr bool MIN = false, HALVES = false;
    static void scales(const byte *b, float *d, float *) { d[0] = half_at(b); }
    static constexpr int ZERO = 8;
    static Codes raw(const byte *b, int) { return nibbles16(b + 2); }
    static Codes codes(const byte *b, int g) { return minus(raw(b, g), ZERO); }
    FLOATS(nibble_floats16(b + 2, -8, out))
};

template <> struct Block<Q4_1> {
    static constexpr int SIZE = 20, GROUPS = 1;
    static constexpr bool MIN = true, HALVES = false;
    static void scales(const byte *b, float *d, float *m) { d[0] = half_at(b), m[0] = half_at(b + 2); }
    static constexpr int ZERO = 0;
    static Codes raw(const byte *b, int) { return nibbles16(b + 4); }
    static Codes codes(const byte *b, int g) { return raw(b, g); }
    FLOATS(nibble_floats16(b + 4, 0, out))
};

template <> struct Block<Q5_0> {
    static constexpr int SIZE = 22, GROUPS = 1;
    static constexpr bool MIN = false, HALVES = false;
    static void scales(const byte *b, float *d, float *) { d[0] = half_at(b); }
    static constexpr int ZERO = 16;
    static Codes raw(const byte *b, int) { return merge(nibbles16(b + 6), spread(word_at(b + 2), 16)); }
    static Codes codes(const byte *b, int g) { return minus(raw(b, g), ZERO); }
    FLOATS(nibble_floats16(b + 6, -16, word_at(b + 2), out))
};

template <> struct Block<Q5_1> {
    static constexpr int SIZE = 24, GROUPS = 1;
    static constexpr bool MIN = true, HALVES = false;
    static void scales(const byte *b, float *d, float *m) { d[0] = half_at(b), m[0] = half_at(b + 2); }
    static constexpr int ZERO = 0;
    static Codes raw(const byte *b, int) { return merge(nibbles16(b + 8), spread(word_at(b + 4), 16)); }
    static Codes codes(const byte *b, int g) { return raw(b, g); }
    FLOATS(nibble_floats16(b + 8, 0, word_at(b + 4), out))
};

// Four numbers of a byte each, times `factor`.
inline void four_floats(uint32_t bytes, float factor, float *out) {
#if defined(__AVX2__)
    const __m128i whole = _mm_cvtepu8_epi32(_mm_cvtsi32_si128((int)bytes));
    _mm_storeu_ps(out, _mm_mul_ps(_mm_cvtepi32_ps(whole), _mm_set1_ps(factor)));
#else
    for (int i = 0; i < 4; i++) out[i] = factor * (float)(bytes >> 8 * i & 255);
#endif
}

// Eight scales and eight minima of six bits in twelve bytes: the first four of each lie in the low six bits of a byte;
// the others have four bits in the last four bytes, and two where those of the first four end.
inline void six_bit_pairs(const byte *b, float *d, float *m) {
    const float scale = half_at(b), least = -half_at(b + 2);
    const uint32_t first = word_at(b + 4), second = word_at(b + 8), rest = word_at(b + 12);
    four_floats(first & 0x3f3f3f3f, scale, d);
    four_floats((rest & 0x0f0f0f0f) | (first >> 2 & 0x30303030), scale, d + 4);
    four_floats(second & 0x3f3f3f3f, least, m);
    four_floats((rest >> 4 & 0x0f0f0f0f) | (second >> 2 & 0x30303030), least, m + 4);
}

template <> struct Block<Q4_K> {
    static constexpr int SIZE = 144, GROUPS = 8;
    static constexpr bool MIN = true, HALVES = false;
    static void scales(const byte *b, float *d, float *m) { six_bit_pairs(b, d, m); }
    static constexpr int ZERO = 0;
    static Codes raw(const byte *b, int g) { return nibbles32(b + 16 + g / 2 * 32, g & 1); }
    static Codes codes(const byte *b, int g) { return raw(b, g); }
    FLOATS(nibble_floats32(b + 16 + g / 2 * 32, g & 1, out))
};

template <> struct Block<Q5_K> {
    static constexpr int SIZE = 176, GROUPS = 8;
    static constexpr bool MIN = true, HALVES = false;
    static void scales(const byte *b, float *d, float *m) { six_bit_pairs(b, d, m); }
    static constexpr int ZERO = 0;
    static Codes raw(const byte *b, int g) {
        return merge(nibbles32(b + 48 + g / 2 * 32, g & 1), spread_bit(b + 16, g, 16));
    }
    static Codes codes(const byte *b, int g) { return raw(b, g); }
    FLOATS(nibble_floats32(b + 48 + g / 2 * 32, g & 1, bits_of(b + 16, g), out))
};

template <> struct Block<Q6_K> {
    static constexpr int SIZE = 210, GROUPS = 8;
    static constexpr bool MIN = false, HALVES = true;
    static void scales(const byte *b, float *d, float *) {
        const float scale = half_at(b + 208);
#if defined(__AVX2__)
        for (int i = 0; i < 16; i += 8) {
            const __m256i whole = _mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)(b + 192 + i)));
            _mm256_storeu_ps(d + i, _mm256_mul_ps(_mm256_cvtepi32_ps(whole), _mm256_set1_ps(scale)));
        }
#else
        for (int i = 0; i < 16; i++) d[i] = scale * (float)(int8_t)b[192 + i];
#endif
    }
    static constexpr int ZERO = 32;
    static Codes raw(const byte *b, int g) {
        // Each half of a block: 64 bytes whose low, then high halves make two groups each, and 32 bytes with two
        // more bits for each of the four.
        const int half = g / 4, quarter = g % 4;
        const Codes low = nibbles32(b + 64 * half + 32 * (quarter & 1), quarter >> 1);
        return merge(low, pairs(b + 128 + 32 * half, 2 * quarter));
    }
    static Codes codes(const byte *b, int g) { return minus(raw(b, g), ZERO); }
    static void floats(const byte *b, int g, vf *out) { to_floats(codes(b, g), out); }
};

// Floats as blocks of one group of 32 are read with these.
template <int TYPE> inline vf load_floats(const char *p, int64_t i) {
    if constexpr (TYPE == F32) return vload((const float *)p + i);
    if constexpr (TYPE == F16) return vload16((const uint16_t *)p + i);
    if constexpr (TYPE == BF16) return vloadb16((const uint16_t *)p + i);
}
template <int TYPE> inline float load_float(const char *p, int64_t i) {
    if constexpr (TYPE == F32) return ((const float *)p)[i];
    if constexpr (TYPE == F16) return half_to_float(((const uint16_t *)p)[i]);
    if constexpr (TYPE == BF16) return bf16_to_float(((const uint16_t *)p)[i]);
}

constexpr bool is_plain(int type) { return type == F32 || type == F16 || type == BF16; }

// Elements `first` to `first + n` of a row as floats; both are multiples of a block for block types.
template <int TYPE> void decode(const char *row, int64_t first, int64_t n, float *out) {
    if constexpr (is_plain(TYPE)) {
        const char *p = row + first * (TYPE == F32 ? 4 : 2);
        int64_t i = 0;
        for (; i + W <= n; i += W) vstore(out + i, load_floats<TYPE>(p, i));
        for (; i < n; i++) out[i] = load_float<TYPE>(p, i);
    } else {
        typedef Block<TYPE> B;
        const byte *block = (const byte *)row + first / (32 * B::GROUPS) * B::SIZE;
        float d[2 * B::GROUPS], m[B::GROUPS];
        for (int64_t i = 0; i < n; i += 32 * B::GROUPS, block += B::SIZE) {
            B::scales(block, d, m);
            for (int g = 0; g < B::GROUPS; g++) {
                vf codes[VECTORS];
                B::floats(block, g, codes);
                for (int v = 0; v < VECTORS; v++) {
                    const float scale = B::HALVES ? d[2 * g + v * W / 16] : d[g];
                    vf x = vmul(codes[v], vset(scale));
                    if (B::MIN) x = vadd(x, vset(m[g]));
                    vstore(out + i + 32 * g + v * W, x);
                }
            }
        }
    }
}

constexpr int64_t AHEAD = 8192; // bytes: some 200 ns at the speed of the memory

// Asks for `n` bytes that follow `done` bytes of R rows. Rows side by side make several short streams, which
// processors do not foresee: without this, four rows at a time are read at a sixth of the speed of one.
template <int R> inline void prefetch(const char *rows, int64_t done, int64_t n) {
    const char *p = rows + AHEAD + done * R;
    for (int64_t i = 0; i < n * R; i += 64) __builtin_prefetch(p + i);
}

// Dot products of R rows, `step` bytes apart, with x.
template <int TYPE, int R> void dots(const char *row, int64_t step, const float *x, int64_t n, float *out) {
    if constexpr (is_plain(TYPE)) {
        vf a[R][2];
        for (int r = 0; r < R; r++) a[r][0] = a[r][1] = vset(0);
        int64_t i = 0;
        for (; i + 2 * W <= n; i += 2 * W) {
            constexpr int64_t SIZE = TYPE == F32 ? 4 : 2;
            if (R > 1) prefetch<R>(row, i * SIZE, 2 * W * SIZE);
            const vf x0 = vload(x + i), x1 = vload(x + i + W);
            for (int r = 0; r < R; r++) {
                a[r][0] = vfma(load_floats<TYPE>(row + r * step, i), x0, a[r][0]);
                a[r][1] = vfma(load_floats<TYPE>(row + r * step, i + W), x1, a[r][1]);
            }
        }
        for (int r = 0; r < R; r++) {
            float sum = vsum(vadd(a[r][0], a[r][1]));
            for (int64_t j = i; j < n; j++) sum += load_float<TYPE>(row + r * step, j) * x[j];
            out[r] = sum;
        }
    } else {
        typedef Block<TYPE> B;
        float d[R][2 * B::GROUPS], m[R][B::GROUPS];
        vf sums[R][2];
        for (int r = 0; r < R; r++) sums[r][0] = sums[r][1] = vset(0);
        const byte *block = (const byte *)row;
        for (int64_t i = 0; i < n; i += 32 * B::GROUPS, block += B::SIZE) {
            if (R > 1) prefetch<R>(row, (const char *)block - row, B::SIZE);
            for (int r = 0; r < R; r++) B::scales(block + r * step, d[r], m[r]);
            for (int g = 0; g < B::GROUPS; g++) {
                const float *xg = x + i + 32 * g;
                vf xs[VECTORS];
                for (int v = 0; v < VECTORS; v++) xs[v] = vload(xg + v * W);
                vf total = xs[0];
                if (B::MIN) {
                    for (int v = 1; v < VECTORS; v++) total = vadd(total, xs[v]);
                }
                for (int r = 0; r < R; r++) {
                    vf codes[VECTORS];
                    B::floats(block + r * step, g, codes);
                    if (B::HALVES) {
                        constexpr int HALF = VECTORS / 2;
                        for (int h = 0; h < 2; h++) {
                            vf part = vmul(codes[h * HALF], xs[h * HALF]);
                            for (int v = 1; v < HALF; v++) {
                                part = vfma(codes[h * HALF + v], xs[h * HALF + v], part);
                            }
                            sums[r][h] = vfma(vset(d[r][2 * g + h]), part, sums[r][h]);
                        }
                        continue;
                    }
                    vf part = vmul(codes[0], xs[0]);
                    for (int v = 1; v < VECTORS; v++) part = vfma(codes[v], xs[v], part);
                    sums[r][0] = vfma(vset(d[r][g]), part, sums[r][0]);
                    if (B::MIN) sums[r][1] = vfma(vset(m[r][g]), total, sums[r][1]);
                }
            }
        }
        for (int r = 0; r < R; r++) out[r] = vsum(vadd(sums[r][0], sums[r][1]));
    }
}

// What the kernels do with rows of one type.
struct RowType {
    int type, block, size; // elements and bytes of a block
    void (*decode)(const char *row, int64_t first, int64_t n, float *out);
    void (*dot)(const char *row, int64_t step, const float *x, int64_t n, float *out);
    void (*dot4)(const char *row, int64_t step, const float *x, int64_t n, float *out);
};

template <int TYPE> constexpr RowType block_type() {
    static_assert(32 * Block<TYPE>::GROUPS == type_size(TYPE)->block && Block<TYPE>::SIZE == type_size(TYPE)->size);
    return {TYPE, 32 * Block<TYPE>::GROUPS, Block<TYPE>::SIZE, decode<TYPE>, dots<TYPE, 1>, dots<TYPE, 4>};
}

const RowType ROW_TYPES[] = {
    {F32, 1, 4, decode<F32>, dots<F32, 1>, dots<F32, 4>},
    {F16, 1, 2, decode<F16>, dots<F16, 1>, dots<F16, 4>},
    {BF16, 1, 2, decode<BF16>, dots<BF16, 1>, dots<BF16, 4>},
    block_type<Q8_0>(),
    block_type<Q4_0>(),
    block_type<Q4_1>(),
    block_type<Q5_0>(),
    block_type<Q5_1>(),
    block_type<Q4_K>(),
    block_type<Q5_K>(),
    block_type<Q6_K>(),
};

// The functions for a type; null where there are none.
inline const RowType *row_type(int type) {
    for (const RowType &known : ROW_TYPES) {
        if (known.type == type) return &known;
    }
    return nullptr;
}

} // namespace
