// Softmax of rows, and what attention shares with it. Results may lie over the source.
#pragma once

#include "rows.h"

namespace {

// The factor of the mask for a head (Press et al. 2021), 1 without `max_bias`.
inline float slope(int64_t head, int64_t heads, float max_bias) {
    if (max_bias == 0) return 1;
    int64_t power = 1;
    while (power * 2 <= heads) power *= 2;
    const double exponent = head < power ? -(double)max_bias / (double)power * (double)(head + 1)
                                         : -(double)max_bias / 2 / (double)power * (double)(2 * (head - power) + 1);
    return (float)std::pow(2.0, exponent);
}

inline float mask_at(const Operand &mask, const char *row, int64_t i) {
    return mask.type == F16 ? half_to_float(((const uint16_t *)row)[i]) : ((const float *)row)[i];
}

// The largest of x; NaN is passed over, as the exponentials show it anyway.
inline float largest(const float *x, int64_t n, float least) {
    vf top = vset(least);
    int64_t i = 0;
    for (; i + W <= n; i += W) top = vmax(vload(x + i), top);
    float lanes[W];
    vstore(lanes, top);
    for (int j = 0; j < W; j++) least = lanes[j] > least ? lanes[j] : least;
    for (; i < n; i++) least = x[i] > least ? x[i] : least;
    return least;
}

// Replaces x by exp(x - top) and returns the sum.
inline float exponentials(float *x, int64_t n, float top) {
    const vf shift = vset(top);
    vf total = vset(0);
    int64_t i = 0;
    for (; i + W <= n; i += W) {
        const vf e = vexp(vsub(vload(x + i), shift));
        vstore(x + i, e);
        total = vadd(total, e);
    }
    float sum = vsum(total);
    if (i < n) {
        float lanes[W];
        vstore(lanes, vexp(vsub(vload(x + i, (int)(n - i)), shift)));
        for (int j = 0; i + j < n; j++) sum += x[i + j] = lanes[j];
    }
    return sum;
}

inline void multiply(float *x, int64_t n, float factor) {
    const vf f = vset(factor);
    EACH_VECTOR(i, count, n) store_some(x + i, vmul(load_some(x + i, count), f), count);
}

// softmax(f[0] * x + slope * mask), sinks in the divisor only; src: x, mask, sinks.
inline void soft_max(const Node &node, Part &part) {
    const Operand &x = node.src[0], &mask = node.src[1], &sinks = node.src[2], &out = node.out;
    const int64_t n = out.ne[0];
    const Span rows = share(row_count(out), part);
    for (int64_t row = rows.first; row < rows.last; row++) {
        if (give_up(part, row)) return;
        const Place p = place(out, row);
        const float *from = (const float *)at(x, p);
        float *z = (float *)at(out, p);
        // Scale, and add the mask times the slope of the head.
        if (mask.type == NO_TYPE) {
            for (int64_t i = 0; i < n; i++) z[i] = from[i] * node.f[0];
        } else {
            const char *bias = at(mask, p.i1, p.i2 % mask.ne[2], p.i3 % mask.ne[3]);
            const float factor = slope(p.i2, out.ne[2], node.f[1]);
            for (int64_t i = 0; i < n; i++) z[i] = from[i] * node.f[0] + factor * mask_at(mask, bias, i);
        }
        // The maximum, the sink included.
        float top = largest(z, n, -INFINITY), sink = 0;
        if (sinks.type != NO_TYPE) {
            sink = ((const float *)sinks.data)[p.i2];
            top = sink > top ? sink : top;
        }
        // Exponentials, divided by their sum, to which the sink adds.
        float total = exponentials(z, n, top);
        if (sinks.type != NO_TYPE) total += std::exp(sink - top);
        const vf divisor = vset(total);
        EACH_VECTOR(i, count, n) store_some(z + i, vdiv(load_some(z + i, count), divisor), count);
    }
}

} // namespace
