// Products of rows of w with many rows of x: panels of w meet tiles of x.
#pragma once

#include "product_floats_few.h"

namespace {

// Elements of a panel, in fours of bytes: it stays in the second-level cache while all tiles of x pass, and results
// are written once. To add to them again and again is slow where they lie multiples of a page apart.
constexpr int64_t PANEL = 2048;

// Whether the memory is asked for the next weights during all tiles of x, not during the first only. On two threads of
// a Zen 3, which has fewer registers and so more tiles, weights in f16 beyond the caches took 0.7 to 0.85 of the time
// with 34 and 130 rows of x. Other levels have not been measured.
#if defined(__AVX2__) && !defined(__AVX512F__)
constexpr bool SPREAD = true;
#else
constexpr bool SPREAD = false;
#endif

template <class Held> int64_t held_of(int64_t k) { return (k + Held::HELD - 1) / Held::HELD; }

// Bytes of scratch: x packed, and for each thread a panel and a tile of x.
template <class Held> int64_t floats_many_scratch(const Node &node, int threads) {
    const int64_t k = node.src[1].ne[0], held = held_of<Held>(k);
    const int64_t panel = (held < PANEL ? held : PANEL) * COLUMNS * 4;
    const int64_t plain = PlainRows::size(node.src[0], COLUMNS);
    return aligned(row_count(node.src[1]) * held * 4) + threads * (aligned(panel) + ROWS * aligned(k * 4) + plain);
}

// Rows of x side by side, tile by tile: the first four bytes of all rows of a tile, then the next. `room` holds the
// rows of one tile.
template <class Held> void pack(const Operand &x, float *packed, float *room, Part &part) {
    const int64_t k = x.ne[0], held = held_of<Held>(k), row_size = aligned(k * 4) / 4;
    const int64_t m = x.ne[1], tile = rows_of_tile(m), tiles = (m + tile - 1) / tile;
    const Span all = share(tiles * x.ne[2] * x.ne[3], part);
    for (int64_t item = all.first; item < all.last; item++) {
        const int64_t matrix = item / tiles, i1 = item % tiles * tile, height = m - i1 < tile ? m - i1 : tile;
        const Place p{i1, matrix % x.ne[2], matrix / x.ne[2]};
        const float *rows = (const float *)at(x, p);
        int64_t step = x.nb[1] / 4;
        if (Held::HELD > 1 || !is_plain_rows(x) || x.nb[1] % 4) {
            for (int64_t r = 0; r < height; r++) read_held<Held>(x, {i1 + r, p.i2, p.i3}, room + r * row_size);
            rows = room, step = row_size;
        }
        interleave(rows, step, height, held, packed + (matrix * m + i1) * held);
    }
}

// `n` elements of a row of w, from `first` on, as a panel holds them.
template <class Held> void read_some(const RowType *type, const char *row, int64_t first, int64_t n, float *out) {
    if (Held::HELD == 1) return type->decode(row, first, n, out);
    if (n % Held::HELD) out[n / Held::HELD] = 0;
#if defined(__AVX512BF16__)
    if (type->type == F16) return round_to_bf16((const uint16_t *)row + first, n, (uint16_t *)out);
#endif
    std::memcpy(out, row + first * type->size, n * type->size);
}

// `depth` elements, from `k0` on, of rows of w, `step` bytes apart; past the last row, any row does: its results
// are not stored.
template <class Held>
void read_panel(const RowType *type, const char *rows, int64_t step, int64_t columns, int64_t k0, int64_t depth,
                float *panel) {
    constexpr int64_t SOME = DEPTH * Held::HELD;
    alignas(64) float some[COLUMNS * DEPTH];
    for (int64_t i = 0; i < depth; i += SOME) {
        const int64_t n = depth - i < SOME ? depth - i : SOME;
        const int64_t size = n / type->block * type->size, done = (k0 + i) / type->block * type->size;
        for (int64_t c = 0; c < COLUMNS; c++) {
            const char *row = rows + (c < columns ? c : columns - 1) * step;
            // Rows are read a little at a time, which processors do not foresee. `SPREAD` has asked for them already.
            for (int64_t next = 0; !SPREAD && next < size; next += 64) __builtin_prefetch(row + done + size + next);
            read_some<Held>(type, row, k0 + i, n, some + c * DEPTH);
        }
        transpose(some, held_of<Held>(n), panel + i / Held::HELD * COLUMNS);
    }
}

// Turns in which the next weights are asked for while `tiles` tiles pass, each with `steps` of them.
inline int64_t turns_of_tiles(int64_t steps, int64_t tiles) { return SPREAD ? steps * tiles : steps; }

// What is read after the pieces [k0, k0 + depth) of rows of a matrix: the rest of them, or the rows that follow.
inline Next next_of_panel(const Operand &w, const char *matrix, int64_t column, int64_t columns, int64_t k0,
                          int64_t depth, int64_t turns) {
    const TypeSize &type = *type_size(w.type);
    const int64_t k = w.ne[0], from = k0 + depth < k ? k0 + depth : 0, left = k - from < depth ? k - from : depth;
    const int64_t together = in_panels(w) ? PANEL_ROWS : 1, step = w.nb[1] * together;
    // Nothing may lie there, and the step of a single row may be any number.
    const uintptr_t first = (uintptr_t)matrix + (uintptr_t)(from > 0 ? column : column + columns) * (uintptr_t)w.nb[1];
    const char *rows = (const char *)(first + (uintptr_t)(from / type.block * type.size * together));
    return Next(rows, step, left / type.block * type.size * together, (columns + together - 1) / together, turns);
}

template <class Held> void mul_mat_floats_many(const Node &node, Part &part) {
    const Operand &w = node.src[0], &x = node.src[1], &out = node.out;
    const RowType *type = row_type(w.type);
    const int64_t k = w.ne[0], held = held_of<Held>(k), n = w.ne[1], m = x.ne[1], tile = rows_of_tile(m);
    const int64_t all_packed = aligned(row_count(x) * held * 4);
    const int64_t own = (floats_many_scratch<Held>(node, part.threads) - all_packed) / part.threads;
    float *packed = (float *)part.scratch;
    float *room = (float *)(part.scratch + all_packed + part.thread * own), *panel = room + ROWS * aligned(k * 4) / 4;
    const PlainRows plain(w, (char *)room + own - PlainRows::size(w, COLUMNS));
    pack<Held>(x, packed, room, part);
    if (!part.barrier()) return;
    const int64_t panels = (n + COLUMNS - 1) / COLUMNS;
    Turns turns(panels * x.ne[2] * x.ne[3], 1, 1, part);
    for (Span turn; turns.next(turn);) {
        const int64_t item = turn.first, matrix = item / panels, i2 = matrix % x.ne[2], i3 = matrix / x.ne[2];
        const int64_t column = item % panels * COLUMNS, columns = n - column < COLUMNS ? n - column : COLUMNS;
        const char *weights = plain.get(column, columns, i2 / (x.ne[2] / w.ne[2]), i3 / (x.ne[3] / w.ne[3]));
        for (int64_t k0 = 0; k0 < k; k0 += PANEL * Held::HELD) {
            const int64_t depth = k - k0 < PANEL * Held::HELD ? k - k0 : PANEL * Held::HELD;
            read_panel<Held>(type, weights, w.nb[1], columns, k0, depth, panel);
            const int64_t steps = (held_of<Held>(depth) + ASK_EVERY - 1) / ASK_EVERY, tiles = (m + tile - 1) / tile;
            Next soon = next_of_panel(w, weights, 0, columns, k0, depth, turns_of_tiles(steps, tiles));
            for (int64_t j = 0; j < m; j += tile) {
                if (part.stopped()) return;
                const int64_t height = m - j < tile ? m - j : tile;
                const float *xs = packed + (matrix * m + j) * held + k0 / Held::HELD * height;
                float *c = (float *)at(out, j, i2, i3) + column;
                multiply_part<Held>((int)height, held_of<Held>(depth), xs, panel, COLUMNS, c, out.nb[1] / 4, k0 > 0,
                                    columns, in_panels(w) ? nullptr : &soon);
            }
        }
    }
}

} // namespace
