// What must hold for a node before a kernel may compute it: types, shapes and strides that fit together, so that no
// kernel leaves the memory that the operands describe. Addresses themselves are the caller's to know.
#pragma once

#include "panels.h"

namespace {

// Larger tensors are damage, and products of sizes below this fit into 64 bits.
constexpr int64_t MOST_ELEMENTS = (int64_t)1 << 40, MOST_BYTES = (int64_t)1 << 56;
constexpr int64_t MOST_WORK = (int64_t)1 << 60; // products of elements
constexpr int MOST_THREADS = 1 << 12;

inline bool is_absent(const Operand &t) { return t.type == NO_TYPE; }
inline bool is_f32(const Operand &t) { return t.type == F32; }
inline bool is_f32_or_f16(const Operand &t) { return t.type == F32 || t.type == F16; }
inline bool is_float(const Operand &t) { return is_f32_or_f16(t) || t.type == BF16; }
inline bool is_id(const Operand &t) { return t.type == I32 || t.type == I64; }

inline bool is_multiple(int64_t a, int64_t b) { return a % b == 0; }

// Bytes from the first to behind the last; -1 for sizes, strides, types or addresses that no tensor has. Numbers lie at
// multiples of their size, blocks anywhere.
inline int64_t extent(const Operand &t) {
    const TypeSize *size = type_size(t.type);
    if (size == nullptr || t.data == nullptr || !is_multiple(t.ne[0], size->block)) return -1;
    const bool plain = size->block == 1;
    if (plain && !is_multiple((int64_t)(intptr_t)t.data, size->size)) return -1;
    int64_t elements = 1;
    for (int64_t n : t.ne) {
        if (n < 1 || n > MOST_ELEMENTS / elements) return -1;
        elements *= n;
    }
    int64_t bytes = plain ? size->size : t.ne[0] / size->block * size->size;
    for (int d = plain ? 0 : 1; d < 4; d++) {
        if (t.ne[d] == 1) continue;
        if (t.nb[d] < 0 || t.nb[d] > (MOST_BYTES - bytes) / (t.ne[d] - 1)) return -1;
        if (plain && !is_multiple(t.nb[d], size->size)) return -1;
        bytes += (t.ne[d] - 1) * t.nb[d];
    }
    return bytes;
}

inline bool meet(const Operand &a, const Operand &b) {
    return a.data < b.data + extent(b) && b.data < a.data + extent(a);
}

// Rows without gaps; strides of block types are what an element takes at most.
inline bool dense(const Operand &t) {
    const TypeSize *size = type_size(t.type);
    return t.ne[0] == 1 || t.nb[0] == (size->size + size->block - 1) / size->block;
}
inline bool dense_f32(const Operand &t) { return is_f32(t) && dense(t); }
inline bool dense_blocks(const Operand &t) { return type_size(t.type)->block == 1 || dense(t); }

inline bool same_shape(const Operand &a, const Operand &b) {
    return a.ne[0] == b.ne[0] && a.ne[1] == b.ne[1] && a.ne[2] == b.ne[2] && a.ne[3] == b.ne[3];
}

// Whether `part` repeats to the shape of `whole` from dimension `first` on.
inline bool repeats(const Operand &part, const Operand &whole, int first = 0) {
    for (int d = first; d < 4; d++) {
        if (!is_multiple(whole.ne[d], part.ne[d])) return false;
    }
    return true;
}

inline bool is_choice(const Node &node, int count) { return node.i[0] >= 0 && node.i[0] < count; }

// --- by op ---------------------------------------------------------------------------------------------------------

inline bool fits_map(const Node &node) {
    const Operand &x = node.src[0];
    if (!is_choice(node, MAPS) || !is_float(node.out)) return false;
    return is_absent(x) ? node.i[0] == FILL : is_float(x) && same_shape(x, node.out);
}

inline bool fits_join(const Node &node) {
    const Operand &a = node.src[0], &b = node.src[1], &out = node.out;
    return is_choice(node, JOINS) && is_float(a) && is_float(b) && is_float(out) && same_shape(a, out) &&
           repeats(b, out);
}

inline bool fits_mask_op(const Node &node) {
    return is_float(node.src[0]) && is_float(node.out) && same_shape(node.src[0], node.out);
}

inline bool fits_rows(const Node &node) {
    return dense_f32(node.src[0]) && dense_f32(node.out) && same_shape(node.src[0], node.out);
}

// A source that is applied to rows, again and again.
inline bool fits_each_row(const Operand &t, const Operand &out) {
    return is_absent(t) || (dense_f32(t) && t.ne[0] == out.ne[0]);
}

inline bool fits_norm(const Node &node) {
    const Operand &addend = node.src[3], &also = node.also, &out = node.out;
    const bool sum = is_absent(addend) || (!is_absent(also) && dense_f32(also) && same_shape(also, out));
    return is_choice(node, NORMS) && fits_rows(node) && fits_each_row(node.src[1], out) &&
           fits_each_row(node.src[2], out) && fits_each_row(addend, out) && sum;
}

inline bool fits_reduce(const Node &node) {
    const Operand &x = node.src[0], &out = node.out;
    if (!is_choice(node, REDUCTIONS) || !dense_f32(x)) return false;
    if (node.i[0] == ARGMAX) return out.type == I32 && out.ne[0] >= x.ne[1] * x.ne[2] * x.ne[3];
    if (node.i[0] == RUNNING_SUM && !(dense_f32(out) && out.ne[0] == x.ne[0])) return false;
    return is_f32(out) && out.ne[1] == x.ne[1] && out.ne[2] == x.ne[2] && out.ne[3] == x.ne[3];
}

// Sorting goes astray where values change meanwhile.
inline bool fits_order(const Node &node) {
    const Operand &x = node.src[0], &out = node.out;
    return dense_f32(x) && x.ne[0] <= INT32_MAX && out.type == I32 && dense(out) && out.ne[0] <= x.ne[0] &&
           out.ne[1] == x.ne[1] && out.ne[2] == x.ne[2] && out.ne[3] == x.ne[3] && !meet(out, x);
}

inline bool fits_mask(const Operand &mask, int64_t columns, int64_t rows) {
    return is_absent(mask) || (is_f32_or_f16(mask) && dense(mask) && mask.ne[0] >= columns && mask.ne[1] >= rows);
}
inline bool fits_sinks(const Operand &sinks, int64_t heads) {
    return is_absent(sinks) || (dense_f32(sinks) && sinks.ne[0] >= heads);
}

inline bool fits_soft_max(const Node &node) {
    const Operand &out = node.out;
    return fits_rows(node) && fits_mask(node.src[1], out.ne[0], out.ne[1]) && fits_sinks(node.src[2], out.ne[2]);
}

// Pairs of cosine and sine without gaps, for some tokens.
inline bool is_rope_table(const Operand &t) { return dense_f32(t) && t.ne[0] == 2 && (t.ne[1] == 1 || t.nb[1] == 8); }

inline bool fits_rope_table(const Node &node) {
    const Operand &positions = node.src[0], &rates = node.src[1], &factors = node.src[2], &out = node.out;
    return is_rope_table(out) && positions.type == I32 && positions.ne[0] >= out.ne[2] && rates.type == I64 &&
           dense(rates) && rates.ne[0] >= out.ne[1] &&
           (is_absent(factors) || (is_f32(factors) && factors.ne[0] >= out.ne[1]));
}

// Ids that the node itself wrote would not be those that were looked at.
inline bool fits_ids(const Operand &ids, const Operand &out) { return is_id(ids) && !meet(out, ids); }

// Rows of x [head, heads, tokens] as they are in a table with a row for each token.
inline bool fits_rope_to_rows(const Node &node) {
    const Operand &x = node.src[0], &table = node.src[1], &ids = node.src[3], &out = node.out;
    return fits_ids(ids, out) && dense_f32(x) && dense(out) && is_multiple(x.ne[0], type_size(out.type)->block) &&
           x.ne[1] <= out.ne[0] / x.ne[0] && x.ne[2] <= ids.ne[0] && x.ne[3] == 1 && table.ne[2] >= x.ne[2];
}

inline bool fits_rope(const Node &node) {
    const Operand &x = node.src[0], &table = node.src[1], &weight = node.src[2], &out = node.out;
    if (!is_rope_table(table) || table.ne[1] > x.ne[0] / 2) return false;
    if (node.i[1] && (is_absent(weight) || !dense_f32(weight) || weight.ne[0] != x.ne[0])) return false;
    if (!is_absent(node.src[3])) return fits_rope_to_rows(node);
    return fits_rows(node) && table.ne[2] >= out.ne[2];
}

inline bool fits_get_rows(const Node &node) {
    const Operand &table = node.src[0], &ids = node.src[1], &out = node.out;
    const bool types = dense(table) && dense(out) && (is_f32(out) || out.type == table.type);
    return fits_ids(ids, out) && !meet(out, table) && types && out.ne[0] == table.ne[0] &&
           out.ne[1] <= ids.ne[0] && out.ne[2] <= ids.ne[1] && out.ne[3] <= ids.ne[2] &&
           out.ne[2] <= table.ne[2] && out.ne[3] <= table.ne[3];
}

inline bool fits_set_rows(const Node &node) {
    const Operand &rows = node.src[0], &ids = node.src[1], &out = node.out;
    return fits_ids(ids, out) && dense_f32(rows) && dense(out) && out.ne[0] == rows.ne[0] && rows.ne[1] <= ids.ne[0] &&
           rows.ne[2] <= out.ne[2] && rows.ne[3] <= out.ne[3];
}

inline bool fits_add_rows(const Node &node) {
    const Operand &table = node.src[1], &ids = node.src[2], &out = node.out;
    return fits_ids(ids, out) && fits_rows(node) && dense_f32(table) && table.ne[0] == out.ne[0] &&
           out.ne[1] <= ids.ne[0] && out.ne[2] <= ids.ne[1];
}

inline bool fits_copy(const Node &node) {
    return dense_blocks(node.src[0]) && dense_blocks(node.out) && same_shape(node.src[0], node.out);
}

inline bool fits_repeat(const Node &node) {
    const Operand &x = node.src[0], &out = node.out;
    return x.type == out.type && type_size(x.type)->block == 1 && repeats(x, out);
}

constexpr int32_t FARTHEST = 1 << 24; // strides, paddings and dilations of windows

// The first six of i, and how large images are.
inline bool fits_slide(const Node &node) {
    for (int s = 0; s < 6; s++) {
        if (node.i[s] < -FARTHEST || node.i[s] > FARTHEST) return false;
    }
    for (int d = 0; d < 4; d++) {
        if (node.out.ne[d] > INT32_MAX || node.src[0].ne[d] > INT32_MAX) return false;
    }
    return node.i[0] > 0 && node.i[1] > 0;
}

inline bool fits_im2col(const Node &node) {
    const Operand &x = node.src[0], &out = node.out;
    const int64_t wide = node.i[6], high = node.i[7], columns = out.ne[0];
    if (wide < 1 || high < 1 || wide > columns || high > columns || wide * high > columns / x.ne[2]) return false;
    return fits_slide(node) && is_float(x) && is_float(out) && dense(out) && wide * high * x.ne[2] == columns &&
           node.i[8] > 0 && node.i[9] >= 0 && out.ne[1] * out.ne[2] <= INT32_MAX && x.ne[3] >= out.ne[3];
}

inline bool fits_col2im(const Node &node) {
    return fits_slide(node) && is_f32(node.src[0]) && dense_f32(node.out) && node.i[6] > 0 &&
           node.src[0].ne[3] >= node.out.ne[2];
}

inline bool fits_conv_dw(const Node &node) {
    const Operand &filters = node.src[0], &x = node.src[1], &out = node.out;
    return fits_slide(node) && is_float(filters) && dense_f32(x) && dense_f32(out) && filters.ne[3] >= out.ne[2] &&
           x.ne[0] <= INT32_MAX && x.ne[1] <= INT32_MAX && x.ne[2] >= out.ne[2] && x.ne[3] >= out.ne[3];
}

inline bool fits_pool(const Node &node) {
    const Operand &x = node.src[0], &out = node.out;
    return fits_slide(node) && dense_f32(x) && dense_f32(out) && x.ne[2] >= out.ne[2] && x.ne[3] >= out.ne[3] &&
           node.i[6] > 0 && node.i[7] > 0;
}

inline bool fits_mul_mat(const Node &node) {
    const Operand &w = node.src[0], &x = node.src[1], &out = node.out;
    return dense(w) && is_float(x) && dense_f32(out) && w.ne[0] == x.ne[0] && out.ne[0] == w.ne[1] &&
           out.ne[1] == x.ne[1] && out.ne[2] == x.ne[2] && out.ne[3] == x.ne[3] && repeats(w, x, 2) &&
           w.ne[0] <= MOST_WORK / elements(out);
}

// w [k, n, experts], x [k, 1 or used, tokens], ids [used, tokens], out [n, used, tokens].
inline bool fits_experts(const Node &node) {
    const Operand &w = node.src[0], &x = node.src[1], &ids = node.src[2], &out = node.out;
    const bool chosen =
        ids.ne[0] == out.ne[1] && ids.ne[1] == out.ne[2] && ids.ne[2] == 1 && out.ne[3] == 1 && w.ne[3] == 1;
    const bool alone = is_absent(node.src[3]) && is_absent(node.src[4]); // no bias, no second matrix
    return fits_ids(ids, out) && chosen && alone && dense(w) && is_float(x) && dense_f32(out) && w.ne[0] == x.ne[0] &&
           out.ne[0] == w.ne[1] && x.ne[2] >= out.ne[2] && w.ne[0] <= MOST_ELEMENTS / (out.ne[1] * out.ne[2]) &&
           w.ne[0] <= MOST_WORK / elements(out);
}

// A bias [n, matrices] of w [k, n, matrices].
inline bool fits_bias(const Operand &bias, const Operand &w) {
    return is_absent(bias) || (dense_f32(bias) && bias.ne[0] == w.ne[1] && bias.ne[1] >= w.ne[2]);
}

// w [k, n, experts] and x [k, 1 or used] with ids [used], else one matrix and one row; out [n, used].
inline bool fits_matvec(const Node &node) {
    const Operand &w = node.src[0], &x = node.src[1], &ids = node.src[2], &second = node.src[4], &out = node.out;
    const bool chosen = is_absent(ids) ? w.ne[2] == 1 && out.ne[1] == 1 : fits_ids(ids, out) && ids.ne[0] == out.ne[1];
    const bool paired = is_absent(second) ||
                        (dense(second) && same_shape(second, w) && node.i[1] >= 0 && node.i[1] < JOINS);
    return chosen && paired && dense(w) && is_float(x) && dense_f32(out) && w.ne[0] == x.ne[0] &&
           out.ne[0] == w.ne[1] && fits_bias(node.src[3], w) && (is_absent(second) || fits_bias(node.src[5], w)) &&
           w.ne[0] <= MOST_WORK / elements(out);
}

// q [size, tokens, heads, batch]; k and v with a row for each position; out [size of v, heads, tokens, batch].
inline bool fits_attention(const Node &node) {
    const Operand &q = node.src[0], &k = node.src[1], &v = node.src[2], &out = node.out;
    const bool keys = dense(k) && q.ne[0] == k.ne[0] && repeats(k, q, 2) && k.ne[1] <= MOST_WORK / elements(out);
    const bool values = dense(v) && v.ne[1] == k.ne[1] && v.ne[2] == k.ne[2] && v.ne[3] == k.ne[3];
    return dense_f32(q) && keys && values && dense_f32(out) && out.ne[0] == v.ne[0] && out.ne[1] == q.ne[2] &&
           out.ne[2] == q.ne[1] && out.ne[3] == q.ne[3] && fits_mask(node.src[3], k.ne[1], q.ne[1]) &&
           fits_sinks(node.src[4], q.ne[2]);
}

// Whether `t` is a matrix of whole panels.
inline bool fits_panels(const Operand &t) {
    const PanelForm *form = panel_form(t.type);
    return form != nullptr && t.layout == IN_PANELS && is_multiple(t.ne[1], PANEL_ROWS) && t.ne[2] == 1 &&
           t.ne[3] == 1 && t.nb[1] == t.ne[0] / type_size(t.type)->block * form->size();
}

// Whether source `s` of an op may lie in panels.
inline bool reads_panels(const Node &node, int s) {
    switch (node.op) {
    case MUL_MAT:
    case GET_ROWS: return s == 0;
    case MATVEC: return (s == 0 || s == 4) && is_absent(node.src[2]);
    default: return false;
    }
}

// Whether the operands are tensors, and as many as an op wants: the first `sources` are not absent.
inline bool has_operands(const Node &node, int sources) {
    if (extent(node.out) < 0 || (!is_absent(node.also) && extent(node.also) < 0)) return false;
    if (node.out.layout != IN_ROWS || (!is_absent(node.also) && node.also.layout != IN_ROWS)) return false;
    for (int s = 0; s < SOURCES; s++) {
        const Operand &t = node.src[s];
        if (is_absent(t) ? s < sources : extent(t) < 0) return false;
        if (!is_absent(t) && t.layout != IN_ROWS && !(reads_panels(node, s) && fits_panels(t))) return false;
    }
    return true;
}

} // namespace
