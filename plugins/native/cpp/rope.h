// Rotary position embedding (Su et al. 2021). The turns of all tokens are computed once for all nodes that share
// them, by a node of their own.
#pragma once

#include "rows.h"

namespace {

// out [2, pairs, tokens]: cosine and sine times f[0] of position * rate / factor; src: positions (i32), rates
// (f64, as pairs of i64 in the eyes of Python), factors (f32).
inline void rope_table(const Node &node, Part &part) {
    const Operand &positions = node.src[0], &rates = node.src[1], &factors = node.src[2];
    const int64_t pairs = node.out.ne[1];
    const Span tokens = share(node.out.ne[2], part);
    for (int64_t t = tokens.first; t < tokens.last; t++) {
        if (give_up(part, t)) return;
        const double position = *(const int32_t *)(positions.data + t * positions.nb[0]);
        float *out = (float *)(node.out.data + t * node.out.nb[2]);
        for (int64_t i = 0; i < pairs; i++) {
            double angle = position * ((const double *)rates.data)[i];
            if (factors.type != NO_TYPE) angle /= (double)*(const float *)(factors.data + i * factors.nb[0]);
            out[2 * i] = (float)(std::cos(angle) * (double)node.f[0]);
            out[2 * i + 1] = (float)(std::sin(angle) * (double)node.f[0]);
        }
    }
}

// Turns pairs of x [head, heads, tokens, batch]; i[0] says whether they are halves apart or neighbours. src: x,
// table.
inline void rope(const Node &node, Part &part) {
    const Operand &x = node.src[0], &table = node.src[1], &out = node.out;
    const int64_t pairs = table.ne[1];
    const bool halves = node.i[0];
    const int64_t next = halves ? pairs : 1, step = halves ? 1 : 2;
    const Span rows = share(row_count(out), part);
    for (int64_t row = rows.first; row < rows.last; row++) {
        if (give_up(part, row)) return;
        const Place p = place(out, row);
        const float *from = (const float *)at(x, p), *turn = (const float *)(table.data + p.i2 * table.nb[2]);
        float *z = (float *)at(out, p);
        for (int64_t i = 0; i < pairs; i++) {
            const float a = from[i * step], b = from[i * step + next];
            z[i * step] = a * turn[2 * i] - b * turn[2 * i + 1];
            z[i * step + next] = a * turn[2 * i + 1] + b * turn[2 * i];
        }
        for (int64_t i = 2 * pairs; i < out.ne[0]; i++) z[i] = from[i];
    }
}

} // namespace
