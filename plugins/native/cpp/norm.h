// Norms: rows divided by a statistic of themselves. Results may lie over the source.
#pragma once

#include "sums.h"

namespace {

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
        // Add the addend; the sum is the second result.
        if (addend.type != NO_TYPE) {
            const float *more = (const float *)at_repeated(addend, p);
            float *sum = (float *)at(node.also, p);
            EACH_VECTOR(i, count, n) {
                store_some(sum + i, vadd(load_some(from + i, count), load_some(more + i, count)), count);
            }
            from = sum;
        }
        const Statistic s = statistic(node.i[0], from, n, node.f[0]);
        // Normalise, multiply by the weight, add the bias.
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

} // namespace
