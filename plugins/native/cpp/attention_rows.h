// Attention of few tokens: each row of q by itself, its positions in parts for the threads.
#pragma once

#include "attention_scores.h"

namespace {

// Groups where each row of q is computed for itself: the heads that share keys and values, for one token.
inline int64_t groups_of(const Node &node) { return row_count(node.src[0]) / sharing(node).heads; }

// Parts that the positions of a group are cut into, so that all threads have work where there are few groups.
inline int64_t parts_of_group(const Node &node, int threads) {
    constexpr int64_t SHORTEST = 128, EACH = 2; // positions of a part; parts for each thread
    const int64_t groups = groups_of(node), wanted = (EACH * threads + groups - 1) / groups;
    const int64_t most = node.src[1].ne[1] / SHORTEST;
    return wanted < most ? wanted : most > 1 ? most : 1;
}

// Bytes of what a part of a row gives: its largest score, its total, and the weighted sum of its values.
inline int64_t partial_size(const Node &node) { return aligned((2 + node.src[2].ne[0]) * 4); }

// Blocks of positions, at most: those at both ends may be parts of one.
inline int64_t most_blocks(const Node &node) { return node.src[1].ne[1] / BLOCK + 2; }

// Bytes for one thread: scores of all positions for each head of a group, a decoded block of keys or values, and the
// blocks that the group sees.
inline int64_t attention_rows_room(const Node &node) {
    const Operand &k = node.src[1], &v = node.src[2];
    const int64_t longest = k.ne[0] > v.ne[0] ? k.ne[0] : v.ne[0];
    const int64_t blocks = aligned(most_blocks(node) * (int64_t)sizeof(Span));
    return sharing(node).heads * aligned(k.ne[1] * 4) + aligned(BLOCK * longest * 4) + blocks;
}

// Bytes of the parts of all rows, and of the room of each thread.
inline int64_t attention_rows_scratch(const Node &node, int threads) {
    const int64_t partials = row_count(node.src[0]) * parts_of_group(node, threads);
    return partials * partial_size(node) + threads * attention_rows_room(node);
}

// Rows of a head lie between those of other heads, which processors do not foresee.
constexpr int64_t ROWS_AHEAD = 32;
template <int TYPE> constexpr int64_t BYTES = TYPE == F32 ? 4 : 2;
// Fetches COUNT bytes of the row that comes ROWS_AHEAD later.
template <int64_t COUNT> inline void prefetch_row(const char *p, int64_t step) {
    prefetch_at<1>(p, ROWS_AHEAD, step, COUNT);
}

// sum += weights x rows, for `count` rows of `size` values and H heads: each value is read and converted once.
template <int TYPE, int H>
void add_weighted(const char *rows, int64_t step, const float *weights, int64_t weights_step, int64_t count,
                  int64_t size, float *sums, int64_t sums_step) {
    constexpr int64_t VECTORS_AT_ONCE = 4;
    int64_t j = 0;
    for (; j + VECTORS_AT_ONCE * W <= size; j += VECTORS_AT_ONCE * W) {
        // Sums of four vectors for each head stay in registers while all rows pass.
        vf a[H][VECTORS_AT_ONCE];
        for (int h = 0; h < H; h++) {
            for (int v = 0; v < VECTORS_AT_ONCE; v++) a[h][v] = vload(sums + h * sums_step + j + v * W);
        }
        for (int64_t i = 0; i < count; i++) {
            // With weight 0 not even NaN counts; `attend` passes heads one by one where a weight is 0.
            if (H == 1 && weights[i] == 0) continue;
            const char *row = rows + i * step;
            prefetch_row<VECTORS_AT_ONCE * W * BYTES<TYPE>>(row + j * BYTES<TYPE>, step);
            vf value[VECTORS_AT_ONCE];
            for (int v = 0; v < VECTORS_AT_ONCE; v++) value[v] = load_floats<TYPE>(row, j + v * W);
            for (int h = 0; h < H; h++) {
                const vf weight = vset(weights[h * weights_step + i]);
                for (int v = 0; v < VECTORS_AT_ONCE; v++) a[h][v] = vfma(weight, value[v], a[h][v]);
            }
        }
        for (int h = 0; h < H; h++) {
            for (int v = 0; v < VECTORS_AT_ONCE; v++) vstore(sums + h * sums_step + j + v * W, a[h][v]);
        }
    }
    // The last values of the rows, one by one.
    for (; j < size; j++) {
        for (int h = 0; h < H; h++) {
            for (int64_t i = 0; i < count; i++) {
                const float weight = weights[h * weights_step + i];
                if (weight != 0) sums[h * sums_step + j] += weight * load_float<TYPE>(rows + i * step, j);
            }
        }
    }
}

// Scores of H queries with `count` keys: each key is read and converted once.
template <int TYPE, int H>
void score_keys(const char *rows, int64_t step, const char *queries, int64_t query_step, int64_t count, int64_t size,
                float *scores, int64_t scores_step) {
    for (int64_t i = 0; i < count; i += AT_ONCE) {
        const int64_t some = count - i < AT_ONCE ? count - i : AT_ONCE;
        // The last key stands in for keys beyond it.
        const char *row[AT_ONCE];
        for (int64_t r = 0; r < AT_ONCE; r++) row[r] = rows + (i + (r < some ? r : some - 1)) * step;
        vf a[H][AT_ONCE];
        for (int h = 0; h < H; h++) {
            for (int64_t r = 0; r < AT_ONCE; r++) a[h][r] = vset(0);
        }
        // Products of each key with each query, added up by lane.
        int64_t j = 0;
        for (; j + W <= size; j += W) {
            vf key[AT_ONCE];
            for (int64_t r = 0; r < AT_ONCE; r++) {
                prefetch_row<W * BYTES<TYPE>>(row[r] + j * BYTES<TYPE>, step);
                key[r] = load_floats<TYPE>(row[r], j);
            }
            for (int h = 0; h < H; h++) {
                const vf query = vload((const float *)(queries + h * query_step) + j);
                for (int64_t r = 0; r < AT_ONCE; r++) a[h][r] = vfma(key[r], query, a[h][r]);
            }
        }
        // Add up the lanes, and the products of the last elements.
        for (int h = 0; h < H; h++) {
            float sums[AT_ONCE];
            vsums(a[h], sums);
            const float *query = (const float *)(queries + h * query_step);
            for (int64_t r = 0; r < some; r++) {
                for (int64_t rest = j; rest < size; rest++) sums[r] += load_float<TYPE>(row[r], rest) * query[rest];
                scores[h * scores_step + i + r] = sums[r];
            }
        }
    }
}

// Heads whose sums the registers hold together.
#if defined(__AVX512F__) || defined(TP_NEON)
constexpr int HEADS_AT_ONCE = 4;
#else
constexpr int HEADS_AT_ONCE = 2;
#endif

// Both, by type and number of heads.
struct HeadsKernel {
    decltype(&add_weighted<F32, 1>) add;
    decltype(&score_keys<F32, 1>) score;
};
template <int TYPE> HeadsKernel heads_kernel(int heads) {
    static constexpr HeadsKernel known[] = {
        {add_weighted<TYPE, 1>, score_keys<TYPE, 1>},
        {add_weighted<TYPE, 2>, score_keys<TYPE, 2>},
#if defined(__AVX512F__) || defined(TP_NEON)
        {add_weighted<TYPE, 3>, score_keys<TYPE, 3>},
        {add_weighted<TYPE, 4>, score_keys<TYPE, 4>},
#endif
    };
    return known[heads - 1];
}
inline HeadsKernel heads_kernel(int type, int heads) {
    switch (type) {
    case F16: return heads_kernel<F16>(heads);
    case BF16: return heads_kernel<BF16>(heads);
    default: return heads_kernel<F32>(heads);
    }
}

// Keys or values of a block of positions: where they lie, or decoded where they are blocks.
struct BlockRows {
    int type;
    const char *rows;
    int64_t step;

    BlockRows(const Operand &t, const char *from, int64_t count, float *decoded)
        : type(t.type), rows(from), step(t.nb[1]) {
        if (is_plain(type)) return;
        const int64_t size = t.ne[0];
        const RowType *stored = row_type(type);
        for (int64_t i = 0; i < count; i++) stored->decode(from + i * t.nb[1], 0, size, decoded + i * size);
        type = F32, rows = (const char *)decoded, step = size * 4;
    }
};

// A row of q and the keys and values that it meets.
struct Row {
    int64_t token, head, batch;
    const float *query;
    const char *keys, *values, *bias;

    Row(const Node &node, int64_t token, int64_t head, int64_t batch) : token(token), head(head), batch(batch) {
        const Operand &q = node.src[0], &k = node.src[1], &v = node.src[2];
        query = (const float *)at(q, token, head, batch);
        const int64_t kv_head = head / (q.ne[2] / k.ne[2]), kv_batch = batch / (q.ne[3] / k.ne[3]);
        keys = at(k, 0, kv_head, kv_batch), values = at(v, 0, kv_head, kv_batch);
        bias = mask_row(node, token, head, batch);
    }
};

// The heads of a group for one token: they read each key and each value once from memory, then from the cache.
struct Group {
    const Node &node;
    const int64_t heads;
    int64_t token, head, batch; // head: the first one

    Group(const Node &node, int64_t index) : node(node), heads(sharing(node).heads) {
        const Operand &q = node.src[0];
        token = index % q.ne[1], head = index / q.ne[1] * heads % q.ne[2], batch = index / q.ne[1] * heads / q.ne[2];
    }
    Row row(int64_t i) const { return Row(node, token, head + i, batch); }
    // Of the rows of all groups.
    int64_t index_of(int64_t i) const {
        const Operand &q = node.src[0];
        return (batch * q.ne[2] + head + i) * q.ne[1] + token;
    }
};

// Whether no head of a group sees any of these positions.
inline bool hidden_from(const Group &group, int64_t first, int64_t count) {
    const Operand &mask = group.node.src[3];
    if (mask.type == NO_TYPE) return false;
    const int64_t rows = mask.ne[2] == 1 ? 1 : group.heads; // heads may share the mask
    for (int64_t h = 0; h < rows; h++) {
        if (sees_some(mask, group.row(h).bias, first, count)) return false;
    }
    return true;
}

// From the first to the last position that some head of a group sees.
inline Span seen_by(const Group &group) {
    int64_t first = 0, last = group.node.src[1].ne[1];
    for (int64_t step : {BLOCK, (int64_t)1}) {
        while (last - first >= step && hidden_from(group, last - step, step)) last -= step;
        while (last - first >= step && hidden_from(group, first, step)) first += step;
    }
    return {first, last};
}

// Blocks of positions, of which a group attends to the part that is its thread's.
struct Blocks {
    Span *spans;
    int64_t number = 0, positions = 0;

    void add(Span span) { spans[number++] = span, positions += span.last - span.first; }

    // Keeps the positions from `first` to `last`, as they are counted over all blocks.
    void cut(int64_t first, int64_t last) {
        const int64_t all = number;
        int64_t before = 0;
        number = positions = 0;
        for (int64_t i = 0; i < all; i++) {
            const Span span = spans[i];
            const int64_t size = span.last - span.first;
            const int64_t from = first > before ? first - before : 0, to = last - before < size ? last - before : size;
            if (from < to) add({span.first + from, span.first + to});
            before += size;
        }
    }
};

// The blocks that some head of a group sees. Texts whose pages are far apart see few of the blocks between.
inline Blocks blocks_seen_by(const Group &group, Span *room) {
    Blocks blocks{room};
    const Span seen = seen_by(group);
    for (int64_t first = seen.first, last; first < seen.last; first = last) {
        last = (first / BLOCK + 1) * BLOCK;
        if (last > seen.last) last = seen.last;
        if (!hidden_from(group, first, last - first)) blocks.add({first, last});
    }
    return blocks;
}

// Calls `work` with the first head and the number of heads of each portion of a group.
template <class Work> void by_heads(int64_t heads, Work work) {
    const int64_t portions = (heads + HEADS_AT_ONCE - 1) / HEADS_AT_ONCE;
    for (int64_t p = 0; p < portions; p++) {
        const int64_t first = heads * p / portions;
        work(first, (int)(heads * (p + 1) / portions - first));
    }
}

inline bool has_zero(const float *weights, int64_t step, int64_t heads, int64_t count) {
    int zero = 0;
    for (int64_t h = 0; h < heads; h++) {
        for (int64_t i = 0; i < count; i++) zero |= weights[h * step + i] == 0;
    }
    return zero != 0;
}

// For each row of a group the largest score of the positions in `blocks`, the total of what they weigh relative to it,
// and the weighted sum of their values. `partials` has those of all rows, `scores` room for those of a group.
inline void attend(const Group &group, const Blocks &blocks, float *scores, int64_t scores_step, float *decoded,
                   char *partials, int64_t partials_step) {
    const Node &node = group.node;
    const Operand &q = node.src[0], &k = node.src[1], &v = node.src[2], &mask = node.src[3];
    const int64_t element = mask.type == F16 ? 2 : 4;
    const int64_t head_step = group.index_of(1) - group.index_of(0);
    const Row any = group.row(0); // its keys and values are those of all
    // Score the keys, block by block, then scale and mask the scores; those of the blocks lie one after the other.
    float *here = scores;
    for (const Span *block = blocks.spans; block < blocks.spans + blocks.number; block++) {
        const int64_t some = block->last - block->first;
        const BlockRows keys(k, any.keys + block->first * k.nb[1], some, decoded);
        by_heads(group.heads, [&](int64_t h, int heads) {
            const char *queries = (const char *)any.query + h * q.nb[2];
            heads_kernel(keys.type, heads)
                .score(keys.rows, keys.step, queries, q.nb[2], some, k.ne[0], here + h * scores_step, scores_step);
        });
        for (int64_t h = 0; h < group.heads; h++) {
            const Row row = group.row(h);
            const char *bias = row.bias ? row.bias + block->first * element : nullptr;
            finish_scores(node, here + h * scores_step, some, bias, slope(row.head, node.src[0].ne[2], node.f[1]));
        }
        here += some;
    }
    // For each head: find the largest score, and turn scores into weights and their total.
    for (int64_t h = 0; h < group.heads; h++) {
        float *own = scores + h * scores_step, *partial = (float *)(partials + group.index_of(h) * partials_step);
        partial[0] = largest(own, blocks.positions, LOWEST);
        partial[1] = exponentials(own, blocks.positions, partial[0]);
        for (int64_t j = 0; j < v.ne[0]; j++) partial[2 + j] = 0;
    }
    // Add up the values by these weights.
    float *sums = (float *)(partials + group.index_of(0) * partials_step) + 2;
    const int64_t sums_step = head_step * partials_step / 4;
    const float *weights = scores;
    for (const Span *block = blocks.spans; block < blocks.spans + blocks.number; block++) {
        const int64_t some = block->last - block->first;
        const BlockRows values(v, any.values + block->first * v.nb[1], some, decoded);
        // A value with weight 0 must not count, even where it is NaN or infinite: then heads go one by one.
        const bool apart = has_zero(weights, scores_step, group.heads, some);
        by_heads(group.heads, [&](int64_t h, int heads) {
            const int at_once = apart ? 1 : heads;
            for (int64_t end = h + heads; h < end; h += at_once) {
                heads_kernel(values.type, at_once)
                    .add(values.rows, values.step, weights + h * scores_step, scores_step, some, v.ne[0],
                         sums + h * sums_step, sums_step);
            }
        });
        weights += some;
    }
}

// Adds up the parts of a row, into its first, with the sink of its head.
inline void join_parts(const Node &node, const Row &row, char *partials, int64_t parts) {
    const int64_t size = node.src[2].ne[0], step = partial_size(node) / 4;
    float *sum = (float *)partials, top, total;
    begin_row(node, row.head, top, total);
    // The largest score of all parts and of the sink.
    const float start = top;
    for (int64_t p = 0; p < parts; p++) top = sum[p * step] > top ? sum[p * step] : top;
    total *= std::exp(start - top);
    // Bring the total and the sum of each part to that maximum, and add them up.
    for (int64_t p = 0; p < parts; p++) {
        const float *part = sum + p * step;
        const float factor = std::exp(part[0] - top);
        total += factor * part[1];
        if (p == 0) {
            multiply(sum + 2, size, factor);
        } else {
            add_weighted<F32, 1>((const char *)(part + 2), 0, &factor, 0, 1, size, sum + 2, 0);
        }
    }
    write_mean(sum + 2, total, size, (float *)at(node.out, row.head, row.token, row.batch));
}

// Few tokens: the heads of a group for one token, in parts of its positions.
inline void attention_by_rows(const Node &node, Part &part) {
    const int64_t groups = groups_of(node), parts = parts_of_group(node, part.threads);
    const int64_t rows = row_count(node.src[0]), size = partial_size(node), step = parts * size;
    // Scratch memory: the partial results of all rows, then a room for each thread.
    Room room{part.scratch + rows * step + part.thread * attention_rows_room(node)};
    const int64_t scores_step = aligned(node.src[1].ne[1] * 4) / 4;
    const int64_t longest = node.src[1].ne[0] > node.src[2].ne[0] ? node.src[1].ne[0] : node.src[2].ne[0];
    float *scores = room.floats(sharing(node).heads * scores_step), *decoded = room.floats(BLOCK * longest);
    Span *spans = (Span *)room.next;
    // Each turn is a part of the positions of a group. A group of one part is complete after it.
    Turns turns(groups * parts, 1, 1, part);
    for (Span turn; !part.stopped() && turns.next(turn);) {
        const Group group(node, turn.first / parts);
        const int64_t p = turn.first % parts;
        Blocks blocks = blocks_seen_by(group, spans);
        if (parts > 1) blocks.cut(blocks.positions * p / parts, blocks.positions * (p + 1) / parts);
        attend(group, blocks, scores, scores_step, decoded, part.scratch + p * size, step);
        for (int64_t h = 0; parts == 1 && h < group.heads; h++) {
            join_parts(node, group.row(h), part.scratch + group.index_of(h) * step, 1);
        }
    }
    // Join the parts of each row, once all threads have written theirs.
    if (parts == 1 || !part.barrier()) return;
    const Span own = share(groups, part);
    for (int64_t g = own.first; g < own.last; g++) {
        const Group group(node, g);
        for (int64_t h = 0; h < group.heads; h++)
            join_parts(node, group.row(h), part.scratch + group.index_of(h) * step, parts);
    }
}

} // namespace
