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

// Bytes for one thread. By rows: scores with all positions, a decoded row, and a sum. By blocks: queries, scores,
// weights, sums, decoded values; the largest score of each row and its total.
inline int64_t attention_room(const Node &node) {
    const Operand &k = node.src[1], &v = node.src[2];
    if (by_rows(node)) return aligned(k.ne[1] * 4) + 2 * aligned(v.ne[0] * 4);
    const int64_t rows = sharing(node).rows;
    return aligned(rows * k.ne[0] * 4) + 2 * aligned(rows * BLOCK * 4) + aligned(rows * v.ne[0] * 4) +
           aligned(BLOCK * v.ne[0] * 4) + 2 * aligned(rows * 4);
}

inline int64_t attention_scratch(const Node &node, int threads) { return threads * attention_room(node); }

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
    for (int64_t i = 0; i < n; i++) scores[i] += factor * half_to_float(((const uint16_t *)bias)[i]);
}

inline const char *mask_row(const Node &node, int64_t token, int64_t head, int64_t batch) {
    const Operand &mask = node.src[3];
    return mask.type == NO_TYPE ? nullptr : at(mask, token, head % mask.ne[2], batch % mask.ne[3]);
}

inline bool is_hidden(const Operand &mask, const char *row, int64_t i) { return mask_at(mask, row, i) == -INFINITY; }

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

// One row of q after the other; positions that the mask hides are passed over.
inline void attention_by_rows(const Node &node, Part &part) {
    const Operand &q = node.src[0], &k = node.src[1], &v = node.src[2], &mask = node.src[3];
    const RowType *keys = row_type(k.type), *values = row_type(v.type);
    const int64_t positions = k.ne[1], size = v.ne[0], tokens = q.ne[1];
    Room room{part.scratch + part.thread * attention_room(node)};
    float *scores = room.floats(positions), *decoded = room.floats(size), *sum = room.floats(size);
    const Span rows = share(row_count(q), part);
    for (int64_t row = rows.first; row < rows.last; row++) {
        if (part.stopped()) return;
        const int64_t token = row % tokens, head = row / tokens % q.ne[2], batch = row / tokens / q.ne[2];
        const float *query = (const float *)at(q, token, head, batch);
        const int64_t kv_head = head / (q.ne[2] / k.ne[2]), kv_batch = batch / (q.ne[3] / k.ne[3]);
        const char *bias = mask_row(node, token, head, batch);
        for (int64_t i = 0; i < positions; i++) {
            scores[i] = 0;
            if (bias && is_hidden(mask, bias, i)) continue;
            keys->dot(at(k, i, kv_head, kv_batch), 0, query, k.ne[0], scores + i);
        }
        finish_scores(node, scores, positions, bias, slope(head, q.ne[2], node.f[1]));
        float start, total;
        begin_row(node, head, start, total);
        const float top = largest(scores, positions, start);
        total = total * std::exp(start - top) + exponentials(scores, positions, top);
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
        write_mean(sum, total, size, (float *)at(node.out, head, token, batch));
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
        if (node_.src[3].type == NO_TYPE) return false;
        // From the end, where those of the last tokens are the first to be seen.
        for (int64_t row = rows_ - 1; row >= 0; row--) {
            const char *mask = bias(row);
            for (int64_t i = 0; i < count; i++) {
                if (!is_hidden(node_.src[3], mask, first + i)) return false;
            }
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
            pack_row(scores, count, row, weights_);
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
    // In turns: later tokens of a text see more.
    for (int64_t unit = part.thread; unit < units; unit += part.threads) {
        const int64_t rest = unit / s.tiles;
        shared.compute(unit % s.tiles * s.tokens, rest % kv_heads, rest / kv_heads, part);
        if (part.stopped()) return;
    }
}

} // namespace
