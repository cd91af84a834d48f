// Rounding of x to eight bits, 32 values to a scale, and sums of products of bytes: what each level has for them.
#pragma once

#include "grid_blocks.h"

#if defined(__AVX2__) || defined(TP_NEON_DOT)
#define TP_INT8 // the level has dot products of bytes
#endif

namespace {

constexpr int GROUP = 32; // values of x that share a scale

#if defined(TP_INT8)

// Without VNNI, products of bytes are summed in pairs to 16 bits, which codes above 63 could overflow: these types
// keep their signed codes, and products are made of magnitudes, with the sign of the code given to x. On ARM they do
// because both factors are signed.
#if defined(__AVX512VNNI__)
template <int TYPE> constexpr bool SIGNED = false;
#else
template <int TYPE> constexpr bool SIGNED = Block<TYPE>::ZERO == 128;
#endif

template <int TYPE> constexpr int part_of() { return Block<TYPE>::HALVES ? 16 : 32; } // codes of w that share a scale

// What stored codes are larger by than the codes.
template <int TYPE> constexpr int EXCESS = SIGNED<TYPE> ? 0 : Block<TYPE>::ZERO;
template <int TYPE> inline Codes stored_codes(const byte *b, int g) {
    if constexpr (SIGNED<TYPE>) return Block<TYPE>::codes(b, g);
    else return Block<TYPE>::raw(b, g);
}

#if defined(TP_ONLY_AVX2)
#define TP_PAIRS // products of bytes are summed in pairs to 16 bits
#endif

#if defined(TP_PAIRS)
// How many vectors of products, each in pairs, a sum of 16 bits holds: sums on the way may overflow, because that does
// not change the last bits. Of a whole part what stored codes are too large by is taken off in these bits, of less they
// hold sums of stored codes. None where codes are signed.
template <int TYPE> constexpr int chain_of() {
    constexpr int FOURS = part_of<TYPE>() / 4, PAIR = INT16_MAX / (2 * 127), MOST = Block<TYPE>::MOST;
    constexpr int HELD = PAIR / MOST, STORED = PAIR / (MOST + EXCESS<TYPE>);
    return SIGNED<TYPE> ? 0 : HELD >= FOURS ? FOURS : STORED;
}
#else
template <int TYPE> constexpr int chain_of() { return SIGNED<TYPE> ? 0 : 2; }
#endif

// Whether such a sum holds a whole part: what is taken off for stored codes, too, is two numbers of 16 bits then.
template <int PART, int CHAIN> constexpr bool WHOLE = CHAIN * 4 == PART;

#if defined(__AVX512VNNI__)

typedef __m512i vi;
inline vi iload(const void *p) { return _mm512_loadu_si512(p); }
inline void istore(void *p, vi a) { _mm512_storeu_si512(p, a); }
inline vi iset(int32_t a) { return _mm512_set1_epi32(a); }
inline vf ifloat(vi a) { return _mm512_cvtepi32_ps(a); }

// Adds products of bytes, four side by side to a sum; `Signed` as above.
template <bool Signed> inline vi dot_bytes(vi from, vi w, vi x) { return _mm512_dpbusd_epi32(from, w, x); }

#elif defined(__AVX2__)

typedef __m256i vi;
inline vi iload(const void *p) { return _mm256_loadu_si256((const __m256i *)p); }
inline void istore(void *p, vi a) { _mm256_storeu_si256((__m256i *)p, a); }
inline vi iset(int32_t a) { return _mm256_set1_epi32(a); }
inline vf ifloat(vi a) { return _mm256_cvtepi32_ps(a); }
inline vi pairs_to_fours(vi a) { return _mm256_madd_epi16(a, _mm256_set1_epi16(1)); }
// Sums as the compiler cannot see them: GCC would add up in an order of its own, for which more sums and products are
// there than registers, and they would wait in memory.
inline vi add16(vi a, vi b) {
    asm("vpaddw %1, %0, %0" : "+x"(a) : "x"(b));
    return a;
}
inline vi add32(vi a, vi b) {
    asm("vpaddd %1, %0, %0" : "+x"(a) : "x"(b));
    return a;
}
// 1 in each 16 bits, made where it is wanted: GCC would keep it in a register, and a sum in memory instead.
inline vi ones16() {
    vi a;
    asm volatile("vpcmpeqw %0, %0, %0\n\tvpsrlw $15, %0, %0" : "=x"(a));
    return a;
}
// Adds products of bytes in pairs, in 16 bits.
inline vi add_pairs(vi from, vi w, vi x) { return add16(from, _mm256_maddubs_epi16(w, x)); }

template <bool Signed> inline vi multiply_pairs(vi w, vi x) {
    if (Signed) x = _mm256_sign_epi8(x, w), w = _mm256_abs_epi8(w);
    return _mm256_maddubs_epi16(w, x);
}
template <bool Signed> inline vi dot_bytes(vi from, vi w, vi x) {
    return add32(from, pairs_to_fours(multiply_pairs<Signed>(w, x)));
}

#else

typedef int32x4_t vi;
inline vi iload(const void *p) { return vreinterpretq_s32_s8(vld1q_s8((const int8_t *)p)); }
inline void istore(void *p, vi a) { vst1q_s8((int8_t *)p, vreinterpretq_s8_s32(a)); }
inline vi iset(int32_t a) { return vdupq_n_s32(a); }
inline vf ifloat(vi a) { return vcvtq_f32_s32(a); }

// Stored codes are signed or below 64: signed bytes all.
template <bool> inline vi dot_bytes(vi from, vi w, vi x) {
    return vdotq_s32(from, vreinterpretq_s8_s32(w), vreinterpretq_s8_s32(x));
}

#endif

// The same for two vectors each.
template <bool Signed> inline vi dot_bytes(vi from, vi w0, vi x0, vi w1, vi x1) {
    return dot_bytes<Signed>(dot_bytes<Signed>(from, w0, x0), w1, x1);
}

// Values up to this become zeros: 127 divided by them would be infinite.
constexpr float LEAST = 0x1p-121f;

// Rounds 32 values; returns their scale, and sums of 16 codes each. NaN among the values makes the scale NaN, and with
// it all results that depend on them; infinity makes the scale infinite, and results infinite or NaN.
#if defined(__AVX2__)
inline float round_group(const float *values, int8_t *codes, int *halves) {
    constexpr int VECTORS8 = 4;
    __m256 v[VECTORS8];
    for (int i = 0; i < VECTORS8; i++) v[i] = _mm256_loadu_ps(values + 8 * i);
    // Magnitudes are compared as integers: the order is the same, and NaN is above infinity.
    const __m256i magnitude = _mm256_set1_epi32(0x7fffffff);
    __m256i most = _mm256_and_si256(magnitude, _mm256_castps_si256(v[0]));
    for (int i = 1; i < VECTORS8; i++)
        most = _mm256_max_epi32(most, _mm256_and_si256(magnitude, _mm256_castps_si256(v[i])));
    __m128i m = _mm_max_epi32(_mm256_castsi256_si128(most), _mm256_extracti128_si256(most, 1));
    m = _mm_max_epi32(m, _mm_unpackhi_epi64(m, m));
    const float largest = _mm_cvtss_f32(_mm_castsi128_ps(_mm_max_epi32(m, _mm_shuffle_epi32(m, 1))));
    const __m256 inverse = _mm256_set1_ps(largest > LEAST ? 127 / largest : 0);
    __m256i q[VECTORS8];
    for (int i = 0; i < VECTORS8; i++) q[i] = _mm256_cvtps_epi32(_mm256_mul_ps(v[i], inverse));
    // Packing goes by halves of a vector, so that fours of bytes have to be put in order again.
    const __m256i mixed = _mm256_packs_epi16(_mm256_packs_epi32(q[0], q[1]), _mm256_packs_epi32(q[2], q[3]));
    const __m256i bytes = _mm256_permutevar8x32_epi32(mixed, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
    _mm256_storeu_si256((__m256i *)codes, bytes);
    // Of the bytes, which are small whatever the values were.
    const __m256i pairs = _mm256_maddubs_epi16(_mm256_set1_epi8(1), bytes),
                  fours = _mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
    for (int h = 0; h < 2; h++) {
        __m128i s = h ? _mm256_extracti128_si256(fours, 1) : _mm256_castsi256_si128(fours);
        s = _mm_add_epi32(s, _mm_unpackhi_epi64(s, s));
        halves[h] = _mm_cvtsi128_si32(_mm_add_epi32(s, _mm_shuffle_epi32(s, 1)));
    }
    return largest / 127;
}
#else
inline float round_group(const float *values, int8_t *codes, int *halves) {
    constexpr int VECTORS4 = 8;
    vf v[VECTORS4], most = vset(0);
    for (int i = 0; i < VECTORS4; i++) {
        v[i] = vload(values + 4 * i);
        most = vmaxq_f32(most, vabsq_f32(v[i])); // NaN where either is, unlike vmax
    }
    const float largest = vmaxvq_f32(most);
    const vf inverse = vset(largest > LEAST ? 127 / largest : 0);
    for (int h = 0; h < 2; h++) {
        int16x8_t eight[2];
        for (int i = 0; i < 2; i++) {
            const vf *pair = v + 4 * h + 2 * i;
            const vi a = vcvtnq_s32_f32(vmul(pair[0], inverse)), b = vcvtnq_s32_f32(vmul(pair[1], inverse));
            eight[i] = vcombine_s16(vqmovn_s32(a), vqmovn_s32(b));
        }
        const int8x16_t bytes = vcombine_s8(vqmovn_s16(eight[0]), vqmovn_s16(eight[1]));
        vst1q_s8(codes + 16 * h, bytes);
        halves[h] = vaddlvq_s8(bytes);
    }
    return largest / 127;
}
#endif

#endif

} // namespace
