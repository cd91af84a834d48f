// Rows divided by a statistic of themselves, reduced, ordered; and softmax. Results may lie over the source.
#pragma once

#include <algorithm>

#include "rows.h"

namespace {

constexpr int64_t CHUNK = 4096; // elements that are added up in f32 before they are added to a sum in f64

// The sum of f(x) over a row.
template <class F> inline double sum_of(const float *x, int64_t n, F f) {
    double total = 0;
    for (int64_t start = 0; start < n; start += CHUNK) {
        const int64_t end = n - start < CHUNK ? n : start + CHUNK;
        vf a = vset(0), b = vset(0);
        int64_t i = start;
        for (; i + 2 * W <= end; i += 2 * W) {
            a = vadd(a, f(vload(x + i)));
            b = vadd(b, f(vload(x + i + W)));
        }
        for (; i < end; i += W) {
            // What is beyond the end must not count, whatever f makes of zeros.
            const int64_t count = end - i < W ? end - i : W;
            float lanes[W];
            vstore(lanes, f(load_some(x + i, count)));
            for (int64_t j = 0; j < count; j++) total += (double)lanes[j];
        }
        total += (double)vsum(vadd(a, b));
    }
    return total;
}

inline double sum_of_squares(const float *x, int64_t n) {
    return sum_of(x, n, [](vf v) { return vmul(v, v); });
}

// What is taken off each element of a row, and what the rest is divided by.
struct Statistic {
    float mean, divisor;
};

inline Statistic statistic(int kind, const float *x, int64_t n, float eps) {
    if (kind == RMS) return {0, std::sqrt((float)(sum_of_squares(x, n) / (double)n) + eps)};
    if (kind == LENGTH) {
        const float length = std::sqrt((float)sum_of_squares(x, n));
        return {0, length > eps || length != length ? length : eps};
    }
    const float mean = (float)(sum_of(x, n, [](vf v) { return v; }) / (double)n);
    const vf shift = vset(mean);
    const double squares = sum_of(x, n, [&](vf v) { return vmul(vsub(v, shift), vsub(v, shift)); });
    return {mean, std::sqrt((float)(squares / (double)n) + eps)};
}

// Rows divided by what i[0] names, f[0] is its eps; src: x, weight, bias, addend. Where there are any, the addend is
// added first, its sum kept as second result, and weight and bias applied last.
inline void norm(const Node &node, Part &part) {
    const Operand &x = node.src[0], &weight = node.src[1], &bias = node.src[2], &addend = node.src[3];
    const Operand &out = node.out;
    const int64_t n = out.ne[0];
    const Span rows = share(row_count(out), part);
    for (int64_t row = rows.first; row < rows.last; row++) {
        if (give_up(part, row)) return;
        const Place p = place(out, row);
        const float *from = (const float *)at(x, p);
        float *z = (float *)at(out, p);
        if (addend.type != NO_TYPE) {
            const float *more = (const float *)at_repeated(addend, p);
            float *sum = (float *)at(node.also, p);
            EACH_VECTOR(i, count, n) {
                store_some(sum + i, vadd(load_some(from + i, count), load_some(more + i, count)), count);
            }
            from = sum;
        }
        const Statistic s = statistic(node.i[0], from, n, node.f[0]);
        const float *factors = weight.type == NO_TYPE ? nullptr : (const float *)at_repeated(weight, p);
        const float *shifts = bias.type == NO_TYPE ? nullptr : (const float *)at_repeated(bias, p);
        const vf mean = vset(s.mean), divisor = vset(s.divisor);
        EACH_VECTOR(i, count, n) {
            vf value = vdiv(vsub(load_some(from + i, count), mean), divisor);
            if (factors != nullptr) value = vmul(value, load_some(factors + i, count));
            if (shifts != nullptr) value = vadd(value, load_some(shifts + i, count));
            store_some(z + i, value, count);
        }
    }
}

// The index of the first NaN, or of the first of the largest.
inline int32_t place_of_largest(const float *x, int64_t n) {
    int64_t best = 0;
    for (int64_t i = 1; i < n && x[best] == x[best]; i++) best = x[i] > x[best] || x[i] != x[i] ? i : best;
    return (int32_t)best;
}

inline void running_sums(const float *x, int64_t n, float *out) {
    double sum = 0;
    for (int64_t i = 0; i < n; i++) sum += (double)x[i], out[i] = (float)sum;
}

// One element for each row, or as many: i[0] says what.
inline void reduce(const Node &node, Part &part) {
    const Operand &x = node.src[0], &out = node.out;
    const Span rows = share(row_count(x), part);
    for (int64_t row = rows.first; row < rows.last; row++) {
        if (give_up(part, row)) return;
        const Place p = place(x, row);
        const float *from = (const float *)at(x, p);
        if (node.i[0] == ARGMAX) {
            *(int32_t *)(out.data + row * out.nb[0]) = place_of_largest(from, x.ne[0]);
            continue;
        }
        if (node.i[0] == RUNNING_SUM) {
            running_sums(from, x.ne[0], (float *)at(out, p));
            continue;
        }
        const double sum = sum_of(from, x.ne[0], [](vf v) { return v; });
        *(float *)at(out, p) = (float)(node.i[0] == MEAN ? sum / (double)x.ne[0] : sum);
    }
}

// The first out.ne[0] of the indices that sort each row, i[0]: largest first. NaN goes last either way.
inline void order(const Node &node, Part &part) {
    const Operand &x = node.src[0], &out = node.out;
    const int64_t n = x.ne[0];
    const bool descending = node.i[0];
    int32_t *indices = (int32_t *)part.scratch + part.thread * n;
    const Span rows = share(row_count(x), part);
    for (int64_t row = rows.first; row < rows.last; row++) {
        if (part.stopped()) return;
        const Place p = place(x, row);
        const float *from = (const float *)at(x, p);
        for (int64_t i = 0; i < n; i++) indices[i] = (int32_t)i;
        const auto before = [=](int32_t a, int32_t b) {
            const float u = from[a], v = from[b];
            if (u != v) return v != v ? u == u : descending ? u > v : u < v;
            return a < b; // so that equal ones keep their order
        };
        if (out.ne[0] == n) std::sort(indices, indices + n, before);
        else std::partial_sort(indices, indices + out.ne[0], indices + n, before);
        std::memcpy(at(out, p), indices, (size_t)out.ne[0] * 4);
    }
}

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
        if (mask.type == NO_TYPE) {
            for (int64_t i = 0; i < n; i++) z[i] = from[i] * node.f[0];
        } else {
            const char *bias = at(mask, p.i1, p.i2 % mask.ne[2], p.i3 % mask.ne[3]);
            const float factor = slope(p.i2, out.ne[2], node.f[1]);
            for (int64_t i = 0; i < n; i++) z[i] = from[i] * node.f[0] + factor * mask_at(mask, bias, i);
        }
        float top = largest(z, n, -INFINITY), sink = 0;
        if (sinks.type != NO_TYPE) {
            sink = ((const float *)sinks.data)[p.i2];
            top = sink > top ? sink : top;
        }
        float total = exponentials(z, n, top);
        if (sinks.type != NO_TYPE) total += std::exp(sink - top);
        const vf divisor = vset(total);
        EACH_VECTOR(i, count, n) store_some(z + i, vdiv(load_some(z + i, count), divisor), count);
    }
}

} // namespace
