// Sums over rows: in f32 by chunks, which are added up in f64.
#pragma once

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

} // namespace
