// Values to blocks of 256 whose groups have scales of their own, by the searches of fit.h. First each group is fitted,
// then the scales of all groups become codes in units of the block, then the codes of values are chosen once more for
// what became of the scales. Blocks are those of tensorplug_cpu/encoders/k.py, bit by bit.
#pragma once

#include "blocks.h"
#include "fit.h"

namespace {

constexpr int K = 256; // values of a block

inline float through_half(float value) { return half_to_float(float_to_half(value)); }

inline void store_half(byte *p, float value) {
    const uint16_t h = float_to_half(value);
    std::memcpy(p, &h, 2);
}

// A number as the lowest byte of an integer; 0 for those that no integer has.
inline byte low_byte(float value) { return (byte)(value > -0x1p30f && value < 0x1p30f ? (int)value : 0); }

// Limited from above; NaN stays NaN.
inline float at_most(float value, float most) { return most < value ? most : value; }

// What scales of groups became: codes, and the unit that the largest sets.
struct Units {
    float codes[LANES], unit;
};

// Numbers as codes 0 to `limit`.
inline Units in_units(const float *numbers, int count, float limit) {
    float largest = 0;
    for (int g = 0; g < count; g++) largest = largest >= numbers[g] || largest != largest ? largest : numbers[g];
    const float inverse = largest == 0 ? 0 : limit / largest;
    Units found;
    for (int g = 0; g < count; g++) found.codes[g] = at_most(nearbyintf(inverse * numbers[g]), limit);
    found.unit = largest / limit;
    return found;
}

// Groups of N values in lanes.
template <int N> void side_by_side(const float *values, Lanes *x) {
    for (int g = 0; g < LANES; g++) {
        for (int i = 0; i < N; i++) x[i][g] = values[g * N + i];
    }
}

// Codes in lanes as bytes, one group after the other.
template <int N> void one_by_one(const Lanes *codes, byte *out) {
    for (int g = 0; g < LANES; g++) {
        for (int i = 0; i < N; i++) out[g * N + i] = (byte)(int)codes[i][g];
    }
}

// Weights where no importance is known: the magnitude, from four bits on above the mean.
template <int N, bool ABSOLUTE> void plain_weights(const Lanes *x, Lanes *weights) {
    for (int v = 0; v < LANES; v += W) {
        vf squares = vset(NOTHING);
        for (int i = 0; i < N; i++) squares = vadd(squares, vmul(vload(x[i] + v), vload(x[i] + v)));
        const vf mean = vsqrt(vdiv(squares, vset(N)));
        for (int i = 0; i < N; i++) {
            const vf size = vabs(vload(x[i] + v));
            vstore(weights[i] + v, ABSOLUTE ? size : vadd(size, mean));
        }
    }
}

// A format with a scale and a minimum for each group of N values, both codes 0 to LIMIT.
template <int N, int TOP, int LIMIT> struct Affine {
    static constexpr int GROUPS = K / N, BLOCKS = LANES / GROUPS; // of a block; at a time
    static constexpr bool ABSOLUTE = TOP == 3;

    byte codes[BLOCKS * K];
    Units scales[BLOCKS], minima[BLOCKS];

    Affine(const float *values, const Trials &trials) {
        alignas(64) Lanes x[N], weights[N];
        alignas(64) float scale[LANES], low[LANES], below[LANES], inverse[LANES], from[LANES];
        side_by_side<N>(values, x);
        plain_weights<N, ABSOLUTE>(x, weights);
        for (int v = 0; v < LANES; v += W) {
            const Line line = fit_affine<N, ABSOLUTE>(lanes_from(x, v), lanes_from(weights, v), trials);
            vstore(scale + v, line.scale), vstore(inverse + v, line.inverse), vstore(from + v, line.from);
            vstore(low + v, line.low);
        }
        for (int g = 0; g < LANES; g++) below[g] = -low[g];
        alignas(64) float step[LANES], least[LANES];
        for (int b = 0; b < BLOCKS; b++) {
            scales[b] = in_units(scale + b * GROUPS, GROUPS, LIMIT),
            minima[b] = in_units(below + b * GROUPS, GROUPS, LIMIT);
            for (int g = 0; g < GROUPS; g++) {
                step[b * GROUPS + g] = through_half(scales[b].unit) * scales[b].codes[g];
                least[b * GROUPS + g] = through_half(minima[b].unit) * minima[b].codes[g];
            }
        }
        for (int i = 0; i < N; i++) {
            for (int v = 0; v < LANES; v += W) {
                const vf value = vload(x[i] + v), d = vload(step + v), zero = vset(0);
                const vf code = nearest_code(vdiv(vadd(value, vload(least + v)), d), 0, TOP);
                const vf fitted = affine_code(value, vload(inverse + v), vload(from + v), TOP);
                vstore(x[i] + v, vmax(vselect(vless_equal(vabs(d), zero), fitted, code), zero)); // NaN becomes 0
            }
        }
        one_by_one<N>(x, codes);
    }
};

// Of 2 * GROUP codes of four bits each, the first half in the low bits.
template <int GROUP> void store_nibbles(const byte *codes, byte *out) {
    for (int first = 0; first < K; first += 2 * GROUP) {
        for (int i = 0; i < GROUP; i++) *out++ = (byte)((codes[first + i] & 15) | (codes[first + GROUP + i] & 15) << 4);
    }
}

// Of 128 codes of two bits, each 32 in two bits of 32 bytes.
inline void store_pairs(const byte *codes, byte *out) {
    for (int first = 0; first < K; first += 128) {
        for (int i = 0; i < 32; i++) {
            const byte *c = codes + first + i;
            *out++ = (byte)((c[0] & 3) | (c[32] & 3) << 2 | (c[64] & 3) << 4 | (c[96] & 3) << 6);
        }
    }
}

// The fifth bits of codes: of each 32 one bit of 32 bytes, the first the lowest.
inline void store_fifth_bits(const byte *codes, byte *out) {
    for (int i = 0; i < 32; i++) {
        int bits = 0;
        for (int g = 0; g < 8; g++) bits |= (codes[g * 32 + i] >> 4 & 1) << g;
        out[i] = (byte)bits;
    }
}

// Eight scales and eight minima of six bits in twelve bytes.
inline void store_six_bits(const Units &scales, const Units &minima, byte *out) {
    byte s[8], m[8];
    for (int g = 0; g < 8; g++) s[g] = low_byte(scales.codes[g]), m[g] = low_byte(minima.codes[g]);
    for (int g = 0; g < 4; g++) {
        out[g] = (byte)(s[g] | s[g + 4] >> 4 << 6);
        out[g + 4] = (byte)(m[g] | m[g + 4] >> 4 << 6);
        out[g + 8] = (byte)((s[g + 4] & 15) | m[g + 4] << 4);
    }
}

struct EncodeQ2K {
    static constexpr int SIZE = 84, BLOCKS = 1;
    static void encode(const float *values, byte *out) {
        const Affine<16, 3, 15> found(values, {3, -0.5f, 0.1f, 15, true});
        for (int g = 0; g < 16; g++) {
            out[g] = (byte)(low_byte(found.scales[0].codes[g]) | low_byte(found.minima[0].codes[g]) << 4);
        }
        store_pairs(found.codes, out + 16);
        store_half(out + 80, found.scales[0].unit), store_half(out + 82, found.minima[0].unit);
    }
};

template <int BITS> struct EncodeQ45K {
    static constexpr int SIZE = BITS == 4 ? 144 : 176, BLOCKS = 2;
    static void encode(const float *values, byte *out) {
        const Trials trials = BITS == 4 ? Trials{15, -1.0f, 0.1f, 20, false} : Trials{31, -0.5f, 0.1f, 15, false};
        const Affine<32, (1 << BITS) - 1, 63> found(values, trials);
        for (int b = 0; b < BLOCKS; b++, out += SIZE) {
            const byte *codes = found.codes + b * K;
            store_half(out, found.scales[b].unit), store_half(out + 2, found.minima[b].unit);
            store_six_bits(found.scales[b], found.minima[b], out + 4);
            if (BITS == 5) store_fifth_bits(codes, out + 16);
            store_nibbles<32>(codes, out + (BITS == 4 ? 16 : 48));
        }
    }
};

struct EncodeQ6K {
    static constexpr int SIZE = 210, BLOCKS = 1, N = 16, HALF = 32;
    static void encode(const float *values, byte *out) {
        alignas(64) Lanes x[N], weights[N];
        alignas(64) float fitted[LANES], inverse[LANES], none[LANES], scales[LANES], step[LANES];
        side_by_side<N>(values, x);
        for (int i = 0; i < N; i++) {
            for (int g = 0; g < LANES; g++) weights[i][g] = x[i][g] * x[i][g];
        }
        const vf zero = vset(0), half = vset(HALF);
        for (int v = 0; v < LANES; v += W) {
            const Ray ray = fit_signed<N>(lanes_from(x, v), lanes_from(weights, v), HALF);
            vstore(fitted + v, ray.scale), vstore(inverse + v, ray.inverse),
                vstore(none + v, vselect(ray.none, vset(1), zero));
        }
        // The scale of the largest magnitude gets the code -128.
        float peak = fitted[0];
        for (int g = 1; g < LANES; g++) {
            const bool farther = std::fabs(fitted[g]) > std::fabs(peak) || fitted[g] != fitted[g];
            if (farther && peak == peak) peak = fitted[g];
        }
        const bool empty = std::fabs(peak) < LEAST_PEAK;
        const float to_codes = empty || peak == 0 ? 0 : -128 / peak, unit = to_codes == 0 ? 0 : 1 / to_codes;
        for (int g = 0; g < LANES; g++) {
            scales[g] = at_most(nearbyintf(to_codes * fitted[g]), 127), step[g] = through_half(unit) * scales[g];
            if (empty) none[g] = 1;
        }
        for (int i = 0; i < N; i++) {
            for (int v = 0; v < LANES; v += W) {
                const vf value = vload(x[i] + v), d = vload(step + v);
                const vf again = vadd(nearest_code(vdiv(value, d), -HALF, HALF - 1), half);
                const vf before = vadd(signed_code(value, vload(inverse + v), HALF), half);
                const vf kept = vselect(vless(zero, vload(none + v)), zero, before);
                vstore(x[i] + v, vmax(vselect(vless_equal(vabs(d), zero), kept, again), zero)); // NaN becomes 0
            }
        }
        byte codes[K], high[K];
        one_by_one<N>(x, codes);
        for (int i = 0; i < K; i++) high[i] = codes[i] >> 4;
        store_nibbles<64>(codes, out);
        store_pairs(high, out + 128);
        for (int g = 0; g < LANES; g++) out[192 + g] = low_byte(scales[g]);
        store_half(out + 208, unit);
    }
};

// `n` values, whole blocks of them.
template <class FORM> void encode_k(const float *values, int64_t n, byte *out) {
    constexpr int64_t STEP = FORM::BLOCKS * K;
    for (; n >= STEP; n -= STEP, values += STEP, out += FORM::BLOCKS * FORM::SIZE) FORM::encode(values, out);
    if (n == 0) return;
    float room[STEP] = {};
    byte blocks[FORM::BLOCKS * FORM::SIZE];
    std::memcpy(room, values, (size_t)n * 4);
    FORM::encode(room, blocks);
    std::memcpy(out, blocks, (size_t)(n / K * FORM::SIZE));
}

} // namespace
