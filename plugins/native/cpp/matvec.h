// Products with one row of x, and what follows them: a bias, and a gated unit with the product of a second matrix. Ids
// may choose the matrices, for experts of one token.
#pragma once

#include "copy.h"
#include "mul_mat.h"

namespace {

constexpr int64_t ROWS_TOGETHER = 256; // of w, before those of a second: the memory is read best in long streams

// A matrix, its bias, and the row of x as its rows need it. Where x stays f32, `room` is for rows out of panels.
struct Side {
    const Operand &w, &bias;
    const ByteProduct *rounding; // null where x is not rounded to eight bits
    const bool halves;       // whether x is rounded to f16
    char *room;

    Side(const Operand &w, const Operand &bias, bool rounds, char *room)
        : w(w), bias(bias), rounding(rounds ? byte_product_of(w.type) : nullptr), halves(in_halves(w, rounds)),
          room(room) {}

    static int64_t size(const Operand &w) {
        const int64_t rows = aligned(rounded_size(w.ne[0])), plain = PlainRows::size(w, AT_ONCE);
        const int64_t most = rows > plain ? rows : plain, half = halves_size(w.ne[0]);
        return most > half ? most : half;
    }

    // Returns the factor of sums with x in f16; 0 where x is not in it.
    float prepare(const float *x) const {
        if (rounding != nullptr) (in_panels(w) ? rounding->round_for_panels : rounding->round)(x, w.ne[0], room);
        return halves ? round_to_halves(w.type, x, w.ne[0], (uint16_t *)room) : 0;
    }

    // out = rows [first, first + count) of matrix `e`, times x, plus the bias; zeros without a matrix.
    void multiply(const float *x, float factor, int64_t e, int64_t first, int64_t count, float *out) const {
        if (e == NO_ROW) return (void)std::memset(out, 0, (size_t)count * 4);
        // Panels with x in bytes; rows with x in f16; rows, taken out of panels if need be, with x in bytes or f32.
        const int64_t k = w.ne[0], step = w.nb[1];
        if (rounding != nullptr && in_panels(w)) {
            for (int64_t r = 0; r < count; r += PANEL_ROWS) rounding->panel(at(w, first + r, e, 0), room, k, out + r);
        } else if (factor != 0) {
            dots_of_halves(w.type, at(w, first, e, 0), count, (const uint16_t *)room, k, factor, out);
        } else {
            const PlainRows plain(w, room);
            for (int64_t r = 0; r < count; r += AT_ONCE) {
                const int64_t some = count - r < AT_ONCE ? count - r : AT_ONCE;
                const char *rows = plain.get(first + r, some, e, 0);
                if (rounding != nullptr) rounding->rows(rows, step, some, room, k, out + r);
                else if (some == AT_ONCE) row_type(w.type)->dot4(rows, step, x, k, out + r);
                else for (int64_t i = 0; i < some; i++) row_type(w.type)->dot(rows + i * step, 0, x, k, out + r + i);
            }
        }
        if (bias.type == NO_TYPE) return;
        const float *more = (const float *)at(bias, e, 0, 0) + first;
        for (int64_t i = 0; i < count; i++) out[i] += more[i];
    }
};

// Bytes for one thread: x as f32, and what each of two matrices needs.
inline int64_t matvec_room(const Node &node) {
    const int64_t second = node.src[4].type == NO_TYPE ? 0 : Side::size(node.src[4]);
    return aligned(node.src[0].ne[0] * 4) + Side::size(node.src[0]) + second;
}

inline int64_t matvec_scratch(const Node &node, int threads) { return threads * matvec_room(node); }

inline Turns turns_of_matvec(const Node &node, int64_t slots, const Part &part) {
    const Operand &w = node.src[0], &other = node.src[4];
    const bool paired = other.type != NO_TYPE;
    const int64_t step = paired && in_panels(other) ? PANEL_ROWS : rows_at_once(w);
    return turns_of_rows(w.ne[1] * slots, row_step(w) + (paired ? row_step(other) : 0), step, part);
}

// src: w, x, ids, bias, second w, its bias; i[0] as for MUL_MAT, i[1] the unit and f its parameters. Without ids there
// is one matrix.
inline void matvec(const Node &node, Part &part) {
    const Operand &w = node.src[0], &x = node.src[1], &ids = node.src[2], &out = node.out;
    const bool chosen = ids.type != NO_TYPE, paired = node.src[4].type != NO_TYPE;
    if (chosen && !good_ids(ids, w.ne[2], part)) return;
    const int64_t k = w.ne[0], n = w.ne[1], slots = chosen ? ids.ne[0] : 1;
    float *row = (float *)(part.scratch + part.thread * matvec_room(node));
    char *room = (char *)row + aligned(k * 4);
    const Side first(w, node.src[3], node.i[0], room);
    // Of one type and layout, both matrices need x in the same way.
    const bool alike = node.src[4].type == w.type && node.src[4].layout == w.layout;
    const Side second(node.src[4], node.src[5], node.i[0], alike ? room : room + Side::size(w));
    Turns turns = turns_of_matvec(node, slots, part);
    int64_t ready = -1;
    float factor = 0, second_factor = 0;
    for (Span turn{0, 0}; !part.stopped() && turns.next(turn);) {
        for (int64_t item = turn.first, count; item < turn.last; item += count) {
            const int64_t slot = item / n, start = item % n;
            const int64_t left = n - start < turn.last - item ? n - start : turn.last - item;
            count = left < ROWS_TOGETHER ? left : ROWS_TOGETHER;
            // Prepare the row of x of this slot, unless the slot before has prepared it.
            if (ready != slot % x.ne[1]) {
                ready = slot % x.ne[1];
                read_row(x, {ready, 0, 0}, row);
                factor = first.prepare(row);
                if (paired) second_factor = alike ? factor : second.prepare(row);
            }
            // Products with the rows of w, then with those of the second matrix; the gated unit joins them.
            const int64_t e = chosen ? id_at(ids, slot, 0, 0) : 0;
            float a[ROWS_TOGETHER], b[ROWS_TOGETHER];
            first.multiply(row, factor, e, start, count, a);
            if (paired) {
                second.multiply(row, second_factor, e, start, count, b);
                JOININGS[node.i[1]].compute(a, b, count, node.f, a);
            }
            std::memcpy(at(out, slot, 0, 0) + start * 4, a, (size_t)count * 4);
        }
    }
}

} // namespace
