// Values to blocks of 32: the scale follows from the largest of them, and the codes from the scale. They are those of
// the reference, bit by bit; so the compiler must not join products and sums (see CMakeLists.txt).
#pragma once

#include "encode_k.h"

namespace {

inline float inverse(float d) { return d == 0 ? 0.0f : 1 / d; }

struct Limits {
    float low, high;
};

// The least and the largest of 32 values; both are NaN where any is.
inline Limits limits_of(const float *x) {
    vf low = vload(x), high = low;
    vm numbers = vless_equal(low, low);
    for (int i = W; i < 32; i += W) {
        const vf value = vload(x + i);
        low = vmin(value, low), high = vmax(value, high);
        numbers = vboth(numbers, vless_equal(value, value));
    }
    if (vall(numbers)) return {-vmost(vsub(vset(-0.0f), low)), vmost(high)}; // zeros keep their signs
    while (*x == *x) x++;
    return {*x, *x};
}

inline void encode_q8_0(const float *x, byte *out) {
    const Limits limits = limits_of(x);
    const float d = std::fabs(limits.high > -limits.low ? limits.high : limits.low) / 127;
    const vf id = vset(inverse(d)), zero = vset(0);
    float codes[32];
    for (int i = 0; i < 32; i += W) {
        const vf scaled = vmul(vload(x + i), id), size = vabs(scaled);
        const vf kept = vselect(vless(size, vset(128)), size, zero); // beyond is what infinity and NaN make
        // Halves away from zero.
        const vf even = vround(kept), upper = vadd(even, vset(1));
        const vf code = vselect(vless_equal(vset(0.5f), vsub(kept, even)), upper, even);
        vstore(codes + i, vselect(vless(scaled, zero), vsub(zero, code), code));
    }
    store_half(out, d);
    for (int i = 0; i < 32; i++) out[2 + i] = (byte)(int)codes[i];
}

// 32 whole numbers in four bits, or in five, the fifth apart; changes them.
inline void store_codes(float *codes, bool fifth, byte *out) {
    if (fifth) {
        uint32_t bits = 0;
        for (int i = 0; i < 32; i++) bits |= (uint32_t)(codes[i] >= 16) << i;
        std::memcpy(out, &bits, 4);
        out += 4;
        for (int i = 0; i < 32; i += W) {
            const vf code = vload(codes + i), sixteen = vset(16);
            vstore(codes + i, vselect(vless_equal(sixteen, code), vsub(code, sixteen), code));
        }
    }
    float pairs[16];
    for (int i = 0; i < 16; i += W) vstore(pairs + i, vadd(vload(codes + i), vmul(vload(codes + 16 + i), vset(16))));
    for (int i = 0; i < 16; i++) out[i] = (byte)(int)pairs[i];
}

// (x - low) * inverse + shift, which is positive, without fractions, at most `most`; 0 where it is infinite or NaN.
inline void codes_of(const float *x, float low, float inverse, float shift, int most, float *codes) {
    for (int i = 0; i < 32; i += W) {
        const vf value = vadd(vmul(vsub(vload(x + i), vset(low)), vset(inverse)), vset(shift));
        const vf finite = vmin(vselect(vless(vabs(value), vset(0x1p30f)), value, vset(0)), vset((float)most));
        const vf even = vround(finite);
        vstore(codes + i, vselect(vless(finite, even), vsub(even, vset(1)), even));
    }
}

// Codes around zero; the value of the largest magnitude, of equal ones the first, gets the lowest.
template <int BITS> void encode_signed(const float *x, byte *out) {
    constexpr int ZERO = 1 << (BITS - 1);
    const Limits limits = limits_of(x);
    const float ends[] = {limits.low, limits.high};
    float peak = ends[limits.high > -limits.low]; // without a branch, which no processor could predict
    if (limits.high == -limits.low) {
        int i = 0;
        while (std::fabs(x[i]) != limits.high) i++;
        peak = x[i];
    }
    const float d = peak / -ZERO;
    float codes[32];
    codes_of(x, 0, inverse(d), ZERO + 0.5f, 2 * ZERO - 1, codes);
    store_half(out, d);
    store_codes(codes, BITS == 5, out + 2);
}

// Codes from the least value on.
template <int BITS> void encode_affine(const float *x, byte *out) {
    constexpr int MOST = (1 << BITS) - 1;
    const Limits limits = limits_of(x);
    const float d = (limits.high - limits.low) / MOST;
    float codes[32];
    codes_of(x, limits.low, inverse(d), 0.5f, MOST, codes);
    store_half(out, d);
    store_half(out + 2, limits.low);
    store_codes(codes, BITS == 5, out + 4);
}

// The code of the value of IQ4_VALUES nearest to x; half-way, with differences rounded, the upper.
inline int nearest_iq4(float x) {
    int code = 0;
    for (int i = 0; i < 15; i++) code += x - (float)IQ4_VALUES[i] >= (float)IQ4_VALUES[i + 1] - x;
    return code;
}

// For x * inverse as codes, with squares of x as weights: sums of values times x, and of values squared.
inline void sums_iq4(const float *x, float inverse, float &with_x, float &squared) {
    with_x = squared = 0;
    for (int i = 0; i < 32; i++) {
        const float value = IQ4_VALUES[nearest_iq4(x[i] * inverse)], weighted = x[i] * x[i] * value;
        with_x += weighted * x[i], squared += weighted * value;
    }
}

// The scale is the best of some that put the largest value near the first of the table.
inline void encode_iq4_nl(const float *x, byte *out) {
    constexpr int TRIES = 7;
    constexpr float TINY = 1e-15f, FIRST = IQ4_VALUES[0];
    // The value of the largest magnitude, or NaN.
    float peak = x[0];
    for (int i = 1; i < 32; i++)
        peak = std::fabs(x[i]) > std::fabs(peak) || (x[i] != x[i] && peak == peak) ? x[i] : peak;
    float scale = 0, best = 0;
    if (!(std::fabs(peak) < TINY)) {
        // Scales by least squares for codes of some inverses; the best has the largest scale * with_x.
        float with_x, squared;
        sums_iq4(x, 1 / (-peak / FIRST), with_x, squared);
        scale = squared == 0 ? 0 : with_x / squared, best = scale * with_x;
        for (int shift = -TRIES; shift <= TRIES; shift++) {
            sums_iq4(x, ((float)shift + FIRST) / peak, with_x, squared);
            if (squared > 0 && with_x * with_x > best * squared) scale = with_x / squared, best = scale * with_x;
        }
    }
    // Codes for the best scale.
    const float id = inverse(scale);
    float codes[32];
    for (int i = 0; i < 32; i++) codes[i] = (float)nearest_iq4(x[i] * id);
    store_half(out, scale);
    store_codes(codes, false, out + 2);
}

template <void (*BLOCK)(const float *, byte *), int SIZE>
void encode_row(const float *values, const float *, int64_t n, byte *out) {
    for (int64_t i = 0; i < n; i += 32, out += SIZE) BLOCK(values + i, out);
}

// How rows of a type are written, and whether by the importance of each value, which else is null.
struct Encoder {
    void (*encode)(const float *values, const float *importance, int64_t n, byte *out);
    bool weighs;
};

// What writes rows of a type; null where nothing does.
inline Encoder encoder(int type) {
    switch (type) {
    case Q8_0: return {encode_row<encode_q8_0, 34>, false};
    case Q4_0: return {encode_row<encode_signed<4>, 18>, false};
    case Q5_0: return {encode_row<encode_signed<5>, 22>, false};
    case Q4_1: return {encode_row<encode_affine<4>, 20>, false};
    case Q5_1: return {encode_row<encode_affine<5>, 24>, false};
    case IQ4_NL: return {encode_row<encode_iq4_nl, 18>, false};
    case Q2_K: return {encode_k<EncodeQ2K>, true};
    case Q4_K: return {encode_k<EncodeQ45K<4>>, true};
    case Q5_K: return {encode_k<EncodeQ45K<5>>, true};
    case Q6_K: return {encode_k<EncodeQ6K>, true};
    default: return {nullptr, false};
    }
}

} // namespace
