// Attention of many tokens: rows of q that share keys, against a block of positions at a time (Dao et al. 2022).
#pragma once

#include "attention_scores.h"

namespace {

// Bytes for one thread: queries, scores, weights, sums, decoded values; the largest score of each row and its total.
inline int64_t attention_blocks_room(const Node &node) {
    const Operand &k = node.src[1], &v = node.src[2];
    const int64_t rows = sharing(node).rows;
    return aligned(rows * k.ne[0] * 4) + 2 * aligned(rows * BLOCK * 4) + aligned(rows * v.ne[0] * 4) +
           aligned(BLOCK * v.ne[0] * 4) + 2 * aligned(rows * 4);
}

// Some tokens of the heads of a group: their queries, sums and totals while blocks of positions pass.
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
        tile_ = rows_of_tile(rows_, ROWS);
        begin();
        const int64_t kv_batch = batch / (q.ne[3] / k.ne[3]);
        for (int64_t first = 0; first < k.ne[1]; first += BLOCK) {
            if (part.stopped()) return;
            const int64_t count = seen(first, k.ne[1] - first < BLOCK ? k.ne[1] - first : BLOCK);
            if (count == 0) continue;
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

    // Packs the queries, and starts sums and totals.
    void begin() {
        const int64_t size = node_.src[2].ne[0];
        for (int64_t row = 0; row < rows_; row++) {
            const float *query = (const float *)at(node_.src[0], token_of(row), head_of(row), batch_);
            pack_row(query, node_.src[0].ne[0], row, queries_);
            begin_row(node_, head_of(row), tops_[row], totals_[row]);
        }
        for (int64_t i = 0; i < rows_ * size; i++) sums_[i] = 0;
    }

    // How many of `count` positions from `first` on hold all that some row sees: those behind are left out, in panels.
    int64_t seen(int64_t first, int64_t count) const {
        while (count > 0) {
            const int64_t last = (count - 1) / COLUMNS * COLUMNS;
            if (!all_hidden(first + last, count - last)) break;
            count = last;
        }
        return count;
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

    // Scores of the queries with `count` keys.
    void score(const char *keys, int64_t count) {
        const Operand &k = node_.src[1];
        const RowType *type = row_type(k.type);
        const int64_t size = k.ne[0];
        alignas(64) float rows[COLUMNS * DEPTH], panel[DEPTH * COLUMNS];
        for (int64_t column = 0; column < count; column += COLUMNS) {
            const int64_t columns = count - column < COLUMNS ? count - column : COLUMNS;
            for (int64_t k0 = 0; k0 < size; k0 += DEPTH) {
                // Decode part of COLUMNS keys into a panel; the last key fills it up.
                const int64_t depth = size - k0 < DEPTH ? size - k0 : DEPTH;
                for (int64_t c = 0; c < COLUMNS; c++) {
                    const int64_t position = column + (c < columns ? c : columns - 1);
                    type->decode(keys + position * k.nb[1], k0, depth, rows + c * DEPTH);
                }
                transpose(rows, depth, panel);
                // Multiply the queries with it, tile by tile, adding to the scores of the parts before.
                for (int64_t row = 0; row < rows_; row += tile_) {
                    const int64_t m = height(row);
                    float *scores = scores_ + row * BLOCK + column;
                    multiply_part((int)m, depth, queries_ + row * size + k0 * m, panel, COLUMNS, scores, BLOCK, k0 > 0,
                                  columns);
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
            // Update the running maximum.
            const float top = largest(scores, count, tops_[row]);
            const float change = top == tops_[row] ? 1.0f : std::exp(tops_[row] - top);
            // Rescale the total and the sum to it.
            totals_[row] = totals_[row] * change + exponentials(scores, count, top);
            if (change != 1.0f) multiply(sums_ + row * size, size, change);
            tops_[row] = top;
        }
        // Weights as tiles that meet the values.
        for (int64_t row = 0; row < rows_; row += tile_) {
            interleave(scores_ + row * BLOCK, BLOCK, height(row), count, weights_ + row * count);
        }
    }

    // Adds the values of `count` positions by their weights.
    void add_values(const char *values, int64_t count) {
        const Operand &v = node_.src[2];
        const int64_t size = v.ne[0];
        const float *floats = (const float *)values;
        int64_t step = v.nb[1] / 4;
        if (v.type != F32 || v.nb[1] % 4) {
            for (int64_t i = 0; i < count; i++)
                row_type(v.type)->decode(values + i * v.nb[1], 0, size, values_ + i * size);
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
                multiply_part((int)height(row), count, weights_ + row * count, panel, panel_step, sums, size, true,
                              columns);
            }
        }
    }

    // Writes the results: sums divided by totals.
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

// Many tokens: tiles of tokens of the heads of a group.
inline void attention_by_blocks(const Node &node, Part &part) {
    const Sharing s = sharing(node);
    const int64_t kv_heads = node.src[1].ne[2], units = s.tiles * kv_heads * node.src[0].ne[3];
    Shared shared(node, part.scratch + part.thread * attention_blocks_room(node));
    // One by one: later tokens of a text see more.
    Turns turns(units, 1, 1, part);
    for (Span turn; turns.next(turn);) {
        const int64_t unit = turn.first, rest = unit / s.tiles;
        shared.compute(unit % s.tiles * s.tokens, rest % kv_heads, rest / kv_heads, part);
        if (part.stopped()) return;
    }
}

} // namespace
