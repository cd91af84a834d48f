// Many rows of x where the processor multiplies whole tiles (AMX): w and x as bf16, sums in f32.
//
// A tile of x holds 16 rows of 32 values, a tile of w 16 pairs of values of 16 rows, and an instruction adds their
// products to 16 x 16 sums. The values of w are those of the file, rounded once: no scales are left for the sums.
#pragma once

#include "product_bytes_panels.h"

#if defined(__AMX_BF16__)
#define TP_TILES // the level multiplies tiles

namespace {

constexpr int TILE_ROWS = 16, TILE_DEPTH = 32; // of x; a tile of w has 16 columns of 16 pairs
constexpr int64_t MOST_PANELS = 4;             // of w that meet a tile of x in turns

inline int64_t tiled(int64_t n, int64_t step) { return (n + step - 1) / step * step; }

// Fills a panel [depth / 2, COLUMNS], each element a pair of bf16, from `columns` rows of a matrix.
typedef void (*Fill)(const Operand &w, const char *matrix, int64_t column, int64_t columns, int64_t k0, int64_t depth,
                     char *room, float *panel);

// f16 and bf16, any number of them: behind the last are zeros.
inline void fill_with_numbers(const Operand &w, const char *matrix, int64_t column, int64_t columns, int64_t k0,
                              int64_t depth, char *, float *panel) {
    read_panel<Bf16Pairs>(row_type(w.type), matrix + column * w.nb[1], w.nb[1], columns, k0, depth, panel);
    const int64_t held = held_of<Bf16Pairs>(depth), all = tiled(depth, TILE_DEPTH) / 2;
    std::memset(panel + held * COLUMNS, 0, (size_t)((all - held) * COLUMNS * 4));
}

// The same factor of a column for each of its four codes that lie side by side: of columns 4 i to 4 i + 3.
inline vf for_fours(vf factors, int i) {
    const __m512i four = _mm512_set_epi32(3, 3, 3, 3, 2, 2, 2, 2, 1, 1, 1, 1, 0, 0, 0, 0);
    return _mm512_permutexvar_ps(_mm512_add_epi32(four, iset(4 * i)), factors);
}

// Codes of a panel, scaled and rounded to bf16.
template <int TYPE> void scale_panel8(const Panel8<part_of<TYPE>()> &codes, int64_t depth, float *panel) {
    constexpr int PART = part_of<TYPE>(), LANES = 16;
    // Of two vectors, each with two pairs of a column side by side, the first pairs and the second.
    const __m512i first = _mm512_set_epi32(30, 28, 26, 24, 22, 20, 18, 16, 14, 12, 10, 8, 6, 4, 2, 0);
    const __m512i second = _mm512_add_epi32(first, iset(1));
    for (int64_t p = 0; p < depth / PART; p++) {
        for (int64_t c = 0; c < COLUMNS; c += LANES) {
            const vf d = vload(codes.d + p * COLUMNS + c);
            // A stored code is too large by EXCESS.
            vf less = vmul(d, vset(-EXCESS<TYPE>));
            if (Block<TYPE>::MIN) less = vadd(less, vload(codes.m + p * COLUMNS + c));
            vf scales[4], minima[4];
            for (int i = 0; i < 4; i++) scales[i] = for_fours(d, i), minima[i] = for_fours(less, i);
            const uint8_t *from = codes.codes + (p * PART * COLUMNS + 4 * c);
            float *to = panel + p * PART / 2 * COLUMNS + c;
            for (int k = 0; k < PART; k += 4, from += 4 * COLUMNS, to += 2 * COLUMNS) {
                vf values[4];
#pragma GCC unroll 4
                for (int i = 0; i < 4; i++) {
                    const __m128i some = _mm_loadu_si128((const __m128i *)(from + 16 * i));
                    values[i] = vfma(ifloat(_mm512_cvtepu8_epi32(some)), scales[i], minima[i]);
                }
                const __m512i low = (__m512i)_mm512_cvtne2ps_pbh(values[1], values[0]);
                const __m512i high = (__m512i)_mm512_cvtne2ps_pbh(values[3], values[2]);
                istore(to, _mm512_permutex2var_epi32(low, first, high));
                istore(to + COLUMNS, _mm512_permutex2var_epi32(low, second, high));
            }
        }
    }
}

// Blocks: `Source` is InRows8 or InPanels8. What it reads at once stays in the first-level cache.
template <class Source>
void fill_with_blocks(const Operand &w, const char *matrix, int64_t column, int64_t columns, int64_t k0, int64_t depth,
                      char *room, float *panel) {
    constexpr int TYPE = Source::TYPE;
    const Panel8<part_of<TYPE>()> codes(room, DEPTH);
    for (int64_t i = 0; i < depth; i += DEPTH) {
        const int64_t some = depth - i < DEPTH ? depth - i : DEPTH;
        Source::read(w, matrix, column, columns, k0 + i, some, codes);
        scale_panel8<TYPE>(codes, some, panel + i / 2 * COLUMNS);
    }
}

// The memory of a product. Threads share x in tiles: for each 16 rows of a matrix, 32 values of each, and so on. Each
// has a row of x, its panels of w, and what fills them.
struct TiledRoom {
    int64_t depth, block, matrix, x; // values of a panel's row; bytes of 16 rows of x, of a matrix, of all
    int64_t row, panel, filling, own;

    explicit TiledRoom(const Node &node) {
        const int64_t k = node.src[1].ne[0], m = node.src[1].ne[1];
        depth = k < PANEL ? tiled(k, TILE_DEPTH) : PANEL;
        block = tiled(k, TILE_DEPTH) * TILE_ROWS * 2, matrix = tiled(m, TILE_ROWS) / TILE_ROWS * block;
        x = node.src[1].ne[2] * node.src[1].ne[3] * matrix;
        row = aligned(tiled(k, TILE_DEPTH) * 4), panel = depth / 2 * COLUMNS * 4, filling = Panel8<16>::size(DEPTH);
        own = row + MOST_PANELS * panel + filling;
    }
};

inline int64_t tiles_scratch(const Node &node, int threads) {
    const TiledRoom room(node);
    return room.x + threads * room.own;
}

// x as tiles; behind its last value and row are zeros.
inline void pack_tiles(const Operand &x, const TiledRoom &room, float *row, Part &part) {
    const int64_t k = x.ne[0], m = x.ne[1], padded = tiled(m, TILE_ROWS);
    const Span rows = share(padded * x.ne[2] * x.ne[3], part);
    for (int64_t r = rows.first; r < rows.last; r++) {
        const int64_t matrix = r / padded, i1 = r % padded, values = i1 < m ? k : 0;
        if (values > 0) read_held<Bf16Pairs>(x, {i1, matrix % x.ne[2], matrix / x.ne[2]}, row);
        std::memset((char *)row + values * 2, 0, (size_t)(tiled(k, TILE_DEPTH) - values) * 2);
        char *to = part.scratch + matrix * room.matrix + i1 / TILE_ROWS * room.block + i1 % TILE_ROWS * TILE_DEPTH * 2;
        for (int64_t i = 0; i < k; i += TILE_DEPTH, to += TILE_ROWS * TILE_DEPTH * 2)
            std::memcpy(to, (const char *)row + i * 2, TILE_DEPTH * 2);
    }
}

// The registers of tiles while a thread multiplies.
class Tiles {
  public:
    Tiles() {
        struct {
            uint8_t palette, first, unused[14];
            uint16_t bytes[16];
            uint8_t rows[16];
        } shapes{};
        static_assert(sizeof shapes == 64, "as the processor reads it");
        shapes.palette = 1;
        for (int i = 0; i < 8; i++) shapes.bytes[i] = TILE_DEPTH * 2, shapes.rows[i] = TILE_ROWS;
        __asm__ volatile("" : : "r"(&shapes) : "memory");
        _tile_loadconfig(&shapes);
    }
    ~Tiles() { _tile_release(); }
    Tiles(const Tiles &) = delete;
    Tiles &operator=(const Tiles &) = delete;
};

// sums [16 BLOCKS, COLUMNS] = tiles of x, `block` bytes from 16 rows to the next, times a panel.
template <int BLOCKS>
void multiply_tiles(int64_t depth, const char *x, int64_t block, const float *w, float *sums, Next &soon) {
    static_assert(COLUMNS == 2 * TILE_ROWS, "a panel is two tiles wide");
    constexpr int64_t STEP = COLUMNS * 4, HALF = TILE_ROWS * COLUMNS;
    __asm__ volatile("" : : : "memory"); // GCC does not say of loads of tiles that they read memory
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    for (int64_t k = 0; k < depth; k += TILE_DEPTH, x += TILE_ROWS * TILE_DEPTH * 2, w += TILE_DEPTH / 2 * COLUMNS) {
        soon.ask();
        _tile_loadd(4, x, TILE_DEPTH * 2);
        _tile_loadd(6, w, STEP);
        _tile_loadd(7, w + TILE_ROWS, STEP);
        _tile_dpbf16ps(0, 4, 6);
        _tile_dpbf16ps(1, 4, 7);
        if (BLOCKS == 1) continue;
        _tile_loadd(5, x + block, TILE_DEPTH * 2);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
    }
    _tile_stored(0, sums, STEP);
    _tile_stored(1, sums + TILE_ROWS, STEP);
    if (BLOCKS == 1) return;
    _tile_stored(2, sums + HALF, STEP);
    _tile_stored(3, sums + HALF + TILE_ROWS, STEP);
}

inline void mul_mat_tiles(const Node &node, Fill fill, Part &part) {
    const Operand &w = node.src[0], &x = node.src[1], &out = node.out;
    const int64_t k = w.ne[0], m = x.ne[1];
    const TiledRoom room(node);
    char *own = part.scratch + room.x + part.thread * room.own;
    float *panels = (float *)(own + room.row);
    char *filling = own + room.own - room.filling;
    alignas(64) float sums[2 * TILE_ROWS * COLUMNS];
    const auto width = [](int64_t c, int64_t left) { return left - c < COLUMNS ? left - c : COLUMNS; };
    pack_tiles(x, room, (float *)own, part);
    if (!part.barrier()) return;
    // Turns of several panels, and yet some turns for each thread.
    const int64_t each = (w.ne[1] + COLUMNS - 1) / COLUMNS * x.ne[2] * x.ne[3] / (4 * part.threads);
    const int64_t together = each < 1 ? 1 : each < MOST_PANELS ? each : MOST_PANELS;
    const Tiles tiles;
    PanelTurns turns(node, together * COLUMNS, part);
    for (PanelTurn turn; turns.next(turn);) {
        const int64_t first = turn.column, left = turn.columns;
        const char *weights = at(w, 0, turn.w2, turn.w3);
        for (int64_t k0 = 0; k0 < k; k0 += room.depth) {
            const int64_t depth = k - k0 < room.depth ? k - k0 : room.depth, padded = tiled(depth, TILE_DEPTH);
            for (int64_t c = 0; c < left; c += COLUMNS)
                fill(w, weights, first + c, width(c, left), k0, depth, filling, panels + c * room.depth / 2);
            const char *values = part.scratch + turn.matrix * room.matrix + k0 * TILE_ROWS * 2;
            const int64_t steps = tiled(left, COLUMNS) / COLUMNS * padded / TILE_DEPTH;
            Next soon = next_of_panel(w, weights, first, left, k0, depth, steps);
            for (int64_t j = 0; j < m; j += 2 * TILE_ROWS, values += 2 * room.block) {
                if (part.stopped()) return;
                const int64_t rows = m - j < 2 * TILE_ROWS ? m - j : 2 * TILE_ROWS;
                const auto multiply = rows > TILE_ROWS ? multiply_tiles<2> : multiply_tiles<1>;
                for (int64_t c = 0; c < left; c += COLUMNS) {
                    multiply(padded, values, room.block, panels + c * room.depth / 2, sums, soon);
                    float *results = (float *)at(out, j, turn.i2, turn.i3) + first + c;
                    write_sums(sums, rows, width(c, left), results, out.nb[1] / 4, k0 > 0);
                }
            }
        }
    }
}

} // namespace

#endif
