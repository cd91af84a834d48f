// One row of x in f16 times long rows of weights in f16 or bf16. As f32 a row of x takes twice the bytes of a row of
// weights from the first-level cache, and pushes out what was read ahead: with one thread of a Zen 4 weights in f16
// came at 17 to 19 GB/s, with x in f16 at 21 to 23; with two at 28 to 36 and 41 to 43.
#pragma once

#include "rows.h"

namespace {

#if defined(__F16C__)

constexpr int64_t LONG_ROW = 512; // elements; shorter ones are read four at a time

// Whether x may be rounded, as i[0] of a node says, and is worth it.
inline bool in_halves(const Operand &w, bool may_round) {
    return may_round && (w.type == F16 || w.type == BF16) && w.ne[0] >= LONG_ROW && w.nb[1] == w.ne[0] * 2;
}

inline int64_t halves_size(int64_t k) { return (k * 2 + 127) / 64 * 64; }

// x in f16, multiplied by a power of two so that none overflows and few are too small: its largest value becomes 2**14
// to 2**15 for weights in f16, and 0.5 to 1 for those in bf16, which may be as large as f32. Returns what sums are
// multiplied by; 0 where x has infinity or NaN, or is too small to be scaled.
inline float round_to_halves(int type, const float *x, int64_t k, uint16_t *out) {
    constexpr int LEAST = -100;
    const int top = type == F16 ? 15 : 0;
    // Find the largest magnitude. x * 0 is NaN for infinity and NaN, and 0 else.
    vf most = vset(0), not_finite = vset(0);
    int64_t i = 0;
    for (; i + W <= k; i += W) {
        const vf v = vload(x + i);
        most = vmax(vabs(v), most);
        not_finite = vfma(v, vset(0), not_finite);
    }
    float lanes[W], largest = 0, zero = vsum(not_finite);
    vstore(lanes, most);
    for (float lane : lanes) largest = lane > largest ? lane : largest;
    for (; i < k; i++) {
        largest = std::fabs(x[i]) > largest ? std::fabs(x[i]) : largest;
        zero += x[i] * 0;
    }
    // The power of two that brings the largest value to 2**(top - 1) or more, below 2**top.
    int exponent = 0;
    std::frexp(largest, &exponent);
    if (zero != 0 || exponent < LEAST) return 0;
    const float scale = std::ldexp(1.0f, top - exponent);
    // Scale and round.
    for (i = 0; i + W <= k; i += W) vstore16(out + i, vmul(vload(x + i), vset(scale)));
    for (; i < k; i++) out[i] = float_to_half(x[i] * scale);
    return std::ldexp(1.0f, exponent - top);
}

// Products of `count` rows that lie without gaps with x in f16, times `factor`.
template <int TYPE>
void dots_of_halves(const char *rows, int64_t count, const uint16_t *x, int64_t k, float factor, float *out) {
    constexpr int CHAINS = 4; // sums that need not wait for each other
    for (int64_t r = 0; r < count; r++, rows += k * 2) {
        vf a[CHAINS];
        for (int c = 0; c < CHAINS; c++) a[c] = vset(0);
        int64_t i = 0;
        for (; i + CHAINS * W <= k; i += CHAINS * W) {
            prefetch(rows + i * 2, CHAINS * W * 2);
            for (int c = 0; c < CHAINS; c++)
                a[c] = vfma(load_floats<TYPE>(rows, i + c * W), vload16(x + i + c * W), a[c]);
        }
        for (; i + W <= k; i += W) a[0] = vfma(load_floats<TYPE>(rows, i), vload16(x + i), a[0]);
        float sum = vsum(vadd(vadd(a[0], a[1]), vadd(a[2], a[3])));
        for (; i < k; i++) sum += load_float<TYPE>(rows, i) * half_to_float(x[i]);
        out[r] = sum * factor;
    }
}

// The same for rows of type F16 or BF16.
inline void dots_of_halves(int type, const char *rows, int64_t count, const uint16_t *x, int64_t k, float factor,
                           float *out) {
    (type == F16 ? dots_of_halves<F16> : dots_of_halves<BF16>)(rows, count, x, k, factor, out);
}

#else

inline bool in_halves(const Operand &, bool) { return false; }
inline int64_t halves_size(int64_t) { return 0; }
inline float round_to_halves(int, const float *, int64_t, uint16_t *) { return 0; }
inline void dots_of_halves(int, const char *, int64_t, const uint16_t *, int64_t, float, float *) {}

#endif

} // namespace
