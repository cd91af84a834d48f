// Few rows of x, rounded, side by side: sixteen rows of w meet all of them, and a code is read and unfolded once.
#pragma once

#include "product_bytes_panels.h"

namespace {

#if defined(__AVX2__)

// Rows of x whose sums the registers hold, and rows up to which they meet panels so. On one thread of a Zen 5 with
// AVX-512, 576 x 1536 in the second-level cache, q4_1 took 47 us instead of 53 with 16 rows, by tiles of codes.
// With AVX2, 2048 x 512, it took 21 us instead of 35 with two rows, 41 instead of 52 with four and more with six.
// On a Xeon, SmolLM2 (q4_1) read 18 to 24 tokens in 0.92 to 0.95 of the time by two turns of 9 to 12 rows, and with one
// thread in 0.84 to 0.94, before tiles took those; 10 and 12 tokens in one turn with two threads took a fifth longer,
// waiting for the memory. Super-blocks would take long to compile.
#if defined(__AVX512VNNI__)
template <int TYPE> constexpr bool TWELVE = Block<TYPE>::GROUPS == 1; // rows at once
constexpr int64_t AT_ONCE8 = 8;
template <int TYPE> constexpr int64_t MOST_SIDE_BY_SIDE = TWELVE<TYPE> ? 24 : 16;
#else
template <int> constexpr bool TWELVE = false;
constexpr int64_t AT_ONCE8 = 4;
template <int> constexpr int64_t MOST_SIDE_BY_SIDE = 4;
#endif

#if defined(__AVX512VNNI__)

// Rows of x up to which rows of w become panels on their way. On one thread of a Zen 5, 2048 x 512 in the second-level
// cache, q4_K took 22 us instead of 27 with two rows of x and 29 instead of 44 with four (q5_K 26 for 31, 33 for 47);
// other types, whose bytes are more, took longer.
template <int TYPE> constexpr int MOST_WOVEN = TYPE == Q4_K || TYPE == Q5_K ? 4 : 0;

// Sixteen rows of w where they lie, the last of `count` as often as it takes.
struct Sixteen {
    const byte *at[PANEL_ROWS];

    Sixteen(const char *rows, int64_t step, int64_t count) {
        for (int64_t r = 0; r < PANEL_ROWS; r++) at[r] = (const byte *)rows + (r < count ? r : count - 1) * step;
    }
    // Four words of each row as four vectors: the first words of all rows, the second ones and so on. In its
    // quarters a vector holds rows that are four apart, so that nothing has to change from one to another.
    void weave(int64_t offset, byte *out) const {
        __m512i v[4];
        for (int r = 0; r < 4; r++) {
            v[r] = _mm512_castsi128_si512(load16(r, offset));
            v[r] = _mm512_mask_broadcast_i32x4(v[r], 0x00f0, load16(r + 4, offset));
            v[r] = _mm512_mask_broadcast_i32x4(v[r], 0x0f00, load16(r + 8, offset));
            v[r] = _mm512_mask_broadcast_i32x4(v[r], 0xf000, load16(r + 12, offset));
        }
        const __m512i a = _mm512_unpacklo_epi32(v[0], v[1]), b = _mm512_unpacklo_epi32(v[2], v[3]);
        const __m512i c = _mm512_unpackhi_epi32(v[0], v[1]), d = _mm512_unpackhi_epi32(v[2], v[3]);
        istore(out, _mm512_unpacklo_epi64(a, b));
        istore(out + 64, _mm512_unpackhi_epi64(a, b));
        istore(out + 128, _mm512_unpacklo_epi64(c, d));
        istore(out + 192, _mm512_unpackhi_epi64(c, d));
    }
    void weave_half(int64_t offset, byte *out) const {
        for (int r = 0; r < PANEL_ROWS; r++) std::memcpy(out + 2 * r, at[r] + offset, 2);
    }
    __m128i load16(int row, int64_t offset) const { return _mm_loadu_si128((const __m128i *)(at[row] + offset)); }
};

// A block of each of sixteen rows as a block of a panel.
template <int TYPE> class WovenBlock {
  public:
    static constexpr int SIZE = Block<TYPE>::SIZE;

    const byte *get() const { return room_; }

    // That which begins `from` bytes into the rows.
    void read(const Sixteen &rows, int64_t from) {
#pragma GCC unroll 16
        for (int o = FORM.front; o < BEHIND; o += 16) {
            const int words = o + 16 <= BEHIND ? o : BEHIND - 16; // the last four overlap others
            rows.weave(from + words, room_ + words * PANEL_ROWS);
        }
        for (int o = 0; o < FORM.front; o += 2) rows.weave_half(from + o, room_ + o * PANEL_ROWS);
        for (int o = BEHIND; o < SIZE; o += 2) rows.weave_half(from + o, room_ + o * PANEL_ROWS);
    }

  private:
    static constexpr PanelForm FORM = *panel_form(TYPE);
    static constexpr int BEHIND = (int)FORM.behind();
    static_assert(FORM.front % 4 == 0 && SIZE % 2 == 0, "words lie where cache lines begin; the rest are halves");

    alignas(64) byte room_[SIZE * PANEL_ROWS];
};

#else

template <int> constexpr int MOST_WOVEN = 0;

#endif

// Slices of a panel that meet M rows of x at once, as far as the registers go: on one thread of a Zen 4, two rows of x
// and 2048 x 5632 from memory, q8_0 and q4_0 took 0.8 of the time, and three rows and more took longer.
#if defined(TP_PAIRS)
template <int M> constexpr int SLICES_AT_ONCE = M == 2 ? SLICES : 1;
#else
template <int> constexpr int SLICES_AT_ONCE = 1;
#endif

#if defined(__AVX512VNNI__)

// The products of sixteen rows of w where they lie, which become a panel in the first-level cache, block by block, with
// M rows of x.
template <int TYPE, int M>
void woven_times8(const Sixteen &rows, int64_t k, const Packed8 &x, Next &soon, vf (&sums)[M]) {
    constexpr int64_t WIDE = GROUP * Block<TYPE>::GROUPS;
    WovenBlock<TYPE> block;
    for (int j = 0; j < M; j++) sums[j] = vset(0);
    for (int64_t i = 0; i < k; i += WIDE) {
        soon.ask();
        block.read(rows, i / WIDE * block.SIZE);
        add_block8<TYPE>(block.get(), 0, i, x, sums);
    }
}

#endif

// The products of sixteen rows of w, or `count` of them, in panels or where they lie.
template <int TYPE, int M>
void sixteen_times8(const Operand &w, const char *weights, int64_t count, const Packed8 &x, vf (&sums)[SLICES][M]) {
    const int64_t k = w.ne[0];
#if defined(__AVX512VNNI__)
    if constexpr (M <= MOST_WOVEN<TYPE>) {
        if (!in_panels(w)) {
            Next soon = next_of_panel(w, weights, 0, count, 0, k, k / (GROUP * Block<TYPE>::GROUPS));
            return woven_times8<TYPE, M>(Sixteen(weights, w.nb[1], count), k, x, soon, sums[0]);
        }
    }
#endif
    constexpr int N = SLICES_AT_ONCE<M>;
    for (int s = 0; s < SLICES && s * W < count; s += N) panel_times8<TYPE, N, M>(weights, s, k, x, sums + s);
}

// Rows of x that meet a panel at a time, in one turn or two; those past the last are zeros.
inline int64_t side_turns(int64_t m) { return m <= AT_ONCE8 ? 1 : 2; }
inline int64_t side_by_side(int64_t m) {
    const int64_t each = (m + side_turns(m) - 1) / side_turns(m);
    return each == 7 || each == 11 ? each + 1 : each; // two kernels less to compile
}

// Bytes of x, packed; for a thread, of a row of x.
inline int64_t side_packed(const Node &node) {
    const Operand &x = node.src[1];
    const int64_t rows = side_by_side(x.ne[1]) * side_turns(x.ne[1]);
    return aligned(rows * x.ne[2] * x.ne[3] * x.ne[0] * 4);
}
inline int64_t side_room(int64_t k) { return aligned(k * 4); }

// Few rows of x, M at a time.
template <int TYPE, int M> void mul_mat_bytes_side_by_side(const Node &node, Part &part) {
    constexpr int PART = part_of<TYPE>();
    const Operand &w = node.src[0], &x = node.src[1], &out = node.out;
    const int64_t k = w.ne[0], n = w.ne[1], m = x.ne[1], matrices = x.ne[2] * x.ne[3];
    const int64_t turns_of_x = side_turns(m), all = turns_of_x * M;
    Operand padded = x;
    padded.ne[1] = all;
    const Packed8 packed = packed8<PART>(padded, part.scratch);
    float *copy = (float *)(part.scratch + side_packed(node) + part.thread * side_room(k));
    // Round and pack the rows of x; those past the last are zeros.
    const Span rows = share(all * matrices, part);
    for (int64_t row = rows.first; row < rows.last; row++) {
        const int64_t j = row % all, matrix = row / all;
        if (j < m) read_row(x, {j, matrix % x.ne[2], matrix / x.ne[2]}, copy);
        else std::memset(copy, 0, k * 4);
        pack_row8<PART, WHOLE<PART, chain_of<TYPE>()>>(copy, k, packed, row / M * M, M, row % M, EXCESS<TYPE>);
    }
    if (!part.barrier()) return;
    // Sixteen rows of w at a time; the last of a matrix may be fewer.
    const int64_t sixteens = (n + PANEL_ROWS - 1) / PANEL_ROWS;
    Turns turns = turns_of_rows(sixteens * matrices, row_step(w) * PANEL_ROWS, 1, part);
    Span turn{0, 0};
    for (int64_t item = 0;; item++) {
        if (item == turn.last) {
            if (part.stopped() || !turns.next(turn)) return;
            item = turn.first;
        }
        const int64_t matrix = item / sixteens, i2 = matrix % x.ne[2], i3 = matrix / x.ne[2];
        const int64_t first = item % sixteens * PANEL_ROWS, count = n - first < PANEL_ROWS ? n - first : PANEL_ROWS;
        const char *weights = at(w, first, i2 / (x.ne[2] / w.ne[2]), i3 / (x.ne[3] / w.ne[3]));
        // They meet M rows of x in each turn.
        for (int64_t j0 = 0; j0 < all; j0 += M) {
            const int64_t start = matrix * all + j0, parts = start * (k / PART);
            const Packed8 xs = {packed.values + start * k, packed.d + parts, packed.sums + parts,
                                packed.shifts + parts};
            vf sums[SLICES][M];
            sixteen_times8<TYPE>(w, weights, count, xs, sums);
            for (int s = 0; s < SLICES && s * W < count; s++) {
                const int64_t left = count - s * W;
                for (int64_t j = 0; j < M && j0 + j < m; j++) {
                    float *results = (float *)at(out, j0 + j, i2, i3) + first + s * W;
                    vstore(results, sums[s][j], (int)(left < W ? left : W));
                }
            }
        }
    }
}

template <int TYPE> void mul_mat_bytes_side_by_side(const Node &node, Part &part) {
    const int64_t rows = side_by_side(node.src[1].ne[1]);
    if constexpr (TWELVE<TYPE>) {
        if (rows == 9) return mul_mat_bytes_side_by_side<TYPE, 9>(node, part);
        if (rows == 10) return mul_mat_bytes_side_by_side<TYPE, 10>(node, part);
        if (rows == 12) return mul_mat_bytes_side_by_side<TYPE, 12>(node, part);
    }
    switch (rows) {
    case 2: return mul_mat_bytes_side_by_side<TYPE, 2>(node, part);
    case 3: return mul_mat_bytes_side_by_side<TYPE, 3>(node, part);
    case 4: return mul_mat_bytes_side_by_side<TYPE, 4>(node, part);
#if defined(__AVX512VNNI__)
    case 5: return mul_mat_bytes_side_by_side<TYPE, 5>(node, part);
    case 6: return mul_mat_bytes_side_by_side<TYPE, 6>(node, part);
    case 8: return mul_mat_bytes_side_by_side<TYPE, 8>(node, part);
#endif
    }
}

#endif

} // namespace
