// Rows reduced to one element, summed up to each element, or put in order.
#pragma once

#include <algorithm>

#include "sums.h"

namespace {

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

// One element for each row, or running sums of it: i[0] says what.
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

} // namespace
