// The product that all large products are made of: a few rows of x, packed, times a panel of w.
#pragma once

#include "rows.h"

namespace {

#if defined(__AVX512F__)
constexpr int ROWS = 12;
#elif defined(__AVX2__)
constexpr int ROWS = 6;
#else
constexpr int ROWS = 4;
#endif
constexpr int COLUMNS = 2 * W; // of a panel
constexpr int DEPTH = 256;     // of what is read or transposed at once: it stays in the first-level cache

constexpr int64_t ASK_EVERY = 16; // steps of a tile

// How a tile is multiplied: four bytes of it hold HELD values of a row of x, and a step of a panel BYTES bytes of each
// column; `load` reads vector `v` of the columns, `add` adds products.
struct Floats {
    static constexpr int HELD = 1, BYTES = 4;
    static vf load(const float *w, int v) { return vload(w + v * W); }
    static vf add(vf x, vf w, vf sum) { return vfma(x, w, sum); }
};
// Weights in f16 or bf16, which are widened when they are multiplied.
template <int TYPE> struct Halves {
    static constexpr int HELD = 1, BYTES = 2;
    static vf load(const float *w, int v) { return load_floats<TYPE>((const char *)w, v * W); }
    static vf add(vf x, vf w, vf sum) { return vfma(x, w, sum); }
};
#if defined(__AVX512BF16__)
struct Bf16Pairs {
    static constexpr int HELD = 2, BYTES = 4;
    static vf load(const float *w, int v) { return vload(w + v * W); }
    static vf add(vf x, vf w, vf sum) { return _mm512_dpbf16_ps(sum, (__m512bh)x, (__m512bh)w); }
};
#endif

// Pieces of rows that are read next, of `size` bytes, `step` bytes apart: asked for little by little while others are
// multiplied, because the memory would be idle then and waited for later.
class Next {
  public:
    // All of them are asked for in `turns`.
    Next(const char *rows, int64_t step, int64_t size, int64_t count, int64_t turns)
        : row_(rows), step_(step), size_(size) {
        if (step == size) size_ = size * count, count = 1;
        left_ = count, each_ = ((size_ + 63) / 64 * count + turns - 1) / turns * 64;
    }

    void ask() {
        if (left_ <= 0) return;
        prefetch_at<2>(row_, 1, done_, each_);
        done_ += each_;
        if (done_ < size_) return;
        done_ = 0, left_--;
        row_ = (const char *)((uintptr_t)row_ + (uintptr_t)step_);
    }

  private:
    const char *row_;
    int64_t step_, size_, left_, each_, done_ = 0;
};

// c [M, COLUMNS] = (or +=) x w: x is packed [depth, M], w [depth, COLUMNS] in steps of `step` floats.
template <int M, class Held>
void multiply_tile(int64_t depth, const float *x, const float *w, int64_t step, float *c, int64_t ldc, bool add,
                   Next *soon) {
    vf a[M][2];
    // Start from zeros, or from the sums in c.
    for (int i = 0; i < M; i++) {
        a[i][0] = add ? vload(c + i * ldc) : vset(0);
        a[i][1] = add ? vload(c + i * ldc + W) : vset(0);
    }
    // For each step of depth, add the outer product of M elements of x and a row of the panel.
    for (int64_t k = 0; k < depth; k += ASK_EVERY) {
        if (soon != nullptr) soon->ask();
        const int64_t steps = depth - k < ASK_EVERY ? depth - k : ASK_EVERY;
#pragma GCC unroll 4
        for (int64_t s = 0; s < steps; s++, x += M, w += step) {
            const vf w0 = Held::load(w, 0), w1 = Held::load(w, 1);
            for (int i = 0; i < M; i++) {
                const vf same = vset(x[i]);
                a[i][0] = Held::add(same, w0, a[i][0]);
                a[i][1] = Held::add(same, w1, a[i][1]);
            }
        }
    }
    for (int i = 0; i < M; i++) {
        vstore(c + i * ldc, a[i][0]);
        vstore(c + i * ldc + W, a[i][1]);
    }
}

typedef void (*Tile)(int64_t depth, const float *x, const float *w, int64_t step, float *c, int64_t ldc, bool add,
                     Next *soon);

// By number of rows, less one.
template <class Held> const Tile TILES[ROWS] = {
    multiply_tile<1, Held>,  multiply_tile<2, Held>,  multiply_tile<3, Held>,  multiply_tile<4, Held>,
#if defined(__AVX2__)
    multiply_tile<5, Held>,  multiply_tile<6, Held>,
#endif
#if defined(__AVX512F__)
    multiply_tile<7, Held>,  multiply_tile<8, Held>,  multiply_tile<9, Held>,  multiply_tile<10, Held>,
    multiply_tile<11, Held>, multiply_tile<12, Held>,
#endif
};

// c [rows, columns] = (or +=) sums [rows, COLUMNS].
inline void write_sums(const float *sums, int64_t rows, int64_t columns, float *c, int64_t ldc, bool add) {
    for (int64_t i = 0; i < rows; i++, sums += COLUMNS, c += ldc) {
        if (columns == COLUMNS && !add) std::memcpy(c, sums, COLUMNS * 4);
        else for (int64_t j = 0; j < columns; j++) c[j] = sums[j] + (add ? c[j] : 0.0f);
    }
}

// As multiply_tile, for a panel of which only `columns` are wanted.
template <class Held = Floats>
void multiply_part(int m, int64_t depth, const float *x, const float *w, int64_t step, float *c, int64_t ldc, bool add,
                   int64_t columns, Next *soon = nullptr) {
    if (columns == COLUMNS) return TILES<Held>[m - 1](depth, x, w, step, c, ldc, add, soon);
    float whole[ROWS * COLUMNS];
    TILES<Held>[m - 1](depth, x, w, step, whole, COLUMNS, false, soon);
    write_sums(whole, m, columns, c, ldc, add);
}

// How many rows make a tile, so that the tiles of m rows are of nearly one size and have at most `most`.
inline int64_t rows_of_tile(int64_t m, int64_t most) {
    const int64_t tiles = (m + most - 1) / most;
    return (m + tiles - 1) / tiles;
}

// out [n, height] = rows [height, n] transposed, for a tile; rows lie `step` floats apart.
inline void interleave(const float *rows, int64_t step, int64_t height, int64_t n, float *out) {
    int64_t r = 0;
#if defined(__AVX2__)
    // Four rows at a time: squares of 4 x 4, then the last columns.
    for (; r + 4 <= height; r += 4) {
        const float *from = rows + r * step;
        int64_t i = 0;
        for (; i + 4 <= n; i += 4) {
            __m128 a = _mm_loadu_ps(from + i), b = _mm_loadu_ps(from + step + i);
            __m128 c = _mm_loadu_ps(from + 2 * step + i), d = _mm_loadu_ps(from + 3 * step + i);
            _MM_TRANSPOSE4_PS(a, b, c, d);
            float *to = out + i * height + r;
            _mm_storeu_ps(to, a), _mm_storeu_ps(to + height, b);
            _mm_storeu_ps(to + 2 * height, c), _mm_storeu_ps(to + 3 * height, d);
        }
        for (; i < n; i++) {
            for (int64_t j = 0; j < 4; j++) out[i * height + r + j] = from[j * step + i];
        }
    }
#endif
    // The other rows, element by element.
    for (; r < height; r++) {
        for (int64_t i = 0; i < n; i++) out[i * height + r] = rows[r * step + i];
    }
}

#if defined(__AVX512F__)
// Sixteen vectors of sixteen words become those of first words, of second words and so on.
inline void transpose16(__m512i *v) {
    __m512i t[16];
    for (int i = 0; i < 16; i += 2) {
        t[i] = _mm512_unpacklo_epi32(v[i], v[i + 1]);
        t[i + 1] = _mm512_unpackhi_epi32(v[i], v[i + 1]);
    }
    for (int i = 0; i < 16; i += 4) {
        v[i] = _mm512_unpacklo_epi64(t[i], t[i + 2]);
        v[i + 1] = _mm512_unpackhi_epi64(t[i], t[i + 2]);
        v[i + 2] = _mm512_unpacklo_epi64(t[i + 1], t[i + 3]);
        v[i + 3] = _mm512_unpackhi_epi64(t[i + 1], t[i + 3]);
    }
    // Now lane l of v[4 j + i] holds word 4 l + i of the vectors 4 j to 4 j + 3.
    for (int i = 0; i < 4; i++) {
        const __m512i a = _mm512_shuffle_i32x4(v[i], v[4 + i], 0x44);
        const __m512i b = _mm512_shuffle_i32x4(v[8 + i], v[12 + i], 0x44);
        const __m512i c = _mm512_shuffle_i32x4(v[i], v[4 + i], 0xee);
        const __m512i d = _mm512_shuffle_i32x4(v[8 + i], v[12 + i], 0xee);
        t[i] = _mm512_shuffle_i32x4(a, b, 0x88);
        t[4 + i] = _mm512_shuffle_i32x4(a, b, 0xdd);
        t[8 + i] = _mm512_shuffle_i32x4(c, d, 0x88);
        t[12 + i] = _mm512_shuffle_i32x4(c, d, 0xdd);
    }
    for (int i = 0; i < 16; i++) v[i] = t[i];
}
#endif

// panel [n, COLUMNS] = rows [COLUMNS, n] transposed; rows in steps of STEP. Bits are moved, whatever they mean.
template <int STEP = DEPTH> void transpose(const float *rows, int n, float *panel) {
    int k = 0;
#if defined(__AVX512F__)
    // Squares of 16 x 16.
    for (; k + 16 <= n; k += 16) {
        for (int c = 0; c < COLUMNS; c += 16) {
            __m512i v[16];
#pragma GCC unroll 16
            for (int i = 0; i < 16; i++) v[i] = _mm512_loadu_si512(rows + (c + i) * STEP + k);
            transpose16(v);
#pragma GCC unroll 16
            for (int i = 0; i < 16; i++) _mm512_storeu_si512(panel + (k + i) * COLUMNS + c, v[i]);
        }
    }
#endif
#if defined(__AVX2__)
    // Squares of 8 x 8: interleave pairs of rows, then fours, then exchange halves of vectors.
    for (; k + 8 <= n; k += 8) {
        for (int c = 0; c < COLUMNS; c += 8) {
            const float *from = rows + c * STEP + k;
            __m256 r[8], t[8];
            for (int i = 0; i < 8; i++) r[i] = _mm256_loadu_ps(from + i * STEP);
            for (int i = 0; i < 8; i += 2) {
                t[i] = _mm256_unpacklo_ps(r[i], r[i + 1]);
                t[i + 1] = _mm256_unpackhi_ps(r[i], r[i + 1]);
            }
            for (int i = 0; i < 8; i += 4) {
                r[i] = _mm256_shuffle_ps(t[i], t[i + 2], 0x44);
                r[i + 1] = _mm256_shuffle_ps(t[i], t[i + 2], 0xee);
                r[i + 2] = _mm256_shuffle_ps(t[i + 1], t[i + 3], 0x44);
                r[i + 3] = _mm256_shuffle_ps(t[i + 1], t[i + 3], 0xee);
            }
            for (int i = 0; i < 4; i++) {
                _mm256_storeu_ps(panel + (k + i) * COLUMNS + c, _mm256_permute2f128_ps(r[i], r[i + 4], 0x20));
                _mm256_storeu_ps(panel + (k + i + 4) * COLUMNS + c, _mm256_permute2f128_ps(r[i], r[i + 4], 0x31));
            }
        }
    }
#endif
    // The other elements of the rows.
    for (; k < n; k++) {
        for (int c = 0; c < COLUMNS; c++) panel[k * COLUMNS + c] = rows[c * STEP + k];
    }
}

} // namespace
