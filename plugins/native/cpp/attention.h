// Attention in one op: scores, softmax and values.
#pragma once

#include "matmul.h"
#include "norm.h"

namespace {

constexpr int64_t FEW_TOKENS = 4; // up to which each row of q goes alone
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

// Bytes for one thread. By rows: scores of all positions for each head of a group, and a decoded block of keys or values.
// By blocks: queries, scores, weights, sums, decoded values; the largest score of each row and its total.
inline int64_t attention_room(const Node &node) {
    const Operand &k = node.src[1], &v = node.src[2];
    const int64_t longest = k.ne[0] > v.ne[0] ? k.ne[0] : v.ne[0];
    if (by_rows(node)) return sharing(node).heads * aligned(k.ne[1] * 4) + aligned(BLOCK * longest * 4);
    const int64_t rows = sharing(node).rows;
    return aligned(rows * k.ne[0] * 4) + 2 * aligned(rows * BLOCK * 4) + aligned(rows * v.ne[0] * 4) +
           aligned(BLOCK * v.ne[0] * 4) + 2 * aligned(rows * 4);
}

inline int64_t attention_scratch(const Node &node, int threads) {
    const int64_t partials = by_rows(node) ? row_count(node.src[0]) * parts_of_group(node, threads) : 0;
    return partials * partial_size(node) + threads * attention_room(node);
}

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
    if (node.f[2] == 0) {
        multiply(scores, n, node.f[0]);
    } else {
        for (int64_t i = 0; i < n; i++) scores[i] = node.f[2] * std::tanh(scores[i] * node.f[0] / node.f[2]);
    }
    if (bias == nullptr) return;
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

// Rows of a head lie between those of other heads, which processors do not foresee.
constexpr int64_t ROWS_AHEAD = 32;
template <int TYPE> constexpr int64_t BYTES = TYPE == F32 ? 4 : 2;
// Fetches COUNT bytes of the row that comes ROWS_AHEAD later.
template <int64_t COUNT> inline void prefetch_row(const char *p, int64_t step) { prefetch_at<1>(p, ROWS_AHEAD, step, COUNT); }

// sum += weights x rows, for `count` rows of `size` values and H heads: each value is read and converted once.
template <int TYPE, int H>
void add_weighted(const char *rows, int64_t step, const float *weights, int64_t weights_step, int64_t count, int64_t size,
                  float *sums, int64_t sums_step) {
    constexpr int64_t VECTORS_AT_ONCE = 4;
    int64_t j = 0;
    for (; j + VECTORS_AT_ONCE * W <= size; j += VECTORS_AT_ONCE * W) {
        vf a[H][VECTORS_AT_ONCE];
        for (int h = 0; h < H; h++) {
            for (int v = 0; v < VECTORS_AT_ONCE; v++) a[h][v] = vload(sums + h * sums_step + j + v * W);
        }
        for (int64_t i = 0; i < count; i++) {
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
        const char *row[AT_ONCE];
        for (int64_t r = 0; r < AT_ONCE; r++) row[r] = rows + (i + (r < some ? r : some - 1)) * step;
        vf a[H][AT_ONCE];
        for (int h = 0; h < H; h++) {
            for (int64_t r = 0; r < AT_ONCE; r++) a[h][r] = vset(0);
        }
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

    BlockRows(const Operand &t, const char *from, int64_t count, float *decoded) : type(t.type), rows(from), step(t.nb[1]) {
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

// For each row of a group the largest score of positions [first, last), the total of what they weigh relative to it, and
// the weighted sum of their values. `partials` has those of all rows, `scores` room for those of a group.
inline void attend(const Group &group, int64_t first, int64_t last, float *scores, int64_t scores_step, float *decoded,
                   char *partials, int64_t partials_step) {
    const Node &node = group.node;
    const Operand &q = node.src[0], &k = node.src[1], &v = node.src[2], &mask = node.src[3];
    const int64_t count = last - first, element = mask.type == F16 ? 2 : 4;
    const int64_t head_step = group.index_of(1) - group.index_of(0);
    const Row any = group.row(0); // its keys and values are those of all
    for (int64_t block = first; block < last; block += BLOCK) {
        const int64_t some = last - block < BLOCK ? last - block : BLOCK;
        float *here = scores + block - first;
        if (hidden_from(group, block, some)) {
            for (int64_t h = 0; h < group.heads; h++) std::memset(here + h * scores_step, 0, some * 4);
            continue;
        }
        const BlockRows keys(k, any.keys + block * k.nb[1], some, decoded);
        by_heads(group.heads, [&](int64_t h, int heads) {
            const char *queries = (const char *)any.query + h * q.nb[2];
            heads_kernel(keys.type, heads).score(keys.rows, keys.step, queries, q.nb[2], some, k.ne[0], here + h * scores_step, scores_step);
        });
    }
    for (int64_t h = 0; h < group.heads; h++) {
        const Row row = group.row(h);
        float *own = scores + h * scores_step, *partial = (float *)(partials + group.index_of(h) * partials_step);
        const char *bias = row.bias ? row.bias + first * element : nullptr;
        finish_scores(node, own, count, bias, slope(row.head, node.src[0].ne[2], node.f[1]));
        partial[0] = largest(own, count, LOWEST);
        partial[1] = exponentials(own, count, partial[0]);
        for (int64_t j = 0; j < v.ne[0]; j++) partial[2 + j] = 0;
    }
    float *sums = (float *)(partials + group.index_of(0) * partials_step) + 2;
    const int64_t sums_step = head_step * partials_step / 4;
    for (int64_t block = first; block < last; block += BLOCK) {
        const int64_t some = last - block < BLOCK ? last - block : BLOCK;
        if (hidden_from(group, block, some)) continue;
        const BlockRows values(v, any.values + block * v.nb[1], some, decoded);
        const float *weights = scores + block - first;
        // What weighs nothing must not count, whatever its value is: that is looked at head by head.
        const bool apart = has_zero(weights, scores_step, group.heads, some);
        by_heads(group.heads, [&](int64_t h, int heads) {
            const int at_once = apart ? 1 : heads;
            for (int64_t end = h + heads; h < end; h += at_once) {
                heads_kernel(values.type, at_once)
                    .add(values.rows, values.step, weights + h * scores_step, scores_step, some, v.ne[0], sums + h * sums_step, sums_step);
            }
        });
    }
}

// Adds up the parts of a row, into its first, with the sink of its head.
inline void join_parts(const Node &node, const Row &row, char *partials, int64_t parts) {
    const int64_t size = node.src[2].ne[0], step = partial_size(node) / 4;
    float *sum = (float *)partials, top, total;
    begin_row(node, row.head, top, total);
    const float start = top;
    for (int64_t p = 0; p < parts; p++) top = sum[p * step] > top ? sum[p * step] : top;
    total *= std::exp(start - top);
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
    Room room{part.scratch + rows * step + part.thread * attention_room(node)};
    const int64_t scores_step = aligned(node.src[1].ne[1] * 4) / 4;
    float *scores = room.floats(sharing(node).heads * scores_step), *decoded = (float *)room.next;
    Turns turns(groups * parts, 1, 1, part);
    for (Span turn; !part.stopped() && turns.next(turn);) {
        const Group group(node, turn.first / parts);
        const int64_t p = turn.first % parts;
        const Span seen = seen_by(group);
        const int64_t positions = seen.last - seen.first;
        attend(group, seen.first + positions * p / parts, seen.first + positions * (p + 1) / parts, scores, scores_step, decoded, part.scratch + p * size, step);
        for (int64_t h = 0; parts == 1 && h < group.heads; h++) {
            join_parts(node, group.row(h), part.scratch + group.index_of(h) * step, 1);
        }
    }
    if (parts == 1 || !part.barrier()) return;
    const Span own = share(groups, part);
    for (int64_t g = own.first; g < own.last; g++) {
        const Group group(node, g);
        for (int64_t h = 0; h < group.heads; h++) join_parts(node, group.row(h), part.scratch + group.index_of(h) * step, parts);
    }
}

// Rows of q that share keys, against a block of positions at a time (Dao et al. 2022).
class Shared {
  public:
    Shared(const Node &node, char *memory) : node_(node), s_(sharing(node)) {
        Room room{memory};
        queries_ = room.floats(s_.rows * node.src[1].ne[0]);
        scores_ = room.floats(s_.rows * BLOCK);
        weights_ = room.floats(s_.rows * BLOCK);
        sums_ = room.floats(s_.rows * node.src[2].ne[0]);
        values_ = room.floats(BLOCK * node.src[2].ne[0]);
        tops_ = room.floats(s_.rows);
        totals_ = room.floats(s_.rows);
    }

    // The heads that share `kv_head`, from `token` on.
    void compute(int64_t token, int64_t kv_head, int64_t batch, Part &part) {
        const Operand &q = node_.src[0], &k = node_.src[1];
        token_ = token, batch_ = batch, head_ = kv_head * s_.heads;
        tokens_ = q.ne[1] - token < s_.tokens ? q.ne[1] - token : s_.tokens;
        rows_ = tokens_ * s_.heads;
        tile_ = rows_of_tile(rows_);
        begin();
        const int64_t kv_batch = batch / (q.ne[3] / k.ne[3]);
        for (int64_t first = 0; first < k.ne[1]; first += BLOCK) {
            if (part.stopped()) return;
            const int64_t count = k.ne[1] - first < BLOCK ? k.ne[1] - first : BLOCK;
            if (all_hidden(first, count)) continue;
            score(at(k, first, kv_head, kv_batch), count);
            weigh(first, count);
            add_values(at(node_.src[2], first, kv_head, kv_batch), count);
        }
        end();
    }

  private:
    int64_t token_of(int64_t row) const { return token_ + row % tokens_; }
    int64_t head_of(int64_t row) const { return head_ + row / tokens_; }
    int64_t height(int64_t row) const { return rows_ - row < tile_ ? rows_ - row : tile_; }
    const char *bias(int64_t row) const { return mask_row(node_, token_of(row), head_of(row), batch_); }

    // Puts value i of a row where the tile that the row is in wants it, [n, rows of the tile].
    void pack_row(const float *from, int64_t n, int64_t row, float *packed) const {
        const int64_t first = row / tile_ * tile_, step = height(first);
        float *out = packed + first * n + (row - first);
        for (int64_t i = 0; i < n; i++) out[i * step] = from[i];
    }

    void begin() {
        const int64_t size = node_.src[2].ne[0];
        for (int64_t row = 0; row < rows_; row++) {
            const float *query = (const float *)at(node_.src[0], token_of(row), head_of(row), batch_);
            pack_row(query, node_.src[0].ne[0], row, queries_);
            begin_row(node_, head_of(row), tops_[row], totals_[row]);
        }
        for (int64_t i = 0; i < rows_ * size; i++) sums_[i] = 0;
    }

    bool all_hidden(int64_t first, int64_t count) const {
        const Operand &mask = node_.src[3];
        if (mask.type == NO_TYPE) return false;
        // From the end, where those of the last tokens are the first to be seen. Heads may share the mask.
        const int64_t rows = mask.ne[2] == 1 ? tokens_ : rows_;
        for (int64_t row = rows - 1; row >= 0; row--) {
            if (sees_some(mask, bias(row), first, count)) return false;
        }
        return true;
    }

    void score(const char *keys, int64_t count) {
        const Operand &k = node_.src[1];
        const RowType *type = row_type(k.type);
        const int64_t size = k.ne[0];
        alignas(64) float rows[COLUMNS * DEPTH], panel[DEPTH * COLUMNS];
        for (int64_t column = 0; column < count; column += COLUMNS) {
            const int64_t columns = count - column < COLUMNS ? count - column : COLUMNS;
            for (int64_t k0 = 0; k0 < size; k0 += DEPTH) {
                const int64_t depth = size - k0 < DEPTH ? size - k0 : DEPTH;
                for (int64_t c = 0; c < COLUMNS; c++) {
                    const int64_t position = column + (c < columns ? c : columns - 1);
                    type->decode(keys + position * k.nb[1], k0, depth, rows + c * DEPTH);
                }
                transpose(rows, depth, panel);
                for (int64_t row = 0; row < rows_; row += tile_) {
                    const int64_t m = height(row);
                    float *scores = scores_ + row * BLOCK + column;
                    multiply_part((int)m, depth, queries_ + row * size + k0 * m, panel, COLUMNS, scores, BLOCK, k0 > 0, columns);
                }
            }
        }
    }

    // Scores become weights relative to the largest so far; what was summed before shrinks with it.
    void weigh(int64_t first, int64_t count) {
        const int64_t size = node_.src[2].ne[0];
        const int64_t element = node_.src[3].type == F16 ? 2 : 4;
        for (int64_t row = 0; row < rows_; row++) {
            float *scores = scores_ + row * BLOCK;
            const char *mask = bias(row);
            const float factor = slope(head_of(row), node_.src[0].ne[2], node_.f[1]);
            finish_scores(node_, scores, count, mask ? mask + first * element : nullptr, factor);
            const float top = largest(scores, count, tops_[row]);
            const float change = top == tops_[row] ? 1.0f : std::exp(tops_[row] - top);
            totals_[row] = totals_[row] * change + exponentials(scores, count, top);
            if (change != 1.0f) multiply(sums_ + row * size, size, change);
            tops_[row] = top;
        }
        for (int64_t row = 0; row < rows_; row += tile_) {
            interleave(scores_ + row * BLOCK, BLOCK, height(row), count, weights_ + row * count);
        }
    }

    void add_values(const char *values, int64_t count) {
        const Operand &v = node_.src[2];
        const int64_t size = v.ne[0];
        const float *floats = (const float *)values;
        int64_t step = v.nb[1] / 4;
        if (v.type != F32 || v.nb[1] % 4) {
            for (int64_t i = 0; i < count; i++) row_type(v.type)->decode(values + i * v.nb[1], 0, size, values_ + i * size);
            floats = values_, step = size;
        }
        for (int64_t column = 0; column < size; column += COLUMNS) {
            const int64_t columns = size - column < COLUMNS ? size - column : COLUMNS;
            const float *panel = floats + column;
            alignas(64) float padded[BLOCK * COLUMNS];
            int64_t panel_step = step;
            if (columns < COLUMNS) { // the last columns: nothing may be read past the end of the values
                for (int64_t i = 0; i < count * COLUMNS; i++) {
                    padded[i] = i % COLUMNS < columns ? panel[i / COLUMNS * step + i % COLUMNS] : 0.0f;
                }
                panel = padded, panel_step = COLUMNS;
            }
            for (int64_t row = 0; row < rows_; row += tile_) {
                float *sums = sums_ + row * size + column;
                multiply_part((int)height(row), count, weights_ + row * count, panel, panel_step, sums, size, true, columns);
            }
        }
    }

    void end() {
        const int64_t size = node_.src[2].ne[0];
        for (int64_t row = 0; row < rows_; row++) {
            float *out = (float *)at(node_.out, head_of(row), token_of(row), batch_);
            write_mean(sums_ + row * size, totals_[row], size, out);
        }
    }

    const Node &node_;
    const Sharing s_;
    float *queries_, *scores_, *weights_, *sums_, *values_, *tops_, *totals_;
    int64_t token_, batch_, head_, tokens_, rows_, tile_;
};

inline void attention(const Node &node, Part &part) {
    if (by_rows(node)) return attention_by_rows(node, part);
    const Sharing s = sharing(node);
    const int64_t kv_heads = node.src[1].ne[2], units = s.tiles * kv_heads * node.src[0].ne[3];
    Shared shared(node, part.scratch + part.thread * attention_room(node));
    // One by one: later tokens of a text see more.
    Turns turns(units, 1, 1, part);
    for (Span turn; turns.next(turn);) {
        const int64_t unit = turn.first, rest = unit / s.tiles;
        shared.compute(unit % s.tiles * s.tokens, rest % kv_heads, rest / kv_heads, part);
        if (part.stopped()) return;
    }
}

} // namespace
