// What both ways of attention share: which rows of q share keys, scores, masks and sinks.
#pragma once

#include "product_floats_many.h"
#include "soft_max.h"

namespace {

constexpr int64_t FEW_TOKENS = 4; // up to which each row of q goes by itself
constexpr int64_t SHARING = 48;   // rows of q that meet a block of keys while it is in the cache
constexpr int64_t BLOCK = 64;     // positions of such a block; a multiple of COLUMNS
constexpr float LOWEST = -3.402823466e38f, SMALLEST = 1.17549435e-38f;

// Rows of q that share keys: tokens of the heads in a group.
struct Sharing {
    int64_t heads, tokens, rows, tiles; // in a group, at a time, both together; tiles of tokens
};

inline Sharing sharing(const Node &node) {
    const Operand &q = node.src[0], &k = node.src[1];
    const int64_t heads = q.ne[2] / k.ne[2];
    int64_t tokens = SHARING / heads > 0 ? SHARING / heads : 1;
    tokens = tokens < q.ne[1] ? tokens : q.ne[1];
    return {heads, tokens, heads * tokens, (q.ne[1] + tokens - 1) / tokens};
}

inline bool by_rows(const Node &node) { return node.src[0].ne[1] <= FEW_TOKENS; }

// Takes arrays of floats from a thread's room, one after the other.
struct Room {
    char *next;
    float *floats(int64_t n) {
        float *here = (float *)next;
        next += aligned(n * 4);
        return here;
    }
};

// Scores as they are compared: scaled, capped, and masked. src: q, k, v, mask, sinks; f: scale, max_bias, cap.
inline void finish_scores(const Node &node, float *scores, int64_t n, const char *bias, float factor) {
    // Scale, and cap by tanh where the node has a softcap.
    if (node.f[2] == 0) {
        multiply(scores, n, node.f[0]);
    } else {
        for (int64_t i = 0; i < n; i++) scores[i] = node.f[2] * std::tanh(scores[i] * node.f[0] / node.f[2]);
    }
    if (bias == nullptr) return;
    // Add the mask, times the factor of the head (ALiBi).
    if (node.src[3].type == F32) {
        const vf f = vset(factor);
        const float *mask = (const float *)bias;
        EACH_VECTOR(i, count, n) {
            store_some(scores + i, vfma(load_some(mask + i, count), f, load_some(scores + i, count)), count);
        }
        return;
    }
    const uint16_t *mask = (const uint16_t *)bias;
    int64_t i = 0;
    for (; i + W <= n; i += W) vstore(scores + i, vfma(vload16(mask + i), vset(factor), vload(scores + i)));
    for (; i < n; i++) scores[i] += factor * half_to_float(mask[i]);
}

inline const char *mask_row(const Node &node, int64_t token, int64_t head, int64_t batch) {
    const Operand &mask = node.src[3];
    return mask.type == NO_TYPE ? nullptr : at(mask, token, head % mask.ne[2], batch % mask.ne[3]);
}

inline bool sees_some(const Operand &mask, const char *row, int64_t first, int64_t count) {
    // Without a branch in the loop, for the compiler to use vectors.
    constexpr uint16_t HIDDEN = 0xfc00; // minus infinity in f16
    int some = 0;
    if (mask.type == F32) {
        for (int64_t i = first; i < first + count; i++) some |= ((const float *)row)[i] != -INFINITY;
    } else {
        for (int64_t i = first; i < first + count; i++) some |= ((const uint16_t *)row)[i] != HIDDEN;
    }
    return some != 0;
}

// What the sink of a head, if it has one, gives to start from: the largest score, and the total.
inline void begin_row(const Node &node, int64_t head, float &top, float &total) {
    const Operand &sinks = node.src[4];
    top = LOWEST, total = 0;
    if (sinks.type == NO_TYPE) return;
    const float sink = ((const float *)sinks.data)[head];
    top = sink > LOWEST ? sink : LOWEST;
    total = std::exp(sink - top);
}

// A row that sees nothing gives zeros.
inline void write_mean(const float *sum, float total, int64_t n, float *out) {
    const vf divisor = vset(total < SMALLEST ? SMALLEST : total);
    EACH_VECTOR(j, count, n) store_some(out + j, vdiv(load_some(sum + j, count), divisor), count);
}

} // namespace
