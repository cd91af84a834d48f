// Vectors of floats, as wide as the level allows: `vf` holds W of them, `vm` a truth value for each. A comparison with
// NaN is false, and vmax and vmin then give their second argument.
//
// Everything here has internal linkage: were the linker to merge a function of two levels, it could pick the
// one that this processor cannot run.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#if defined(__AVX2__) && !defined(__AVX512F__)
#define TP_ONLY_AVX2 // the level has AVX2 and no AVX-512
#endif

#if defined(__AVX2__)
#include <immintrin.h>
#elif defined(TP_NEON)
#include <arm_neon.h>
#endif

namespace {

#if defined(__AVX512F__)

typedef __m512 vf;
constexpr int W = 16;
inline vf vload(const float *p) { return _mm512_loadu_ps(p); }
inline void vstore(float *p, vf a) { _mm512_storeu_ps(p, a); }
inline vf vload(const float *p, int n) { return _mm512_maskz_loadu_ps((__mmask16)((1u << n) - 1), p); }
inline void vstore(float *p, vf a, int n) { _mm512_mask_storeu_ps(p, (__mmask16)((1u << n) - 1), a); }
inline vf vset(float x) { return _mm512_set1_ps(x); }
inline vf vadd(vf a, vf b) { return _mm512_add_ps(a, b); }
inline vf vsub(vf a, vf b) { return _mm512_sub_ps(a, b); }
inline vf vmul(vf a, vf b) { return _mm512_mul_ps(a, b); }
inline vf vdiv(vf a, vf b) { return _mm512_div_ps(a, b); }
inline vf vfma(vf a, vf b, vf c) { return _mm512_fmadd_ps(a, b, c); }
inline vf vmax(vf a, vf b) { return _mm512_max_ps(a, b); }
inline vf vmin(vf a, vf b) { return _mm512_min_ps(a, b); }
inline vf vsqrt(vf a) { return _mm512_sqrt_ps(a); }
inline vf vabs(vf a) { return _mm512_abs_ps(a); }
typedef __mmask16 vm;
inline vm vless(vf a, vf b) { return _mm512_cmp_ps_mask(a, b, _CMP_LT_OQ); }
inline vm vless_equal(vf a, vf b) { return _mm512_cmp_ps_mask(a, b, _CMP_LE_OQ); }
inline vm vboth(vm m, vm n) { return m & n; }
inline bool vall(vm m) { return m == 0xffff; }
inline vf vselect(vm m, vf a, vf b) { return _mm512_mask_blend_ps(m, b, a); }
inline float vmost(vf a) { return _mm512_reduce_max_ps(a); }
inline float vsum(vf a) { return _mm512_reduce_add_ps(a); }
// x * 2**n for a whole n.
inline vf vscale2(vf x, vf n) { return _mm512_scalef_ps(x, n); }
inline vf vround(vf x) { return _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
inline vf vload16(const uint16_t *p) { return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)p)); }
inline vf vloadb16(const uint16_t *p) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)p)), 16));
}
inline void vstore16(uint16_t *p, vf a) {
    _mm256_storeu_si256((__m256i *)p, _mm512_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}

#elif defined(__AVX2__)

typedef __m256 vf;
constexpr int W = 8;
inline __m256i first_lanes(int n) {
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}
inline vf vload(const float *p) { return _mm256_loadu_ps(p); }
inline void vstore(float *p, vf a) { _mm256_storeu_ps(p, a); }
inline vf vload(const float *p, int n) { return _mm256_maskload_ps(p, first_lanes(n)); }
inline void vstore(float *p, vf a, int n) { _mm256_maskstore_ps(p, first_lanes(n), a); }
inline vf vset(float x) { return _mm256_set1_ps(x); }
inline vf vadd(vf a, vf b) { return _mm256_add_ps(a, b); }
inline vf vsub(vf a, vf b) { return _mm256_sub_ps(a, b); }
inline vf vmul(vf a, vf b) { return _mm256_mul_ps(a, b); }
inline vf vdiv(vf a, vf b) { return _mm256_div_ps(a, b); }
inline vf vfma(vf a, vf b, vf c) { return _mm256_fmadd_ps(a, b, c); }
inline vf vmax(vf a, vf b) { return _mm256_max_ps(a, b); }
inline vf vmin(vf a, vf b) { return _mm256_min_ps(a, b); }
inline vf vsqrt(vf a) { return _mm256_sqrt_ps(a); }
inline vf vabs(vf a) { return _mm256_andnot_ps(_mm256_set1_ps(-0.0f), a); }
typedef __m256 vm;
inline vm vless(vf a, vf b) { return _mm256_cmp_ps(a, b, _CMP_LT_OQ); }
inline vm vless_equal(vf a, vf b) { return _mm256_cmp_ps(a, b, _CMP_LE_OQ); }
inline vm vboth(vm m, vm n) { return _mm256_and_ps(m, n); }
inline bool vall(vm m) { return _mm256_movemask_ps(m) == 0xff; }
inline vf vselect(vm m, vf a, vf b) { return _mm256_blendv_ps(b, a, m); }
inline float vmost(vf a) {
    __m128 m = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    m = _mm_max_ps(m, _mm_movehl_ps(m, m));
    return _mm_cvtss_f32(_mm_max_ss(m, _mm_movehdup_ps(m)));
}
inline float vsum(vf a) {
    __m128 s = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    s = _mm_add_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_add_ss(s, _mm_movehdup_ps(s)));
}
inline vf vround(vf x) { return _mm256_round_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
inline vf vscale2(vf x, vf n) {
    // In two steps: 2**n by itself may be too large or too small for a float.
    const __m256i whole = _mm256_cvtps_epi32(n), half = _mm256_srai_epi32(whole, 1);
    const __m256i rest = _mm256_sub_epi32(whole, half), bias = _mm256_set1_epi32(127);
    const vf a = _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(half, bias), 23));
    const vf b = _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(rest, bias), 23));
    return vmul(vmul(x, a), b);
}
inline vf vload16(const uint16_t *p) { return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p)); }
inline vf vloadb16(const uint16_t *p) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)p)), 16));
}
inline void vstore16(uint16_t *p, vf a) {
    _mm_storeu_si128((__m128i *)p, _mm256_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}

#elif defined(TP_NEON)

typedef float32x4_t vf;
constexpr int W = 4;
inline vf vload(const float *p) { return vld1q_f32(p); }
inline void vstore(float *p, vf a) { vst1q_f32(p, a); }
inline vf vload(const float *p, int n) {
    float lanes[4] = {0, 0, 0, 0};
    std::memcpy(lanes, p, (size_t)n * 4);
    return vld1q_f32(lanes);
}
inline void vstore(float *p, vf a, int n) {
    float lanes[4];
    vst1q_f32(lanes, a);
    std::memcpy(p, lanes, (size_t)n * 4);
}
inline vf vset(float x) { return vdupq_n_f32(x); }
inline vf vadd(vf a, vf b) { return vaddq_f32(a, b); }
inline vf vsub(vf a, vf b) { return vsubq_f32(a, b); }
inline vf vmul(vf a, vf b) { return vmulq_f32(a, b); }
inline vf vdiv(vf a, vf b) { return vdivq_f32(a, b); }
inline vf vfma(vf a, vf b, vf c) { return vfmaq_f32(c, a, b); }
inline vf vmax(vf a, vf b) { return vbslq_f32(vcgtq_f32(a, b), a, b); }
inline vf vmin(vf a, vf b) { return vbslq_f32(vcltq_f32(a, b), a, b); }
inline vf vsqrt(vf a) { return vsqrtq_f32(a); }
inline vf vabs(vf a) { return vabsq_f32(a); }
typedef uint32x4_t vm;
inline vm vless(vf a, vf b) { return vcltq_f32(a, b); }
inline vm vless_equal(vf a, vf b) { return vcleq_f32(a, b); }
inline vm vboth(vm m, vm n) { return vandq_u32(m, n); }
inline bool vall(vm m) { return vminvq_u32(m) != 0; }
inline vf vselect(vm m, vf a, vf b) { return vbslq_f32(m, a, b); }
inline float vmost(vf a) { return vmaxvq_f32(a); }
inline float vsum(vf a) { return vaddvq_f32(a); }
inline vf vround(vf x) { return vrndnq_f32(x); }
inline vf vscale2(vf x, vf n) {
    // In two steps: 2**n by itself may be too large or too small for a float.
    const int32x4_t whole = vcvtnq_s32_f32(n), half = vshrq_n_s32(whole, 1);
    const int32x4_t rest = vsubq_s32(whole, half), bias = vdupq_n_s32(127);
    const vf a = vreinterpretq_f32_s32(vshlq_n_s32(vaddq_s32(half, bias), 23));
    const vf b = vreinterpretq_f32_s32(vshlq_n_s32(vaddq_s32(rest, bias), 23));
    return vmul(vmul(x, a), b);
}
inline vf vload16(const uint16_t *p) { return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p))); }
inline vf vloadb16(const uint16_t *p) { return vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(p), 16)); }
inline void vstore16(uint16_t *p, vf a) { vst1_u16(p, vreinterpret_u16_f16(vcvt_f16_f32(a))); }

#else

#define TP_PLAIN // vectors are those of the compiler

typedef float vf __attribute__((vector_size(16)));
constexpr int W = 4;
#define EACH(expression)                                                                                               \
    vf r;                                                                                                              \
    for (int i = 0; i < W; i++) r[i] = expression;                                                                     \
    return r
inline vf vload(const float *p) {
    vf a;
    std::memcpy(&a, p, sizeof a);
    return a;
}
inline void vstore(float *p, vf a) { std::memcpy(p, &a, sizeof a); }
inline vf vload(const float *p, int n) { EACH(i < n ? p[i] : 0.0f); }
inline void vstore(float *p, vf a, int n) {
    for (int i = 0; i < n; i++) p[i] = a[i];
}
inline vf vset(float x) { return vf{x, x, x, x}; }
inline vf vadd(vf a, vf b) { return a + b; }
inline vf vsub(vf a, vf b) { return a - b; }
inline vf vmul(vf a, vf b) { return a * b; }
inline vf vdiv(vf a, vf b) { return a / b; }
inline vf vfma(vf a, vf b, vf c) { return a * b + c; }
typedef int32_t vm __attribute__((vector_size(16))); // all bits of a lane, or none
inline vm vless(vf a, vf b) { return a < b; }
inline vm vless_equal(vf a, vf b) { return a <= b; }
inline vm vboth(vm m, vm n) { return m & n; }
inline bool vall(vm m) { return m[0] & m[1] & m[2] & m[3]; }
inline vf vselect(vm m, vf a, vf b) { return (vf)(((vm)a & m) | ((vm)b & ~m)); }
inline vf vmax(vf a, vf b) { return vselect(b < a, a, b); }
inline vf vmin(vf a, vf b) { return vselect(a < b, a, b); }
inline vf vsqrt(vf a) { EACH(std::sqrt(a[i])); }
inline vf vabs(vf a) { return (vf)((vm)a & INT32_MAX); }
inline float vmost(vf a) {
    const float most = a[1] > a[0] ? a[1] : a[0], other = a[3] > a[2] ? a[3] : a[2];
    return other > most ? other : most;
}
inline float vsum(vf a) { return (a[0] + a[2]) + (a[1] + a[3]); }
inline vf vround(vf x) {
    // The sum is so large that it has no fraction; larger numbers have none themselves.
    const vf large = vset(0x1p23f), size = vabs(x), rounded = size + large - large;
    return (vf)((vm)vselect(size < large, rounded, size) | ((vm)x & INT32_MIN));
}
inline vf vscale2(vf x, vf n) { EACH(std::ldexp(x[i], std::isnan(n[i]) ? 0 : (int)n[i])); }

#endif

// Bounds; NaN stays NaN.
inline vf vbound(vf x, float low, float high) { return vmin(vset(high), vmax(vset(low), x)); }

// The sum of each of four vectors.
inline void vsums(const vf *a, float *out) {
#if defined(__AVX2__)
    // Pairs of vectors are woven, so that one addition serves both, until each part of 128 bits has all four sums.
#if defined(__AVX512F__)
    const vf ab = vadd(_mm512_unpacklo_ps(a[0], a[1]), _mm512_unpackhi_ps(a[0], a[1]));
    const vf cd = vadd(_mm512_unpacklo_ps(a[2], a[3]), _mm512_unpackhi_ps(a[2], a[3]));
    const __m512d p = _mm512_castps_pd(ab), q = _mm512_castps_pd(cd);
    const vf all = vadd(_mm512_castpd_ps(_mm512_unpacklo_pd(p, q)), _mm512_castpd_ps(_mm512_unpackhi_pd(p, q)));
    const __m256 half = _mm256_add_ps(_mm512_castps512_ps256(all), _mm512_extractf32x8_ps(all, 1));
#else
    const vf ab = _mm256_hadd_ps(a[0], a[1]), cd = _mm256_hadd_ps(a[2], a[3]), half = _mm256_hadd_ps(ab, cd);
#endif
    _mm_storeu_ps(out, _mm_add_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1)));
#else
    for (int i = 0; i < 4; i++) out[i] = vsum(a[i]);
#endif
}

inline float half_to_float(uint16_t h) {
#if defined(__F16C__)
    return _cvtsh_ss(h);
#elif defined(TP_NEON)
    return vgetq_lane_f32(vcvt_f32_f16(vreinterpret_f16_u16(vdup_n_u16(h))), 0);
#else
    const uint32_t sign = (uint32_t)(h & 0x8000) << 16, magnitude = h & 0x7fff;
    uint32_t bits = magnitude << 13;
    float value;
    std::memcpy(&value, &bits, 4);
    value *= 0x1p112f; // the exponents are biased by 15 and 127; this makes subnormal numbers right too
    std::memcpy(&bits, &value, 4);
    if (magnitude >= 0x7c00) bits = 0x7f800000 | magnitude << 13;
    bits |= sign;
    std::memcpy(&value, &bits, 4);
    return value;
#endif
}

inline uint16_t float_to_half(float value) {
#if defined(__F16C__)
    return _cvtss_sh(value, _MM_FROUND_TO_NEAREST_INT);
#else
    uint32_t bits;
    std::memcpy(&bits, &value, 4);
    const uint16_t sign = (uint16_t)(bits >> 16 & 0x8000);
    bits &= 0x7fffffff;
    if (bits > 0x7f800000) return sign | 0x7e00 | (bits >> 13 & 0x1ff);
    if (bits >= 0x477ff000) return sign | 0x7c00; // 65520 and above
    float magnitude;
    if (bits < 0x38800000) { // subnormal: adding 0.5 makes the processor round at the right bit
        std::memcpy(&magnitude, &bits, 4);
        magnitude += 0.5f;
        std::memcpy(&bits, &magnitude, 4);
        return sign | (uint16_t)(bits - 0x3f000000);
    }
    return sign | (uint16_t)((bits + 0xfff + (bits >> 13 & 1) - 0x38000000) >> 13);
#endif
}

inline float bf16_to_float(uint16_t b) {
    const uint32_t bits = (uint32_t)b << 16;
    float value;
    std::memcpy(&value, &bits, 4);
    return value;
}

inline uint16_t float_to_bf16(float value) {
    uint32_t bits;
    std::memcpy(&bits, &value, 4);
    if ((bits & 0x7fffffff) > 0x7f800000) return (uint16_t)(bits >> 16 | 0x40);
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

#if defined(TP_PLAIN)
inline vf vload16(const uint16_t *p) { EACH(half_to_float(p[i])); }
inline vf vloadb16(const uint16_t *p) { EACH(bf16_to_float(p[i])); }
inline void vstore16(uint16_t *p, vf a) {
    for (int i = 0; i < W; i++) p[i] = float_to_half(a[i]);
}
#undef EACH
#endif

// exp(x) to about one unit in the last place; NaN stays NaN, large x gives infinity, -infinity gives 0.
inline vf vexp(vf x) {
    x = vmin(vset(89.0f), vmax(vset(-104.0f), x));
    const vf n = vround(vmul(x, vset(1.44269504f)));
    // ln 2 in two parts, the first of few bits, so that n times it is exact (Cody and Waite 1980).
    vf r = vfma(n, vset(-0.693359375f), x);
    r = vfma(n, vset(2.12194440e-4f), r);
    vf p = vset(1.9875691500e-4f);
    p = vfma(p, r, vset(1.3981999507e-3f));
    p = vfma(p, r, vset(8.3334519073e-3f));
    p = vfma(p, r, vset(4.1665795894e-2f));
    p = vfma(p, r, vset(1.6666665459e-1f));
    p = vfma(p, r, vset(0.5f));
    p = vfma(p, vmul(r, r), r);
    // Where the result is 0, as for all that attention hides, 0 is scaled: others take 200 times as long to become it.
    const vm none = vless_equal(x, vset(-104.0f));
    return vscale2(vselect(none, vset(0), vadd(p, vset(1.0f))), n);
}

} // namespace
