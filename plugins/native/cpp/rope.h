// Rotary position embedding (Su et al. 2021). The turns of all tokens are computed once for all nodes that share
// them, by a node of their own.
#pragma once

#include "copy.h"
#include "norm.h"

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

// What is done to a row of x before it turns: i[1] says whether it is divided by its root mean square, f[0] being its
// eps, and multiplied with a weight, src[2]. Returns x itself where that is nothing.
inline const float *before_turning(const Node &node, const float *x, int64_t n, float *room) {
    const Operand &weight = node.src[2];
    if (!node.i[1]) return x;
    const vf divisor = vset(statistic(RMS, x, n, node.f[0]).divisor);
    const float *factors = (const float *)weight.data;
    EACH_VECTOR(i, count, n) {
        const vf value = vdiv(load_some(x + i, count), divisor);
        store_some(room + i, vmul(value, load_some(factors + i, count)), count);
    }
    return room;
}

// Turns pairs of a row; `halves` says whether they are halves apart or neighbours.
inline void turn_row(const Operand &table, int64_t token, bool halves, const float *from, int64_t n, float *z) {
    const int64_t pairs = table.ne[1], next = halves ? pairs : 1, step = halves ? 1 : 2;
    const float *turn = (const float *)(table.data + token * table.nb[2]);
    for (int64_t i = 0; i < pairs; i++) {
        const float a = from[i * step], b = from[i * step + next];
        z[i * step] = a * turn[2 * i] - b * turn[2 * i + 1];
        z[i * step + next] = a * turn[2 * i + 1] + b * turn[2 * i];
    }
    for (int64_t i = 2 * pairs; i < n; i++) z[i] = from[i];
}

// Turned rows of x [head, heads, tokens] to rows of a table that ids name. Threads share heads, not tokens: where two
// ids are equal, the same token wins in all heads.
inline void rope_to_rows(const Node &node, Part &part) {
    const Operand &x = node.src[0], &ids = node.src[3], &out = node.out;
    if (!good_ids(ids, out.ne[1], part)) return;
    const int64_t n = x.ne[0];
    const Span heads = share(x.ne[1], part);
    float room[TILE], turned[TILE];
    for (int64_t token = 0; token < x.ne[2]; token++) {
        if (give_up(part, token)) return;
        const int64_t id = id_at(ids, token, 0, 0);
        if (id == NO_ROW) continue;
        char *row = at(out, id, 0, 0);
        for (int64_t head = heads.first; head < heads.last; head++) {
            const float *from = before_turning(node, (const float *)at(x, head, token, 0), n, room);
            turn_row(node.src[1], token, node.i[0], from, n, turned);
            write_values(out.type, turned, n, row + bytes_of(out.type, head * n));
        }
    }
}

// Turns pairs of x [head, heads, tokens, batch], i[0] as for turn_row. src: x, table, weight, ids; see before_turning
// and rope_to_rows for the last two.
inline void rope(const Node &node, Part &part) {
    const Operand &x = node.src[0], &out = node.out;
    if (node.src[3].type != NO_TYPE) return rope_to_rows(node, part);
    const Span rows = share(row_count(out), part);
    float room[TILE];
    for (int64_t row = rows.first; row < rows.last; row++) {
        if (give_up(part, row)) return;
        const Place p = place(out, row);
        const float *from = before_turning(node, (const float *)at(x, p), out.ne[0], room);
        turn_row(node.src[1], p.i2, node.i[0], from, out.ne[0], (float *)at(out, p));
    }
}

} // namespace
