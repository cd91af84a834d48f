// Many rows of x where the processor multiplies whole tiles (AMX): w and x as bf16, sums in f32.
//
// A tile of x holds up to 16 rows of 32 values, a tile of w 16 pairs of values of 16 rows, and an instruction adds
// their products to 16 sums of each row of x. It takes time for each row, so all tiles of x have equally many: 34 rows
// are three tiles of 12. The values of w are those of the file, rounded once: no scales are left for the sums.
//
// Panels of w are filled a few steps ahead of the tiles that meet them, because other instructions run while tiles are
// multiplied: SmolLM2 (q4_1 in panels) reads 28 to 40 tokens in 0.80 to 0.85 of the time, a model of 1.1 G weights in
// f16 48 to 128 in 0.85 to 0.95. Blocks in rows become codes of columns first, 256 of each, and came no faster: they
// fill panels before these are multiplied.
#pragma once

#include "product_bytes_panels.h"

#if defined(__AMX_BF16__)
#define TP_TILES // the level multiplies tiles

namespace {

constexpr int TILE_ROWS = 16, TILE_DEPTH = 32;          // of x, at most
constexpr int TILE_COLUMNS = 16;                        // of w and of sums
constexpr int64_t MOST_PANELS = 4;                      // of w that meet a tile of x in turns
constexpr int64_t STEP_SIZE = TILE_DEPTH / 2 * COLUMNS; // of a panel, in pairs: what tiles of x meet at once

// Steps that are filled before one is multiplied, and steps that stay in the room where tiles of x meet each but once.
// Tiles are not loaded from what still waits to be written. On a Xeon a step took 80 ns where all were filled before,
// in the second-level cache; filled one ahead it took 85 ns, two 71, three 66, six 62, and two ahead with room for
// four, which stay in the first-level cache, 46.
constexpr int64_t STEPS_AHEAD = 3, STEPS_HELD = 4;
static_assert((STEPS_HELD & (STEPS_HELD - 1)) == 0 && STEPS_AHEAD < STEPS_HELD, "a step stays until it is multiplied");

inline int64_t tiled(int64_t n, int64_t step) { return (n + step - 1) / step * step; }

// Rows of a matrix as a panel [depth / 2, COLUMNS], each element a pair of bf16: `columns` of them from `column` on,
// their values [k0, k0 + depth). `room` is for codes, once for all panels of a thread.
struct PanelOf {
    const Operand &w;
    const char *matrix;
    int64_t column, columns, k0, depth;
    char *room;
};

// Fills the step of a panel that begins with value `i`; called for all of them in turn.
typedef void (*FillStep)(const PanelOf &of, int64_t i, float *step);
struct Fill {
    FillStep step;
    bool ahead; // whether steps are filled while others are multiplied, not all of them before
};

// f16 and bf16, any number of them: behind the last are zeros.
inline void fill_with_numbers(const PanelOf &of, int64_t i, float *step) {
    const int64_t some = of.depth - i < TILE_DEPTH ? of.depth - i : TILE_DEPTH, held = held_of<Bf16Pairs>(some);
    const char *const rows = of.matrix + of.column * of.w.nb[1];
    read_panel<Bf16Pairs>(row_type(of.w.type), rows, of.w.nb[1], of.columns, of.k0 + i, some, step);
    std::memset(step + held * COLUMNS, 0, (size_t)((TILE_DEPTH / 2 - held) * COLUMNS * 4));
}

// Whether stored codes have seven bits at most, and scales, which are f16 but in mxfp4, can be multiplied by 256.
template <int TYPE> constexpr bool SMALL = TYPE != MXFP4 && Block<TYPE>::MOST + EXCESS<TYPE> < 128;

// Some bytes of a vector as numbers: those that `at` names, by the last byte of each word. Seven bits become the first
// ones of a fraction, (1 + byte / 128) / 2, without being converted.
template <bool SEVEN> vf numbers_at(__m512i bytes, __m512i at) {
    if (!SEVEN) return ifloat(_mm512_maskz_permutexvar_epi8(0x1111111111111111, at, bytes));
    const __m512i halves = iset(0x3f000000), shifted = _mm512_slli_epi32(at, 16);
    return as_floats(_mm512_mask_permutexvar_epi8(halves, 0x4444444444444444, shifted, bytes));
}

// A part of sixteen columns, scaled and rounded to bf16. `fours(v)` has the stored codes 4 v to 4 v + 3 of each column,
// of which a pair goes to a row of the panel, and so do those of the next columns.
template <int TYPE, class Fours> inline void scale_part8(vf d, vf m, const Fours &fours, float *panel) {
    const __m512i columns = _mm512_set_epi32(7, 7, 6, 6, 5, 5, 4, 4, 3, 3, 2, 2, 1, 1, 0, 0);
    const __m512i bytes = _mm512_set_epi32(29, 28, 25, 24, 21, 20, 17, 16, 13, 12, 9, 8, 5, 4, 1, 0);
    // A stored code is too large by EXCESS; as a fraction it is a 256th, and too large by a half.
    constexpr float UNIT = SMALL<TYPE> ? 256 : 1, ABOVE = EXCESS<TYPE> + (SMALL<TYPE> ? 128 : 0);
    const vf least = vfma(d, vset(-ABOVE), m);
    vf scales[2], minima[2];
    for (int i = 0; i < 2; i++) {
        const __m512i half = _mm512_add_epi32(columns, iset(8 * i));
        scales[i] = _mm512_permutexvar_ps(half, vmul(d, vset(UNIT)));
        minima[i] = _mm512_permutexvar_ps(half, least);
    }
#pragma GCC unroll 8
    for (int v = 0; v < part_of<TYPE>() / 4; v++) {
        const __m512i codes = fours(v);
#pragma GCC unroll 2
        for (int pair = 0; pair < 2; pair++, panel += COLUMNS) {
            vf values[2];
            for (int i = 0; i < 2; i++) {
                const __m512i at = _mm512_add_epi32(bytes, iset(32 * i + 2 * pair));
                values[i] = vfma(numbers_at<SMALL<TYPE>>(codes, at), scales[i], minima[i]);
            }
            istore(panel, (__m512i)_mm512_cvtne2ps_pbh(values[1], values[0]));
        }
    }
}

// Blocks in rows, which become codes of columns.
template <int TYPE> void fill_with_rows(const PanelOf &of, int64_t i, float *step) {
    constexpr int64_t PART = part_of<TYPE>(), EACH = COLUMNS * PART;
    const Panel8<PART> codes(of.room, DEPTH);
    if (i % DEPTH == 0) {
        const int64_t some = of.depth - i < DEPTH ? of.depth - i : DEPTH;
        InRows8<TYPE>::read(of.w, of.matrix, of.column, of.columns, of.k0 + i, some, codes);
    }
    for (int64_t part = i; part < i + TILE_DEPTH; part += PART) {
        const int64_t p = part % DEPTH / PART;
        for (int64_t c = 0; c < COLUMNS; c += TILE_COLUMNS) {
            const vf d = vload(codes.d + p * COLUMNS + c);
            const vf m = Block<TYPE>::MIN ? vload(codes.m + p * COLUMNS + c) : vset(0);
            const uint8_t *const from = codes.codes + p * EACH + 4 * c;
            scale_part8<TYPE>(d, m, [&](int v) { return iload(from + v * 4 * COLUMNS); },
                              step + (part - i) / 2 * COLUMNS + c);
        }
    }
}

// Blocks in panels.
template <int TYPE> void fill_with_panels(const PanelOf &of, int64_t i, float *step) {
    static_assert(PANEL_ROWS == TILE_COLUMNS && GROUP == TILE_DEPTH, "a panel is a tile wide, and a tile a group deep");
    constexpr int GROUPS = Block<TYPE>::GROUPS, EACH = GROUP / part_of<TYPE>();
    constexpr int64_t SIZE = Block<TYPE>::SIZE * PANEL_ROWS;
    const int64_t at = (of.k0 + i) / GROUP;
    const int g = (int)(at % GROUPS);
    for (int64_t c = 0; c < COLUMNS; c += TILE_COLUMNS) {
        // Past the last row, any row does.
        const char *const rows = of.matrix + (of.column + (c < of.columns ? c : 0)) * of.w.nb[1];
        const byte *const block = (const byte *)rows + at / GROUPS * SIZE;
        if (g == 0) prefetch((const char *)block, SIZE);
        float *to = step + c;
        for (int h = 0; h < EACH; h++, to += GROUP / EACH / 2 * COLUMNS) {
            vf d, m = vset(0); // of types without minima
            panel_scale<TYPE>(block, g * EACH + h, 0, d, m);
            scale_part8<TYPE>(d, m, [&](int v) { return panel_codes<TYPE>(block, g, h * 8 / EACH + v, 0); }, to);
        }
    }
}

// How panels are filled with blocks: `Source` is InRows8 or InPanels8.
template <class Source> constexpr Fill fill_with_blocks() {
    if constexpr (Source::PANELS) return {fill_with_panels<Source::TYPE>, true};
    else return {fill_with_rows<Source::TYPE>, false};
}

// Panels of rows that follow each other, filled little by little. The room holds all steps, or the last STEPS_HELD.
class Panels {
  public:
    Panels(const Fill &fill, const PanelOf &first, int64_t columns, float *room, bool all)
        : fill_(fill), of_(first), left_(columns), room_(room), mask_(all ? -1 : STEPS_HELD - 1) {
        begin();
        while (left_ > 0 && (!fill.ahead || step_ < STEPS_AHEAD)) fill_step();
    }
    float *at(int64_t step) const { return room_ + (step & mask_) * STEP_SIZE; }
    // The next step, if any is left.
    void fill_step() {
        if (left_ <= 0) return;
        fill_.step(of_, i_, at(step_++));
        i_ += TILE_DEPTH;
        if (i_ < of_.depth) return;
        left_ -= COLUMNS, of_.column += COLUMNS;
        begin();
    }

  private:
    void begin() { i_ = 0, of_.columns = left_ < COLUMNS ? left_ : COLUMNS; }

    const Fill fill_;
    PanelOf of_;
    int64_t left_, i_, step_ = 0; // columns and values of what is filled next; and where
    float *const room_;
    const int64_t mask_;
};

// The memory of a product. Threads share x in tiles: for each few rows of a matrix, 32 values of each, and so on. Each
// has a row of x, its panels of w, and what fills them.
struct TiledRoom {
    int64_t depth, rows;      // values of a panel's row; rows of a tile of x
    int64_t block, matrix, x; // bytes of the tiles of the same rows, of a matrix, of all
    int64_t row, panel, filling, own;

    explicit TiledRoom(const Node &node) {
        const int64_t k = node.src[1].ne[0], m = node.src[1].ne[1];
        depth = k < PANEL ? tiled(k, TILE_DEPTH) : PANEL;
        rows = rows_of_tile(m, TILE_ROWS);
        block = tiled(k, TILE_DEPTH) * rows * 2, matrix = tiled(m, rows) / rows * block;
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
    const int64_t k = x.ne[0], m = x.ne[1], padded = tiled(m, room.rows), tile = room.rows * TILE_DEPTH * 2;
    const Span rows = share(padded * x.ne[2] * x.ne[3], part);
    for (int64_t r = rows.first; r < rows.last; r++) {
        const int64_t matrix = r / padded, i1 = r % padded, values = i1 < m ? k : 0;
        if (values > 0) read_held<Bf16Pairs>(x, {i1, matrix % x.ne[2], matrix / x.ne[2]}, row);
        std::memset((char *)row + values * 2, 0, (size_t)(tiled(k, TILE_DEPTH) - values) * 2);
        char *to = part.scratch + matrix * room.matrix + i1 / room.rows * room.block + i1 % room.rows * TILE_DEPTH * 2;
        for (int64_t i = 0; i < k; i += TILE_DEPTH, to += tile)
            std::memcpy(to, (const char *)row + i * 2, TILE_DEPTH * 2);
    }
}

// The registers of tiles while a thread multiplies: 0 to 3 are sums, 4 and 5 have `rows` of x, 6 and 7 are of w.
class Tiles {
  public:
    explicit Tiles(int64_t rows) {
        struct {
            uint8_t palette, first, unused[14];
            uint16_t bytes[16];
            uint8_t rows[16];
        } shapes{};
        static_assert(sizeof shapes == 64, "as the processor reads it");
        shapes.palette = 1;
        for (int i = 0; i < 8; i++) shapes.bytes[i] = TILE_DEPTH * 2, shapes.rows[i] = TILE_DEPTH / 2;
        for (int i = 0; i < 6; i++) shapes.rows[i] = (uint8_t)rows;
        __asm__ volatile("" : : "r"(&shapes) : "memory");
        _tile_loadconfig(&shapes);
    }
    ~Tiles() { _tile_release(); }
    Tiles(const Tiles &) = delete;
    Tiles &operator=(const Tiles &) = delete;
};

// sums [2, rows, COLUMNS] = two products of a tile of x with the panel of w that begins with `step`. With two BLOCKS,
// the rows of two tiles, one after the other, meet the same panel. With two PANELS, the rows of one tile meet two of
// them, one after the other. With one of each there is one product, which takes nearly as long: each instruction waits
// for sums of the one before.
template <int BLOCKS, int PANELS>
void multiply_tiles(const TiledRoom &room, int64_t steps, const char *x, Panels &panels, int64_t step, float *sums,
                    Next &soon) {
    static_assert(COLUMNS == 2 * TILE_COLUMNS && BLOCKS * PANELS <= 2, "a panel is two tiles wide");
    constexpr int64_t ROW = COLUMNS * 4;
    const int64_t tile = room.rows * TILE_DEPTH * 2, half = room.rows * COLUMNS;
    __asm__ volatile("" : : : "memory"); // GCC does not say of loads of tiles that they read memory
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    for (int64_t s = step; s < step + steps; s++, x += tile) {
        const float *w = panels.at(s);
        soon.ask();
        _tile_loadd(4, x, TILE_DEPTH * 2);
        _tile_loadd(6, w, ROW);
        _tile_loadd(7, w + TILE_COLUMNS, ROW);
        _tile_dpbf16ps(0, 4, 6);
        _tile_dpbf16ps(1, 4, 7);
        panels.fill_step();
        if (BLOCKS == 2) {
            _tile_loadd(5, x + room.block, TILE_DEPTH * 2);
            _tile_dpbf16ps(2, 5, 6);
            _tile_dpbf16ps(3, 5, 7);
        }
        if (PANELS == 2) {
            w = panels.at(s + steps);
            _tile_loadd(6, w, ROW);
            _tile_loadd(7, w + TILE_COLUMNS, ROW);
            _tile_dpbf16ps(2, 4, 6);
            _tile_dpbf16ps(3, 4, 7);
        }
    }
    _tile_stored(0, sums, ROW);
    _tile_stored(1, sums + TILE_COLUMNS, ROW);
    if (BLOCKS * PANELS == 1) return;
    _tile_stored(2, sums + half, ROW);
    _tile_stored(3, sums + half + TILE_COLUMNS, ROW);
}

// How many panels a thread takes at once: those with which all threads end together, and have two turns or more.
inline int64_t panels_at_once(int64_t panels, int64_t threads) {
    int64_t best = 1, least = INT64_MAX;
    for (int64_t each = 1; each <= MOST_PANELS && (each == 1 || each * 2 * threads <= panels); each++) {
        const int64_t longest = (panels + each * threads - 1) / (each * threads) * each;
        if (longest <= least) best = each, least = longest;
    }
    return best;
}

inline void mul_mat_tiles(const Node &node, const Fill &fill, Part &part) {
    const Operand &w = node.src[0], &x = node.src[1], &out = node.out;
    const int64_t k = w.ne[0], m = x.ne[1];
    const TiledRoom room(node);
    char *own = part.scratch + room.x + part.thread * room.own;
    float *filled = (float *)(own + room.row);
    char *for_codes = own + room.own - room.filling;
    alignas(64) float sums[2 * TILE_ROWS * COLUMNS];
    const auto width = [](int64_t c, int64_t left) { return left - c < COLUMNS ? left - c : COLUMNS; };
    pack_tiles(x, room, (float *)own, part);
    if (!part.barrier()) return;
    const int64_t together = panels_at_once((w.ne[1] + COLUMNS - 1) / COLUMNS * x.ne[2] * x.ne[3], part.threads);
    const int64_t passes = (m + 2 * room.rows - 1) / (2 * room.rows);
    const bool is_met_once = fill.ahead && passes == 1; // each step of w
    const Tiles tiles(room.rows);
    PanelTurns turns(node, together * COLUMNS, part);
    for (PanelTurn turn; turns.next(turn);) {
        const int64_t first = turn.column, left = turn.columns;
        const char *weights = at(w, 0, turn.w2, turn.w3);
        for (int64_t k0 = 0; k0 < k; k0 += room.depth) {
            const int64_t depth = k - k0 < room.depth ? k - k0 : room.depth, padded = tiled(depth, TILE_DEPTH);
            const char *values = part.scratch + turn.matrix * room.matrix + k0 * room.rows * 2;
            const int64_t steps = padded / TILE_DEPTH, all = tiled(left, COLUMNS) / COLUMNS * steps;
            Next soon = next_of_panel(w, weights, first, left, k0, depth, all * passes);
            const auto write = [&](const float *from, int64_t j, int64_t rows, int64_t c) {
                float *results = (float *)at(out, j, turn.i2, turn.i3) + first + c;
                write_sums(from, rows, width(c, left), results, out.nb[1] / 4, k0 > 0);
            };
            Panels panels(fill, {w, weights, first, 0, k0, depth, for_codes}, left, filled, !is_met_once);
            for (int64_t j = 0; j < m; j += 2 * room.rows, values += 2 * room.block) {
                if (part.stopped()) return;
                const int64_t rows = m - j < 2 * room.rows ? m - j : 2 * room.rows;
                const bool is_last = rows <= room.rows;
                for (int64_t c = 0; c < left; c += COLUMNS) {
                    const bool is_double = is_last && !is_met_once && left - c > COLUMNS;
                    const auto multiply = !is_last    ? multiply_tiles<2, 1>
                                          : is_double ? multiply_tiles<1, 2>
                                                      : multiply_tiles<1, 1>;
                    multiply(room, steps, values, panels, c / COLUMNS * steps, sums, soon);
                    write(sums, j, rows, c);
                    if (is_double) c += COLUMNS, write(sums + room.rows * COLUMNS, j, rows, c);
                }
            }
        }
    }
}

} // namespace

#endif
