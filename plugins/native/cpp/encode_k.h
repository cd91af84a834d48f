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

// The code of a value that is not negative.
inline float positive_code(float value, float inverse, float top) { return at_most(nearbyintf(value * inverse), top); }

// Sums of weights times values times codes, and times codes squared: their ratio is the scale.
struct CodeSums {
    float xl, l2;

    CodeSums plus(float x, float weight, float code) const {
        return {xl + weight * x * code, l2 + weight * code * code};
    }
    CodeSums minus(float x, float weight, float code) const {
        return {xl - weight * x * code, l2 - weight * code * code};
    }
};

// Moves codes, one after the other, to where the others want them while that lowers the error.
inline CodeSums refine(const float *x, const float *weights, int count, float top, float *codes) {
    constexpr int PASSES = 5;
    CodeSums sums{NOTHING, NOTHING};
    for (int g = 0; g < count; g++) sums = sums.plus(x[g], weights[g], codes[g]);
    bool changed = true;
    for (int pass = 0; pass < PASSES && changed; pass++) {
        changed = false;
        for (int g = 0; g < count; g++) {
            const CodeSums others = sums.minus(x[g], weights[g], codes[g]);
            if (!(others.xl > 0 && others.l2 > 0)) continue;
            const float nearest = at_most(nearbyintf(x[g] * others.l2 / others.xl), top);
            const float wanted = nearest < 0 ? 0 : nearest;
            const CodeSums more = others.plus(x[g], weights[g], wanted);
            if (wanted == codes[g] || !(more.xl * more.xl * sums.l2 > sums.xl * sums.xl * more.l2)) continue;
            codes[g] = wanted, sums = more, changed = true;
        }
    }
    return sums;
}

// Numbers that are not negative, of which each has a weight, as codes 0 to `top`.
inline Units fit_positive(const float *x, const float *weights, int count, float top) {
    constexpr int TRIES = 4;
    Units found{};
    float peak = x[0];
    for (int g = 1; g < count; g++) peak = peak >= x[g] || peak != peak ? peak : x[g];
    if (peak < LEAST_PEAK) return found;
    float chosen = top / peak, least = 0;
    for (int trial = 0; trial <= 2 * TRIES; trial++) {
        // The first trial puts the peak at `top`.
        const int step = trial == 0 ? 0 : trial <= TRIES ? trial - TRIES - 1 : trial - TRIES;
        const float inverse = trial == 0 ? chosen : (0.1f * (float)step + top) / peak, unit = 1 / inverse;
        float error = NOTHING;
        for (int g = 0; g < count; g++) {
            const float missed = x[g] - positive_code(x[g], inverse, top) * unit;
            error += weights[g] * missed * missed;
        }
        if (trial == 0 || error < least) least = error, chosen = inverse;
    }
    for (int g = 0; g < count; g++) found.codes[g] = positive_code(x[g], chosen, top);
    const CodeSums sums = refine(x, weights, count, top, found.codes);
    found.unit = sums.l2 == 0 ? 0 : sums.xl / sums.l2;
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

// Weights from importance: more for values whose squares are large next to `spread` times the mean one of the block.
template <int N>
void grown_weights(const float *values, const Lanes *x, const float *importance, float spread, Lanes *weights) {
    alignas(64) Lanes counts[N];
    alignas(64) float mean[LANES];
    side_by_side<N>(importance, counts);
    for (int g = 0; g < LANES; g += K / N) {
        float squares = NOTHING;
        for (int i = 0; i < K; i++) squares += values[g * N + i] * values[g * N + i];
        for (int j = 0; j < K / N; j++) mean[g + j] = spread * squares / K;
    }
    for (int i = 0; i < N; i++) {
        for (int v = 0; v < LANES; v += W) {
            const vf value = vload(x[i] + v), size = vsqrt(vadd(vload(mean + v), vmul(value, value)));
            vstore(weights[i] + v, vmul(size, vload(counts[i] + v)));
        }
    }
}

// A format with a scale and a minimum for each group of N values, both codes 0 to LIMIT. Importance may be null.
template <int N, int TOP, int LIMIT> struct Affine {
    static constexpr int GROUPS = K / N, BLOCKS = LANES / GROUPS; // of a block; at a time
    static constexpr bool ABSOLUTE = TOP == 3;

    byte codes[BLOCKS * K];
    Units scales[BLOCKS], minima[BLOCKS];

    Affine(const float *values, const float *importance, float spread, const Trials &plain) {
        const Trials weighed{TOP, -0.9f, 0.05f, 36, false};
        alignas(64) Lanes x[N], weights[N];
        alignas(64) float scale[LANES], low[LANES], below[LANES], inverse[LANES], from[LANES], sums[LANES];
        side_by_side<N>(values, x);
        // What an error of each value costs.
        if (importance) grown_weights<N>(values, x, importance, spread, weights);
        else plain_weights<N, ABSOLUTE>(x, weights);
        for (int v = 0; v < LANES; v += W) {
            // Fit the groups, a vector of them at a time. Their sums of weights are the weights of their scales.
            const Lanes *here = lanes_from(x, v), *counted = lanes_from(weights, v);
            const Line line = importance ? fit_affine<N, false>(here, counted, weighed)
                                         : fit_affine<N, ABSOLUTE>(here, counted, plain);
            vstore(scale + v, line.scale), vstore(inverse + v, line.inverse), vstore(from + v, line.from);
            vstore(low + v, line.low);
            vf sum = vset(NOTHING);
            for (int i = 0; i < N; i++) sum = vadd(sum, vload(counted[i]));
            vstore(sums + v, sum);
        }
        // Scales and minima become codes in units of the block; `step` and `least` are what decoders make of them.
        for (int g = 0; g < LANES; g++) below[g] = -low[g];
        alignas(64) float step[LANES], least[LANES];
        for (int b = 0; b < BLOCKS; b++) {
            const int first = b * GROUPS;
            scales[b] = importance ? fit_positive(scale + first, sums + first, GROUPS, LIMIT)
                                   : in_units(scale + first, GROUPS, LIMIT);
            minima[b] = importance ? fit_positive(below + first, sums + first, GROUPS, LIMIT)
                                   : in_units(below + first, GROUPS, LIMIT);
            for (int g = 0; g < GROUPS; g++) {
                step[b * GROUPS + g] = through_half(scales[b].unit) * scales[b].codes[g];
                least[b * GROUPS + g] = through_half(minima[b].unit) * minima[b].codes[g];
            }
        }
        // Choose the codes again for these; groups whose scale became 0 keep the codes of the fit.
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
    static void encode(const float *values, const float *importance, byte *out) {
        const Affine<16, 3, 15> found(values, importance, 1, {3, -0.5f, 0.1f, 15, true});
        for (int g = 0; g < 16; g++) {
            out[g] = (byte)(low_byte(found.scales[0].codes[g]) | low_byte(found.minima[0].codes[g]) << 4);
        }
        store_pairs(found.codes, out + 16);
        store_half(out + 80, found.scales[0].unit), store_half(out + 82, found.minima[0].unit);
    }
};

template <int BITS> struct EncodeQ45K {
    static constexpr int SIZE = BITS == 4 ? 144 : 176, BLOCKS = 2;
    static void encode(const float *values, const float *importance, byte *out) {
        const Trials plain = BITS == 4 ? Trials{15, -1.0f, 0.1f, 20, false} : Trials{31, -0.5f, 0.1f, 15, false};
        const Affine<32, (1 << BITS) - 1, 63> found(values, importance, 2, plain);
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
    static void encode(const float *values, const float *importance, byte *out) {
        alignas(64) Lanes x[N], weights[N];
        alignas(64) float fitted[LANES], inverse[LANES], none[LANES], scales[LANES], step[LANES];
        side_by_side<N>(values, x);
        if (importance) side_by_side<N>(importance, weights);
        for (int i = 0; i < N && !importance; i++) {
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

// `n` values, whole blocks of them, and the importance of each; null where none is known.
template <class FORM> void encode_k(const float *values, const float *importance, int64_t n, byte *out) {
    constexpr int64_t STEP = FORM::BLOCKS * K;
    for (; n >= STEP; n -= STEP, values += STEP, out += FORM::BLOCKS * FORM::SIZE) {
        FORM::encode(values, importance, out);
        if (importance) importance += STEP;
    }
    if (n == 0) return;
    float room[STEP] = {}, counts[STEP] = {};
    byte blocks[FORM::BLOCKS * FORM::SIZE];
    std::memcpy(room, values, (size_t)n * 4);
    if (importance) std::memcpy(counts, importance, (size_t)n * 4);
    FORM::encode(room, importance ? counts : nullptr, blocks);
    std::memcpy(out, blocks, (size_t)(n / K * FORM::SIZE));
}

} // namespace
