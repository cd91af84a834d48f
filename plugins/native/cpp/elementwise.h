// Element by element: functions of one tensor, and of two of which the second repeats. Types are f32, f16 and bf16, in
// any layout.
#pragma once

#include "functions.h"
#include "rows.h"

namespace {

constexpr int64_t TILE = 512; // elements that are computed at a time

// Calls `each` with this thread's parts of the result: a row, its first element, how many there are.
template <class Each> void each_tile(const Operand &out, Part &part, Each each) {
    const int64_t tiles = (out.ne[0] + TILE - 1) / TILE;
    const Span all = share(row_count(out) * tiles, part);
    for (int64_t item = all.first; item < all.last; item++) {
        if (give_up(part, item)) return;
        const int64_t first = item % tiles * TILE, left = out.ne[0] - first;
        each(place(out, item / tiles), first, left < TILE ? left : TILE);
    }
}

// Where results go: to their place, or to `room` until `finish` converts them.
struct Target {
    const Operand &out;
    char *start;
    float *values;

    Target(const Operand &out, const Place &p, int64_t first, float *room) : out(out) {
        start = at(out, p) + first * out.nb[0];
        values = is_dense_f32(out) ? (float *)start : room;
    }
    void finish(int64_t n) const {
        if (!is_dense_f32(out)) store_row(out.type, values, n, start, out.nb[0]);
    }
};

// i[0] names the function, f are its parameters.
inline void map(const Node &node, Part &part) {
    const Operand &x = node.src[0];
    const auto function = MAPPINGS[node.i[0]].compute;
    each_tile(node.out, part, [&](const Place &p, int64_t first, int64_t n) {
        float from[TILE], to[TILE];
        const Target target(node.out, p, first, to);
        // What fills a tensor has no source.
        const float *xs = x.type == NO_TYPE ? to : some_of_row(x, at(x, p), first, n, from);
        function(xs, n, node.f, target.values);
        target.finish(n);
    });
}

// As map, of two tensors; the second repeats.
inline void join(const Node &node, Part &part) {
    const Operand &a = node.src[0], &b = node.src[1];
    const auto function = JOININGS[node.i[0]].compute;
    const int64_t period = b.ne[0];
    each_tile(node.out, part, [&](const Place &p, int64_t first, int64_t n) {
        float left[TILE], right[TILE], to[TILE];
        const Target target(node.out, p, first, to);
        const float *xs = some_of_row(a, at(a, p), first, n, left);
        const char *row = at_repeated(b, p);
        if (period == 1) {
            // One number for the whole row.
            const float same = number_at(b.type, row);
            for (int64_t i = 0; i < n; i++) right[i] = same;
            function(xs, right, n, node.f, target.values);
        } else {
            // Pieces of the row of b: up to its end, then from its beginning again.
            for (int64_t done = 0, count; done < n; done += count) {
                const int64_t start = (first + done) % period;
                count = period - start < n - done ? period - start : n - done;
                const float *ys = some_of_row(b, row, start, count, right);
                function(xs + done, ys, count, node.f, target.values + done);
            }
        }
        target.finish(n);
    });
}

// x where it may be seen, f[0] where column > i[0] + row.
inline void mask(const Node &node, Part &part) {
    const Operand &x = node.src[0];
    each_tile(node.out, part, [&](const Place &p, int64_t first, int64_t n) {
        float from[TILE], to[TILE];
        const Target target(node.out, p, first, to);
        const float *xs = some_of_row(x, at(x, p), first, n, from);
        const int64_t seen = node.i[0] + p.i1 + 1 - first;
        for (int64_t i = 0; i < n; i++) target.values[i] = i < seen ? xs[i] : node.f[0];
        target.finish(n);
    });
}

} // namespace
