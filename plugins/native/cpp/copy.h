// Rows taken from and written to tables, and copies between layouts and types.
#pragma once

#include "elementwise.h"
#include "encode.h"
#include "panels.h"

namespace {

constexpr int64_t NO_ROW = -1; // an id that names none: zeros are read, nothing is written

inline int64_t id_at(const Operand &ids, int64_t i0, int64_t i1, int64_t i2) {
    const char *p = ids.data + i0 * ids.nb[0] + i1 * ids.nb[1] + i2 * ids.nb[2];
    return ids.type == I64 ? *(const int64_t *)p : *(const int32_t *)p;
}

// Whether all ids name rows, or are NO_ROW; ends the run where one does not. Every thread looks at all of them, so that
// nothing is written before they are known to be right.
inline bool good_ids(const Operand &ids, int64_t rows, Part &part) {
    for (int64_t i2 = 0; i2 < ids.ne[2]; i2++) {
        for (int64_t i1 = 0; i1 < ids.ne[1]; i1++) {
            for (int64_t i0 = 0; i0 < ids.ne[0]; i0++) {
                const int64_t id = id_at(ids, i0, i1, i2);
                if (id >= NO_ROW && id < rows) continue;
                part.pool.stop(Outcome{BAD_ROW, part.index, id});
                return false;
            }
        }
    }
    return true;
}

// Bytes that `n` elements of a row without gaps take.
inline int64_t bytes_of(int type, int64_t n) {
    const TypeSize &size = *type_size(type);
    return n / size.block * size.size;
}

// Rows of src[0] that the ids of src[1] name, as f32, or as they are.
inline void get_rows(const Node &node, Part &part) {
    const Operand &table = node.src[0], &ids = node.src[1], &out = node.out;
    if (!good_ids(ids, table.ne[1], part)) return;
    const Span rows = share(row_count(out), part);
    const PlainRows plain(table, part.scratch + part.thread * PlainRows::size(table, 1));
    for (int64_t row = rows.first; row < rows.last; row++) {
        if (give_up(part, row)) return;
        const Place p = place(out, row);
        const int64_t id = id_at(ids, p.i1, p.i2, p.i3);
        if (id == NO_ROW) {
            std::memset(at(out, p), 0, (size_t)bytes_of(out.type, out.ne[0]));
            continue;
        }
        // Copy the row, out of its panel if need be, or decode it.
        const char *from = plain.get(id, 1, p.i2, p.i3);
        if (out.type == table.type) {
            std::memcpy(at(out, p), from, (size_t)bytes_of(out.type, out.ne[0]));
        } else {
            row_type(table.type)->decode(from, 0, out.ne[0], (float *)at(out, p));
        }
    }
}

// f32 as numbers or blocks without gaps.
inline void write_values(int type, const float *values, int64_t n, char *out) {
    if (is_plain(type)) return store_row(type, values, n, out, type_size(type)->size);
    encoder(type).encode(values, nullptr, n, (byte *)out);
}

// Rows of src[0] to where the ids of src[1] say. Threads share columns, not rows: where two ids are equal, the
// same row wins in all columns.
inline void set_rows(const Node &node, Part &part) {
    const Operand &rows = node.src[0], &ids = node.src[1], &out = node.out;
    if (!good_ids(ids, out.ne[1], part)) return;
    const int64_t block = type_size(out.type)->block;
    const Span columns = share(out.ne[0], part, block > 32 ? block : 32);
    for (int64_t row = 0; row < row_count(rows) && columns.first < columns.last; row++) {
        if (give_up(part, row)) return;
        const Place p = place(rows, row);
        const int64_t id = id_at(ids, p.i1, p.i2 % ids.ne[1], p.i3 % ids.ne[2]);
        if (id == NO_ROW) continue;
        char *target = at(out, id, p.i2, p.i3) + bytes_of(out.type, columns.first);
        write_values(out.type, (const float *)at(rows, p) + columns.first, columns.last - columns.first, target);
    }
}

// Rows of src[0] plus those of src[1] that the ids of src[2] name.
inline void add_rows(const Node &node, Part &part) {
    const Operand &a = node.src[0], &table = node.src[1], &ids = node.src[2];
    if (!good_ids(ids, table.ne[1], part)) return;
    each_tile(node.out, part, [&](const Place &p, int64_t first, int64_t n) {
        const float *x = (const float *)at(a, p) + first;
        float *z = (float *)at(node.out, p) + first;
        const int64_t id = id_at(ids, p.i1, p.i2, 0);
        if (id == NO_ROW) return (void)std::memmove(z, x, (size_t)n * 4);
        const float *y = (const float *)at(table, id, 0, 0) + first;
        EACH_VECTOR(i, count, n) store_some(z + i, vadd(load_some(x + i, count), load_some(y + i, count)), count);
    });
}

// `n` numbers of `size` bytes, whatever they are.
inline void copy_numbers(const char *from, int64_t from_step, char *to, int64_t to_step, int64_t n, int64_t size) {
    if (from_step == size && to_step == size) return (void)std::memmove(to, from, (size_t)(n * size));
    for (int64_t i = 0; i < n; i++) std::memcpy(to + i * to_step, from + i * from_step, (size_t)size);
}

// Element by element, tensors of one shape. Of one type as they are; others by way of f32.
inline void copy(const Node &node, Part &part) {
    const Operand &x = node.src[0], &out = node.out;
    const TypeSize &size = *type_size(out.type);
    each_tile(out, part, [&](const Place &p, int64_t first, int64_t n) {
        const char *from = at(x, p);
        char *to = at(out, p);
        if (x.type == out.type && size.block > 1) {
            std::memmove(to + bytes_of(x.type, first), from + bytes_of(x.type, first), (size_t)bytes_of(x.type, n));
        } else if (x.type == out.type) {
            copy_numbers(from + first * x.nb[0], x.nb[0], to + first * out.nb[0], out.nb[0], n, size.size);
        } else {
            // To f32, then to the type of the result; numbers may have gaps, blocks have none.
            float room[TILE];
            const float *values = room;
            if (is_plain(x.type)) values = some_of_row(x, from, first, n, room);
            else row_type(x.type)->decode(from, first, n, room);
            if (is_plain(out.type)) store_row(out.type, values, n, to + first * out.nb[0], out.nb[0]);
            else write_values(out.type, values, n, to + bytes_of(out.type, first));
        }
    });
}

// Copies of src[0] side by side, of any type of number.
inline void repeat(const Node &node, Part &part) {
    const Operand &x = node.src[0], &out = node.out;
    const int64_t size = type_size(out.type)->size, period = x.ne[0];
    each_tile(out, part, [&](const Place &p, int64_t first, int64_t n) {
        const char *from = at_repeated(x, p);
        char *to = at(out, p) + first * out.nb[0];
        for (int64_t done = 0, count; done < n; done += count) {
            const int64_t start = (first + done) % period;
            count = period - start < n - done ? period - start : n - done;
            copy_numbers(from + start * x.nb[0], x.nb[0], to + done * out.nb[0], out.nb[0], count, size);
        }
    });
}

inline bool writable(int type) { return is_plain(type) || encoder(type).encode != nullptr; }

inline int64_t copy_scratch(const Node &node) {
    const int from = node.src[0].type, to = node.out.type;
    return from == to || (row_type(from) != nullptr && writable(to)) ? 0 : -1;
}

} // namespace
