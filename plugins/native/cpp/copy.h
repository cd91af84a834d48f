// Rows taken from and written to tables, and copies between layouts and types.
#pragma once

#include "rows.h"

namespace {

inline void store_row(int type, const float *values, int64_t n, char *out, int64_t step) {
    const bool dense = step == (type == F32 ? 4 : 2);
    if (type == F32) {
        for (int64_t i = 0; i < n; i++) *(float *)(out + i * step) = values[i];
        return;
    }
    if (type == BF16) {
        for (int64_t i = 0; i < n; i++) *(uint16_t *)(out + i * step) = float_to_bf16(values[i]);
        return;
    }
    int64_t i = 0;
    for (; dense && i + W <= n; i += W) vstore16((uint16_t *)out + i, vload(values + i));
    for (; i < n; i++) *(uint16_t *)(out + i * step) = float_to_half(values[i]);
}

inline int64_t id_at(const Operand &ids, int64_t i0, int64_t i1, int64_t i2) {
    const char *p = ids.data + i0 * ids.nb[0] + i1 * ids.nb[1] + i2 * ids.nb[2];
    return ids.type == I64 ? *(const int64_t *)p : *(const int32_t *)p;
}

// Whether all ids name rows; ends the run where one does not. Every thread looks at all of them, so that nothing
// is written before they are known to be right.
inline bool good_ids(const Operand &ids, int64_t rows, Part &part) {
    for (int64_t i2 = 0; i2 < ids.ne[2]; i2++) {
        for (int64_t i1 = 0; i1 < ids.ne[1]; i1++) {
            for (int64_t i0 = 0; i0 < ids.ne[0]; i0++) {
                const int64_t id = id_at(ids, i0, i1, i2);
                if (id >= 0 && id < rows) continue;
                part.pool.stop(Outcome{BAD_ROW, part.index, id});
                return false;
            }
        }
    }
    return true;
}

// Rows of src[0] that the ids of src[1] name, as f32.
inline void get_rows(const Node &node, Part &part) {
    const Operand &table = node.src[0], &ids = node.src[1], &out = node.out;
    if (!good_ids(ids, table.ne[1], part)) return;
    const RowType *type = row_type(table.type);
    const Span rows = share(row_count(out), part);
    for (int64_t row = rows.first; row < rows.last; row++) {
        if (give_up(part, row)) return;
        const Place p = place(out, row);
        const int64_t id = id_at(ids, p.i1, p.i2, p.i3);
        type->decode(at(table, id, p.i2, p.i3), 0, out.ne[0], (float *)at(out, p));
    }
}

// Rows of src[0] to where the ids of src[1] say. Threads share columns, not rows: where two ids are equal, the
// same row wins in all columns.
inline void set_rows(const Node &node, Part &part) {
    const Operand &rows = node.src[0], &ids = node.src[1], &out = node.out;
    if (!good_ids(ids, out.ne[1], part)) return;
    const Span columns = share(out.ne[0], part, 32);
    const int64_t size = out.type == F32 ? 4 : 2;
    for (int64_t row = 0; row < row_count(rows) && columns.first < columns.last; row++) {
        const Place p = place(rows, row);
        const int64_t id = id_at(ids, p.i1, p.i2 % ids.ne[1], p.i3 % ids.ne[2]);
        char *target = at(out, id, p.i2, p.i3) + columns.first * size;
        store_row(out.type, (const float *)at(rows, p) + columns.first, columns.last - columns.first, target, size);
    }
}

inline float number_at(int type, const char *p) {
    return type == F32 ? *(const float *)p : type == F16 ? half_to_float(*(const uint16_t *)p)
                                                         : bf16_to_float(*(const uint16_t *)p);
}

// Element by element, tensors of one shape, f32, f16 and bf16.
inline void copy(const Node &node, Part &part) {
    const Operand &x = node.src[0], &out = node.out;
    const bool dense = x.nb[0] == (x.type == F32 ? 4 : 2);
    const RowType *type = row_type(x.type);
    const int64_t n = out.ne[0], size = x.type == F32 ? 4 : 2;
    // One long row is shared by its columns.
    const bool by_rows = row_count(out) >= part.threads;
    const Span rows = by_rows ? share(row_count(out), part) : Span{0, row_count(out)};
    const Span columns = by_rows ? Span{0, n} : share(n, part, 64);
    constexpr int64_t TILE = 256;
    float values[TILE];
    for (int64_t row = rows.first; row < rows.last; row++) {
        if (give_up(part, row)) return;
        const Place p = place(out, row);
        const char *from = at(x, p);
        char *target = at(out, p);
        if (dense && x.type == out.type && out.nb[0] == size) {
            std::memmove(target + columns.first * size, from + columns.first * size,
                         (size_t)((columns.last - columns.first) * size));
            continue;
        }
        for (int64_t i = columns.first; i < columns.last; i += TILE) {
            const int64_t count = columns.last - i < TILE ? columns.last - i : TILE;
            if (dense) {
                type->decode(from, i, count, values);
            } else {
                for (int64_t j = 0; j < count; j++) values[j] = number_at(x.type, from + (i + j) * x.nb[0]);
            }
            store_row(out.type, values, count, target + i * out.nb[0], out.nb[0]);
        }
    }
}

} // namespace
