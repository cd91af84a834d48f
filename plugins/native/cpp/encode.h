// Values to blocks of 32: the scale follows from the largest of them, and the codes from the scale. They are those of
// the reference, bit by bit; so the compiler must not join products and sums (see CMakeLists.txt).
#pragma once

#include "decode.h"

namespace {

inline float inverse(float d) { return d == 0 ? 0.0f : 1 / d; }

inline void store_half(byte *p, float value) {
    const uint16_t h = float_to_half(value);
    std::memcpy(p, &h, 2);
}

inline void encode_q8_0(const float *x, byte *out) {
    float most = 0;
    for (int i = 0; i < 32; i++) {
        const float size = x[i] < 0 ? -x[i] : x[i];
        most = size > most || size != size ? size : most;
    }
    const float d = most / 127, id = inverse(d);
    store_half(out, d);
    for (int i = 0; i < 32; i++) {
        const float scaled = x[i] * id, size = scaled < 0 ? -scaled : scaled;
        const int whole = size < 128 ? (int)size : 0; // beyond is what infinity and NaN make
        const int code = whole + (size - (float)whole >= 0.5f && size < 128);
        out[2 + i] = (byte)(scaled < 0 ? -code : code);
    }
}

// Codes of 32 values in four bits, or in five, the fifth apart.
inline void store_codes(const int *codes, bool fifth, byte *out) {
    if (fifth) {
        uint32_t bits = 0;
        for (int i = 0; i < 32; i++) bits |= (uint32_t)(codes[i] >> 4) << i;
        std::memcpy(out, &bits, 4);
        out += 4;
    }
    for (int i = 0; i < 16; i++) out[i] = (byte)((codes[i] & 15) | (codes[i + 16] & 15) << 4);
}

inline int code_of(float value, int most) { return value > 0 ? (value < (float)most ? (int)value : most) : 0; }

// Codes around zero; the value of the largest size gets the lowest.
template <int BITS> void encode_signed(const float *x, byte *out) {
    constexpr int ZERO = 1 << (BITS - 1);
    float peak = x[0];
    for (int i = 1; i < 32; i++) peak = (x[i] < 0 ? -x[i] : x[i]) > (peak < 0 ? -peak : peak) ? x[i] : peak;
    const float d = peak / -ZERO, id = inverse(d);
    int codes[32];
    for (int i = 0; i < 32; i++) {
        const float scaled = x[i] * id;
        codes[i] = code_of(scaled + (ZERO + 0.5f), 2 * ZERO - 1);
    }
    store_half(out, d);
    store_codes(codes, BITS == 5, out + 2);
}

// Codes from the least value on.
template <int BITS> void encode_affine(const float *x, byte *out) {
    constexpr int MOST = (1 << BITS) - 1;
    float low = x[0], high = x[0];
    for (int i = 1; i < 32; i++) low = x[i] < low ? x[i] : low, high = x[i] > high ? x[i] : high;
    const float d = (high - low) / MOST, id = inverse(d);
    int codes[32];
    for (int i = 0; i < 32; i++) {
        const float scaled = (x[i] - low) * id;
        codes[i] = code_of(scaled + 0.5f, MOST);
    }
    store_half(out, d);
    store_half(out + 2, low);
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
    float peak = x[0];
    for (int i = 1; i < 32; i++) peak = std::fabs(x[i]) > std::fabs(peak) || (x[i] != x[i] && peak == peak) ? x[i] : peak;
    float scale = 0, best = 0;
    if (!(std::fabs(peak) < TINY)) {
        float with_x, squared;
        sums_iq4(x, 1 / (-peak / FIRST), with_x, squared);
        scale = squared == 0 ? 0 : with_x / squared, best = scale * with_x;
        for (int shift = -TRIES; shift <= TRIES; shift++) {
            sums_iq4(x, ((float)shift + FIRST) / peak, with_x, squared);
            if (squared > 0 && with_x * with_x > best * squared) scale = with_x / squared, best = scale * with_x;
        }
    }
    const float id = inverse(scale);
    int codes[32];
    for (int i = 0; i < 32; i++) codes[i] = nearest_iq4(x[i] * id);
    store_half(out, scale);
    store_codes(codes, false, out + 2);
}

template <void (*BLOCK)(const float *, byte *), int SIZE> void encode_row(const float *values, int64_t n, byte *out) {
    for (int64_t i = 0; i < n; i += 32, out += SIZE) BLOCK(values + i, out);
}

typedef void (*Encoder)(const float *values, int64_t n, byte *out);

// What writes rows of a type; null where nothing does.
inline Encoder encoder(int type) {
    switch (type) {
    case Q8_0: return encode_row<encode_q8_0, 34>;
    case Q4_0: return encode_row<encode_signed<4>, 18>;
    case Q5_0: return encode_row<encode_signed<5>, 22>;
    case Q4_1: return encode_row<encode_affine<4>, 20>;
    case Q5_1: return encode_row<encode_affine<5>, 24>;
    case IQ4_NL: return encode_row<encode_iq4_nl, 18>;
    default: return nullptr;
    }
}

} // namespace
