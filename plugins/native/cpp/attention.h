// Attention in one op: scores, softmax and values.
#pragma once

#include "matmul.h"
#include "norm.h"

namespace {

// For each thread: scores of a row with all positions, a row of keys or values as floats, and their sum.
inline int64_t attention_scratch(const Node &node, int threads) {
    const Operand &k = node.src[1], &v = node.src[2];
    return threads * (aligned(k.ne[1] * 4) + aligned(k.ne[0] * 4) + 2 * aligned(v.ne[0] * 4));
}

inline float capped(float score, float cap) { return cap == 0 ? score : cap * std::tanh(score / cap); }

// softmax(cap(f[0] * k q) + slope * mask) v; src: q, k, v, mask, sinks; f: scale, max_bias, cap. One row of q
// after the other. Positions that the mask hides are passed over.
inline void attention(const Node &node, Part &part) {
    const Operand &q = node.src[0], &k = node.src[1], &v = node.src[2], &mask = node.src[3], &sinks = node.src[4];
    const Operand &out = node.out;
    const RowType *keys = row_type(k.type), *values = row_type(v.type);
    const int64_t positions = k.ne[1], size = v.ne[0], tokens = q.ne[1];
    char *room = part.scratch + part.thread * (attention_scratch(node, 1));
    float *scores = (float *)room;
    float *decoded = (float *)(room + aligned(positions * 4) + aligned(k.ne[0] * 4));
    float *sum = (float *)((char *)decoded + aligned(size * 4));
    const Span rows = share(row_count(q), part);
    for (int64_t row = rows.first; row < rows.last; row++) {
        if (part.stopped()) return;
        // Tokens last: rows that share keys follow each other.
        const int64_t token = row % tokens, head = row / tokens % q.ne[2], batch = row / tokens / q.ne[2];
        const float *query = (const float *)at(q, token, head, batch);
        const int64_t kv_head = head / (q.ne[2] / k.ne[2]), kv_batch = batch / (q.ne[3] / k.ne[3]);
        const char *bias = mask.type == NO_TYPE ? nullptr : at(mask, token, head % mask.ne[2], batch % mask.ne[3]);
        const float factor = slope(head, q.ne[2], node.f[1]);
        for (int64_t i = 0; i < positions; i++) {
            const float hidden = bias ? factor * mask_at(mask, bias, i) : 0.0f;
            if (hidden == -INFINITY) {
                scores[i] = -INFINITY;
                continue;
            }
            float score;
            keys->dot(at(k, i, kv_head, kv_batch), 0, query, k.ne[0], &score);
            scores[i] = capped(score * node.f[0], node.f[2]) + hidden;
        }
        float top = largest(scores, positions, -3.402823466e38f), sink = 0;
        if (sinks.type != NO_TYPE) {
            sink = ((const float *)sinks.data)[head];
            top = sink > top ? sink : top;
        }
        float total = exponentials(scores, positions, top);
        if (sinks.type != NO_TYPE) total += std::exp(sink - top);
        for (int64_t j = 0; j < size; j++) sum[j] = 0;
        for (int64_t i = 0; i < positions; i++) {
            if (scores[i] == 0) continue;
            const char *value = at(v, i, kv_head, kv_batch);
            const float *x = (const float *)value;
            if (v.type != F32) values->decode(value, 0, size, decoded), x = decoded;
            const vf weight = vset(scores[i]);
            EACH_VECTOR(j, count, size) {
                store_some(sum + j, vfma(weight, load_some(x + j, count), load_some(sum + j, count)), count);
            }
        }
        // A row that sees nothing gives zeros.
        const vf divisor = vset(total > 1.17549435e-38f || total != total ? total : 1.17549435e-38f);
        float *z = (float *)at(out, head, token, batch);
        EACH_VECTOR(j, count, size) store_some(z + j, vdiv(load_some(sum + j, count), divisor), count);
    }
}

} // namespace
