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
#if defined(TP_ONLY_AVX2)
constexpr bool SPREAD = true;
#else
constexpr bool SPREAD = false;
#endif

template <class Held> int64_t held_of(int64_t k) { return (k + Held::HELD - 1) / Held::HELD; }

// Bytes of scratch: x packed, and for each thread a panel, of four bytes at most, and a tile of x.
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
    const int64_t m = x.ne[1], tile = rows_of_tile(m, ROWS), tiles = (m + tile - 1) / tile;
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

#if defined(TP_ONLY_AVX2)
#define TP_HALVES // panels of weights in f16 and bf16 hold those as they are

// Sixteen rows of `n` numbers of 16 bits as columns of a panel.
inline void transpose_halves(const char *const (&rows)[COLUMNS], int64_t n, uint16_t *panel) {
    static_assert(COLUMNS == 16, "the lanes of a vector are columns");
    const auto eight = [&](int64_t row, int64_t k) { return _mm_loadu_si128((const __m128i *)(rows[row] + k * 2)); };
    int64_t k = 0;
    // Squares of 8 x 8, two side by side: interleave pairs of rows, then fours, then eights.
    for (; k + 8 <= n; k += 8, panel += 8 * COLUMNS) {
        __m256i r[8], t[8];
        for (int i = 0; i < 8; i++) r[i] = _mm256_set_m128i(eight(i + 8, k), eight(i, k));
        for (int i = 0; i < 8; i += 2) {
            t[i] = _mm256_unpacklo_epi16(r[i], r[i + 1]);
            t[i + 1] = _mm256_unpackhi_epi16(r[i], r[i + 1]);
        }
        for (int i = 0; i < 8; i += 4) {
            r[i] = _mm256_unpacklo_epi32(t[i], t[i + 2]);
            r[i + 1] = _mm256_unpackhi_epi32(t[i], t[i + 2]);
            r[i + 2] = _mm256_unpacklo_epi32(t[i + 1], t[i + 3]);
            r[i + 3] = _mm256_unpackhi_epi32(t[i + 1], t[i + 3]);
        }
        for (int i = 0; i < 4; i++) {
            __m256i *to = (__m256i *)(panel + 2 * i * COLUMNS);
            _mm256_storeu_si256(to, _mm256_unpacklo_epi64(r[i], r[i + 4]));
            _mm256_storeu_si256(to + 1, _mm256_unpackhi_epi64(r[i], r[i + 4]));
        }
    }
    for (; k < n; k++) {
        for (int c = 0; c < COLUMNS; c++) std::memcpy(panel++, rows[c] + k * 2, 2);
    }
}
#endif

// `depth` elements, from `k0` on, of rows of w, `step` bytes apart; past the last row, any row does: its results
// are not stored.
template <class Held>
void read_panel(const RowType *type, const char *rows, int64_t step, int64_t columns, int64_t k0, int64_t depth,
                float *panel) {
#if defined(TP_HALVES)
    if constexpr (Held::BYTES == 2) {
        const char *all[COLUMNS];
        for (int64_t c = 0; c < COLUMNS; c++) all[c] = rows + (c < columns ? c : columns - 1) * step + k0 * 2;
        return transpose_halves(all, depth, (uint16_t *)panel);
    }
#endif
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

// Some rows of w from row `column` on, for matrix (i2, i3) of x, which is the `matrix`-th; (w2, w3) is that of w.
struct PanelTurn {
    int64_t column, columns, matrix, i2, i3, w2, w3;
};

// All of them, `width` rows at a time, as threads take them.
class PanelTurns {
  public:
    PanelTurns(const Node &node, int64_t width, const Part &part)
        : w_(node.src[0]), x_(node.src[1]), width_(width), panels_((w_.ne[1] + width - 1) / width),
          turns_(panels_ * x_.ne[2] * x_.ne[3], 1, 1, part) {}

    bool next(PanelTurn &turn) {
        Span span;
        if (!turns_.next(span)) return false;
        turn.column = span.first % panels_ * width_;
        turn.columns = w_.ne[1] - turn.column < width_ ? w_.ne[1] - turn.column : width_;
        turn.matrix = span.first / panels_, turn.i2 = turn.matrix % x_.ne[2], turn.i3 = turn.matrix / x_.ne[2];
        turn.w2 = turn.i2 / (x_.ne[2] / w_.ne[2]), turn.w3 = turn.i3 / (x_.ne[3] / w_.ne[3]);
        return true;
    }

  private:
    const Operand &w_, &x_;
    const int64_t width_, panels_;
    Turns turns_;
};

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
    const int64_t k = w.ne[0], held = held_of<Held>(k), m = x.ne[1], tile = rows_of_tile(m, ROWS);
    const int64_t all_packed = aligned(row_count(x) * held * 4);
    const int64_t own = (floats_many_scratch<Held>(node, part.threads) - all_packed) / part.threads;
    float *packed = (float *)part.scratch;
    float *room = (float *)(part.scratch + all_packed + part.thread * own), *panel = room + ROWS * aligned(k * 4) / 4;
    const PlainRows plain(w, (char *)room + own - PlainRows::size(w, COLUMNS));
    pack<Held>(x, packed, room, part);
    if (!part.barrier()) return;
    PanelTurns turns(node, COLUMNS, part);
    for (PanelTurn turn; turns.next(turn);) {
        const char *weights = plain.get(turn.column, turn.columns, turn.w2, turn.w3);
        for (int64_t k0 = 0; k0 < k; k0 += PANEL * Held::HELD) {
            const int64_t depth = k - k0 < PANEL * Held::HELD ? k - k0 : PANEL * Held::HELD;
            read_panel<Held>(type, weights, w.nb[1], turn.columns, k0, depth, panel);
            const int64_t steps = (held_of<Held>(depth) + ASK_EVERY - 1) / ASK_EVERY, tiles = (m + tile - 1) / tile;
            Next soon = next_of_panel(w, weights, 0, turn.columns, k0, depth, turns_of_tiles(steps, tiles));
            for (int64_t j = 0; j < m; j += tile) {
                if (part.stopped()) return;
                const int64_t height = m - j < tile ? m - j : tile;
                const float *xs = packed + (turn.matrix * m + j) * held + k0 / Held::HELD * height;
                float *c = (float *)at(out, j, turn.i2, turn.i3) + turn.column;
                multiply_part<Held>((int)height, held_of<Held>(depth), xs, panel, COLUMNS * Held::BYTES / 4, c,
                                    out.nb[1] / 4, k0 > 0, turn.columns, in_panels(w) ? nullptr : &soon);
            }
        }
    }
}

} // namespace
