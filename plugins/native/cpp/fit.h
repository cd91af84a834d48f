// Searches for the scale, or scale and minimum, with which codes come nearest to values. They are those of
// tensorplug_cpu/encoders/fit.py, bit by bit: a search keeps the better of two errors that differ in the last bits. So
// each group of values has a lane of its own, its sums add one element after the other, and no operation is left out or
// joined.
#pragma once

#include "simd.h"

namespace {

constexpr int LANES = 16; // groups that are searched for side by side
static_assert(LANES % W == 0, "groups fill whole vectors");

// Element i of LANES groups.
typedef float Lanes[LANES];

// The same from another lane on.
inline const Lanes *lanes_from(const Lanes *x, int lane) { return (const Lanes *)(x[0] + lane); }

constexpr float NOTHING = -0.0f; // a sum of no terms: unlike 0 it leaves what is added as it is

// Which scales to try for codes 0 to `top`: those that spread the values over `top` + `first`, then `step` more codes,
// `steps` times. `absolute`: errors count as they are, not squared.
struct Trials {
    float top, first, step;
    int steps;
    bool absolute;
};

// scale * code + low are nearest to the values; the codes are those of (x - from) * inverse.
struct Line {
    vf scale, low, inverse, from;
};

// Bounds are whole numbers, so that it is the same to round first. NaN stays NaN.
inline vf nearest_code(vf x, float least, float most) { return vround(vbound(x, least, most)); }

inline vf affine_code(vf x, vf inverse, vf low, float top) { return nearest_code(vmul(vsub(x, low), inverse), 0, top); }

// The weighted error of W groups of N values.
template <int N, bool ABSOLUTE>
vf affine_error(const Lanes *x, const Lanes *weights, const vf *codes, vf scale, vf low) {
    vf sum = vset(NOTHING);
    for (int i = 0; i < N; i++) {
        const vf missed = vsub(vadd(vmul(codes[i], scale), low), vload(x[i]));
        const vf size = ABSOLUTE ? vabs(missed) : vmul(missed, missed);
        sum = vadd(sum, vmul(size, vload(weights[i])));
    }
    return sum;
}

// Codes from 0 on with a scale and a minimum that is not positive, for W groups of N values.
template <int N, bool ABSOLUTE> Line fit_affine(const Lanes *x, const Lanes *weights, const Trials &trials) {
    const vf zero = vset(0), one = vset(1), top = vset(trials.top);
    // The range of each group, from 0 or less on, and NaN where any value is. Sums of weights, and of weighted values.
    vf low = vload(x[0]), high = low, not_a_number = zero, sum_w = vset(NOTHING), sum_x = sum_w;
    for (int i = 0; i < N; i++) {
        const vf value = vload(x[i]), weight = vload(weights[i]);
        low = vmin(value, low), high = vmax(value, high);
        not_a_number = vselect(vless_equal(value, value), not_a_number, value);
        sum_w = vadd(sum_w, weight), sum_x = vadd(sum_x, vmul(weight, value));
    }
    const vm known = vless_equal(not_a_number, not_a_number);
    low = vmin(zero, vselect(known, low, not_a_number)), high = vselect(known, high, not_a_number);
    // Groups of a single value, 0 or less, get a range of 1 to divide by. Their scale becomes 0 at the end.
    const vm flat = vless_equal(high, low);
    high = vselect(flat, vadd(low, one), high);

    // The first line spreads the codes over the whole range.
    vf codes[N], inverse = vdiv(top, vsub(high, low)), scale = vdiv(one, inverse);
    for (int i = 0; i < N; i++) codes[i] = affine_code(vload(x[i]), inverse, low, trials.top);
    vf error = affine_error<N, ABSOLUTE>(x, weights, codes, scale, low);
    Line best{scale, low, inverse, low};
    for (int trial = 0; trial <= trials.steps; trial++) {
        // Codes for another spread, from the best minimum so far.
        const float spread = trials.first + trials.step * (float)trial;
        low = best.low, inverse = vdiv(vset(spread + trials.top), vsub(high, low));
        vf sum_l = vset(NOTHING), sum_xl = sum_l, sum_l2 = sum_l;
        for (int i = 0; i < N; i++) {
            const vf value = vload(x[i]);
            codes[i] = affine_code(value, inverse, low, trials.top);
            const vf weighted = vmul(vload(weights[i]), codes[i]);
            sum_l = vadd(sum_l, weighted);
            sum_xl = vadd(sum_xl, vmul(weighted, value));
            sum_l2 = vadd(sum_l2, vmul(weighted, codes[i]));
        }
        // The line through these codes by least squares; with an offset above 0, the one through 0.
        const vf determinant = vsub(vmul(sum_w, sum_l2), vmul(sum_l, sum_l));
        vf slope = vdiv(vsub(vmul(sum_w, sum_xl), vmul(sum_x, sum_l)), determinant);
        vf offset = vdiv(vsub(vmul(sum_l2, sum_x), vmul(sum_l, sum_xl)), determinant);
        const vm positive = vless(zero, offset);
        slope = vselect(positive, vdiv(sum_xl, sum_l2), slope), offset = vselect(positive, zero, offset);
        // Keep it where its error is smaller.
        const vf missed = affine_error<N, ABSOLUTE>(x, weights, codes, slope, offset);
        const vm better = vboth(vless(zero, determinant), vless(missed, error));
        error = vselect(better, missed, error);
        best.scale = vselect(better, slope, best.scale), best.low = vselect(better, offset, best.low);
        best.inverse = vselect(better, inverse, best.inverse), best.from = vselect(better, low, best.from);
    }
    best.scale = vselect(flat, zero, best.scale), best.inverse = vselect(flat, zero, best.inverse);
    return best;
}

// scale * code are nearest to the values; the codes are those of x * inverse, and all -half in groups of zeros.
struct Ray {
    vf scale, inverse;
    vm none;
};

inline vf signed_code(vf x, vf inverse, int half) {
    return nearest_code(vmul(x, inverse), (float)-half, (float)(half - 1));
}

// Sums of weights times values times codes, and times codes squared.
template <int N> void signed_sums(const Lanes *x, const Lanes *weights, vf inverse, int half, vf &sum_xl, vf &sum_l2) {
    sum_xl = sum_l2 = vset(NOTHING);
    for (int i = 0; i < N; i++) {
        const vf value = vload(x[i]), weight = vload(weights[i]), code = signed_code(value, inverse, half);
        sum_xl = vadd(sum_xl, vmul(vmul(weight, value), code));
        sum_l2 = vadd(sum_l2, vmul(vmul(weight, code), code));
    }
}

constexpr float LEAST_PEAK = 1e-15f; // groups whose largest magnitude is below are stored as zeros

// Codes -half to half - 1 with a scale that may be negative, for W groups of N values.
template <int N> Ray fit_signed(const Lanes *x, const Lanes *weights, int half) {
    const vf zero = vset(0), one = vset(1);
    // The value of the largest magnitude of each group, or NaN.
    vf peak = vload(x[0]), not_a_number = zero;
    for (int i = 0; i < N; i++) {
        const vf value = vload(x[i]);
        peak = vselect(vless(vabs(peak), vabs(value)), value, peak);
        not_a_number = vselect(vless_equal(value, value), not_a_number, value);
    }
    peak = vselect(vless_equal(not_a_number, not_a_number), peak, not_a_number);
    const vm none = vless(vabs(peak), vset(LEAST_PEAK));
    peak = vselect(none, one, peak);

    // The first inverse gives it the code -half. The scale is that of least squares.
    Ray best{zero, vdiv(vset((float)-half), peak), none};
    vf sum_xl, sum_l2;
    signed_sums<N>(x, weights, best.inverse, half, sum_xl, sum_l2);
    const vf quotient = vdiv(sum_xl, sum_l2);
    best.scale = vselect(vless_equal(vabs(sum_l2), zero), zero, quotient);
    vf gain = vmul(best.scale, sum_xl);
    // Try inverses around it. The squared error is less where sum_xl**2 / sum_l2, the gain, is larger.
    for (int step = -9; step <= 9; step++) {
        if (step == 0) continue;
        const vf inverse = vdiv(vset(-((float)half + 0.1f * (float)step)), peak);
        signed_sums<N>(x, weights, inverse, half, sum_xl, sum_l2);
        const vm better = vboth(vless(zero, sum_l2), vless(vmul(gain, sum_l2), vmul(sum_xl, sum_xl)));
        best.scale = vselect(better, vdiv(sum_xl, sum_l2), best.scale);
        gain = vselect(better, vmul(best.scale, sum_xl), gain);
        best.inverse = vselect(better, inverse, best.inverse);
    }
    best.scale = vselect(none, zero, best.scale);
    return best;
}

} // namespace
