// Products with matrices that ids choose: mixtures of experts. Rows of one expert go together, as a product of their
// own.
#pragma once

#include "matvec.h"

namespace {

// Room that threads share: the rows of x and of the result, expert by expert, then what one product needs; and for
// each thread the order of the rows, and its counters of portions for each product.
struct ExpertRoom {
    int64_t rows, results, product, order, counters; // where each starts
    int64_t order_size, counters_size;               // of a thread
    int64_t size;

    int64_t *order_of(const Part &part) const { return (int64_t *)(part.scratch + order + part.thread * order_size); }
    // Threads must wait for each other before they take portions.
    void clear_counters(const Part &part) const {
        std::memset(part.scratch + counters + part.thread * counters_size, 0, (size_t)counters_size);
    }
    Part product_part(const Part &part, int64_t index) const {
        auto *taken = (std::atomic<int32_t> *)(part.scratch + counters) + index;
        return {part.pool, part.thread, part.threads, part.scratch + product, part.index, taken, counters_size / 4};
    }
};

// The product of expert `e` with `m` rows at `x`, results at `out`; both without gaps.
inline Node expert_product(const Node &node, int64_t e, char *x, char *out, int64_t m) {
    Node one = node;
    Operand &w = one.src[0];
    w.data += e * w.nb[2];
    w.ne[2] = 1;
    const auto matrix = [m](char *data, int64_t row) {
        return Operand{data, {row, m, 1, 1}, {4, row * 4, m * row * 4, m * row * 4}, F32, 0};
    };
    one.src[1] = matrix(x, w.ne[0]);
    one.out = matrix(out, w.ne[1]);
    return one;
}

inline ExpertRoom expert_room(const Node &node, int threads) {
    const Operand &w = node.src[0];
    const int64_t count = node.out.ne[1] * node.out.ne[2];
    ExpertRoom room;
    room.rows = 0;
    room.results = aligned(count * w.ne[0] * 4);
    room.product = room.results + aligned(count * w.ne[1] * 4);
    int64_t most = 0;
    // One row, as many as dot products serve, and all of them: what lies between needs no more.
    for (const int64_t m : {(int64_t)1, FEW8 < count ? FEW8 : count, FEW < count ? FEW : count, count}) {
        const int64_t size = mul_mat_scratch(expert_product(node, 0, nullptr, nullptr, m), threads);
        most = size > most ? size : most;
    }
    room.order = room.product + aligned(most);
    room.order_size = aligned((count + w.ne[2] + 1) * 8);
    room.counters = room.order + threads * room.order_size;
    room.counters_size = aligned((w.ne[2] > count ? w.ne[2] : count) * 4);
    room.size = room.counters + threads * room.counters_size;
    return room;
}

inline int64_t mul_mat_id_scratch(const Node &node, int threads) {
    if (node.out.ne[2] == 1) return matvec_scratch(node, threads);
    return expert_room(node, threads).size;
}

// Rows in the order of their experts; `starts[e]` is where those of expert e begin, and after the last those without
// an expert. Each thread finds it for itself.
inline void sort_rows(const Operand &ids, int64_t experts, int64_t *starts, int64_t *order) {
    const int64_t used = ids.ne[0], count = used * ids.ne[1];
    for (int64_t e = 0; e <= experts; e++) starts[e] = 0;
    const auto expert = [&](int64_t i) { return id_at(ids, i % used, i / used, 0); };
    for (int64_t i = 0; i < count; i++) {
        if (expert(i) != NO_ROW) starts[expert(i) + 1]++;
    }
    for (int64_t e = 0; e < experts; e++) starts[e + 1] += starts[e];
    int64_t none = starts[experts];
    for (int64_t i = 0; i < count; i++) order[expert(i) == NO_ROW ? none++ : starts[expert(i)]++] = i;
    for (int64_t e = experts; e > 0; e--) starts[e] = starts[e - 1];
    starts[0] = 0;
}

// src: w, x, ids; i[0] as for MUL_MAT.
inline void mul_mat_id(const Node &node, Part &part) {
    const Operand &w = node.src[0], &x = node.src[1], &ids = node.src[2], &out = node.out;
    const int64_t used = out.ne[1], count = used * out.ne[2], k = w.ne[0], n = w.ne[1];
    if (out.ne[2] == 1) return matvec(node, part);
    if (!good_ids(ids, w.ne[2], part)) return;
    // Sort the rows by expert, and gather this thread's share of them.
    const ExpertRoom room = expert_room(node, part.threads);
    room.clear_counters(part);
    int64_t *starts = room.order_of(part), *order = starts + w.ne[2] + 1;
    sort_rows(ids, w.ne[2], starts, order);
    char *rows = part.scratch + room.rows, *results = part.scratch + room.results;
    const Span all = share(count, part);
    for (int64_t i = all.first; i < all.last; i++) {
        if (give_up(part, i)) return;
        read_row(x, {order[i] % used % x.ne[1], order[i] / used, 0}, (float *)rows + i * k);
    }
    if (!part.barrier()) return;
    // Multiply: all threads together, expert by expert.
    for (int64_t e = 0; e < w.ne[2]; e++) {
        const int64_t first = starts[e], m = starts[e + 1] - first;
        if (m == 0) continue;
        Part inner = room.product_part(part, e);
        mul_mat(expert_product(node, e, rows + first * k * 4, results + first * n * 4, m), inner);
        if (!part.barrier()) return;
    }
    // Scatter the results; rows without an expert are zeros.
    for (int64_t i = all.first; i < all.last; i++) {
        char *to = at(out, order[i] % used, order[i] / used, 0);
        if (i < starts[w.ne[2]]) std::memcpy(to, results + i * n * 4, (size_t)n * 4);
        else std::memset(to, 0, (size_t)n * 4);
    }
}

} // namespace
