// Products with x rounded to eight bits, 32 values to a scale: integer dot products where the processor has them.
#pragma once

#include "matmul.h"

namespace {

#if defined(__AVX512VNNI__)

constexpr int ROWS8 = 6;
constexpr int GROUP = 32; // values of x that share a scale

// A panel of w: raw codes, four of a column side by side; and the scale and minimum of each column for each part
// of `PART` codes.
template <int PART> struct Panel8 {
    alignas(64) uint8_t codes[DEPTH * COLUMNS];
    alignas(64) float d[DEPTH / PART * COLUMNS], m[DEPTH / PART * COLUMNS];
};

template <int TYPE> constexpr int part_of() { return Block<TYPE>::HALVES ? 16 : 32; }

template <int TYPE> void read_panel(const char *rows, int64_t step, int64_t columns, int64_t k0, int64_t depth, Panel8<part_of<TYPE>()> &panel) {
    typedef Block<TYPE> B;
    constexpr int PARTS = 32 * B::GROUPS / part_of<TYPE>();
    alignas(64) uint8_t bytes[COLUMNS * DEPTH];
    for (int64_t c = 0; c < COLUMNS; c++) {
        const byte *block = (const byte *)rows + (c < columns ? c : columns - 1) * step + k0 / (32 * B::GROUPS) * B::SIZE;
        int64_t first = 0;
        for (int64_t i = 0; i < depth; i += 32 * B::GROUPS, block += B::SIZE) {
            float d[2 * B::GROUPS], m[B::GROUPS];
            B::scales(block, d, m);
            for (int p = 0; p < PARTS; p++, first++) {
                panel.d[first * COLUMNS + c] = d[p];
                if (B::MIN) panel.m[first * COLUMNS + c] = m[p];
            }
            for (int g = 0; g < B::GROUPS; g++) {
                _mm256_storeu_si256((__m256i *)(bytes + c * DEPTH + i + 32 * g), B::raw(block, g));
            }
        }
    }
    transpose<DEPTH / 4>((const float *)bytes, depth / 4, (float *)panel.codes);
}

// Tiles of x: values [k / 4, rows, 4], and for each part its scale, and its sum as an integer and scaled.
struct Packed8 {
    int8_t *values;
    float *d, *sums;
    int32_t *shifts; // what the raw codes of w are too large by, times the sum of a part, to be taken off
};

template <int PART> Packed8 packed8(const Operand &x, char *room) {
    const int64_t n = row_count(x) * x.ne[0];
    Packed8 p;
    p.values = (int8_t *)room;
    p.d = (float *)(room + aligned(n));
    p.sums = p.d + n / PART;
    p.shifts = (int32_t *)(p.sums + n / PART);
    return p;
}

// Rounds 32 values to eight bits; returns their scale, and sums of 16 codes each.
inline float round_group(const float *values, int8_t *codes, int *halves) {
    const __m512 a = _mm512_loadu_ps(values), b = _mm512_loadu_ps(values + 16);
    const float most = _mm512_reduce_max_ps(_mm512_max_ps(_mm512_abs_ps(a), _mm512_abs_ps(b)));
    const __m512 inverse = _mm512_set1_ps(most > 0 ? 127 / most : 0);
    const __m512i qa = _mm512_cvtps_epi32(_mm512_mul_ps(a, inverse)), qb = _mm512_cvtps_epi32(_mm512_mul_ps(b, inverse));
    _mm_storeu_si128((__m128i *)codes, _mm512_cvtsepi32_epi8(qa));
    _mm_storeu_si128((__m128i *)(codes + 16), _mm512_cvtsepi32_epi8(qb));
    halves[0] = _mm512_reduce_add_epi32(qa), halves[1] = _mm512_reduce_add_epi32(qb);
    return most / 127;
}

inline int64_t rows_of_tile8(int64_t m) {
    const int64_t tiles = (m + ROWS8 - 1) / ROWS8;
    return (m + tiles - 1) / tiles;
}

template <int PART> void pack8(const Operand &x, const Packed8 &packed, int zero, float *row, Part &part) {
    const int64_t k = x.ne[0], m = x.ne[1], tile = rows_of_tile8(m);
    const Span rows = share(row_count(x), part);
    for (int64_t r = rows.first; r < rows.last; r++) {
        const Place p = place(x, r);
        const float *values = (const float *)at(x, p);
        if (!is_plain_rows(x)) read_row(x, p, row), values = row;
        const int64_t first = p.i1 / tile * tile, width = m - first < tile ? m - first : tile;
        const int64_t start = r - p.i1 + first, lane = p.i1 - first;
        int8_t *out = packed.values + start * k + lane * 4;
        for (int64_t i = 0; i < k; i += GROUP) {
            alignas(16) int8_t codes[GROUP];
            int halves[2];
            const float d = round_group(values + i, codes, halves);
            for (int j = 0; j < GROUP; j += 4) std::memcpy(out + (i + j) * width, codes + j, 4);
            for (int h = 0; h < GROUP / PART; h++) {
                const int sum = PART == 16 ? halves[h] : halves[0] + halves[1];
                const int64_t at = start * (k / PART) + (i / PART + h) * width + lane;
                packed.d[at] = d;
                packed.sums[at] = d * (float)sum;
                packed.shifts[at] = -zero * sum;
            }
        }
    }
}

// c [M, COLUMNS] = (or +=) x w.
template <int M, int PART, bool MIN> void multiply_tile8(int64_t depth, const Packed8 &x, const Panel8<PART> &w, float *c, int64_t ldc, bool add) {
    __m512 sums[M][2];
    for (int i = 0; i < M; i++) {
        sums[i][0] = add ? _mm512_loadu_ps(c + i * ldc) : _mm512_setzero_ps();
        sums[i][1] = add ? _mm512_loadu_ps(c + i * ldc + 16) : _mm512_setzero_ps();
    }
    const int8_t *values = x.values;
    const uint8_t *codes = w.codes;
    for (int64_t p = 0; p < depth / PART; p++) {
        __m512i dots[M][2];
        for (int i = 0; i < M; i++) dots[i][0] = dots[i][1] = _mm512_set1_epi32(x.shifts[p * M + i]);
        for (int s = 0; s < PART / 4; s++, values += 4 * M, codes += 4 * COLUMNS) {
            const __m512i w0 = _mm512_load_si512(codes), w1 = _mm512_load_si512(codes + 64);
            for (int i = 0; i < M; i++) {
                int32_t four;
                std::memcpy(&four, values + 4 * i, 4);
                const __m512i same = _mm512_set1_epi32(four);
                dots[i][0] = _mm512_dpbusd_epi32(dots[i][0], w0, same);
                dots[i][1] = _mm512_dpbusd_epi32(dots[i][1], w1, same);
            }
        }
        const __m512 d0 = _mm512_load_ps(w.d + p * COLUMNS), d1 = _mm512_load_ps(w.d + p * COLUMNS + 16);
        for (int i = 0; i < M; i++) {
            const __m512 d = _mm512_set1_ps(x.d[p * M + i]);
            sums[i][0] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(dots[i][0]), _mm512_mul_ps(d, d0), sums[i][0]);
            sums[i][1] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(dots[i][1]), _mm512_mul_ps(d, d1), sums[i][1]);
        }
        if (!MIN) continue;
        const __m512 m0 = _mm512_load_ps(w.m + p * COLUMNS), m1 = _mm512_load_ps(w.m + p * COLUMNS + 16);
        for (int i = 0; i < M; i++) {
            const __m512 sum = _mm512_set1_ps(x.sums[p * M + i]);
            sums[i][0] = _mm512_fmadd_ps(sum, m0, sums[i][0]);
            sums[i][1] = _mm512_fmadd_ps(sum, m1, sums[i][1]);
        }
    }
    for (int i = 0; i < M; i++) {
        _mm512_storeu_ps(c + i * ldc, sums[i][0]);
        _mm512_storeu_ps(c + i * ldc + 16, sums[i][1]);
    }
}

template <int TYPE> void multiply_part8(int64_t m, int64_t depth, const Packed8 &x, const Panel8<part_of<TYPE>()> &w, float *c, int64_t ldc, bool add, int64_t columns) {
    constexpr int PART = part_of<TYPE>();
    constexpr bool MIN = Block<TYPE>::MIN;
    static constexpr decltype(&multiply_tile8<1, PART, MIN>) tiles[ROWS8] = {
        multiply_tile8<1, PART, MIN>, multiply_tile8<2, PART, MIN>, multiply_tile8<3, PART, MIN>,
        multiply_tile8<4, PART, MIN>, multiply_tile8<5, PART, MIN>, multiply_tile8<6, PART, MIN>,
    };
    if (columns == COLUMNS) return tiles[m - 1](depth, x, w, c, ldc, add);
    float whole[ROWS8 * COLUMNS];
    tiles[m - 1](depth, x, w, whole, COLUMNS, false);
    for (int64_t i = 0; i < m; i++) {
        for (int64_t j = 0; j < columns; j++) {
            c[i * ldc + j] = whole[i * COLUMNS + j] + (add ? c[i * ldc + j] : 0.0f);
        }
    }
}

template <int TYPE> void mul_mat_int8(const Node &node, Part &part) {
    constexpr int PART = part_of<TYPE>();
    const Operand &w = node.src[0], &x = node.src[1], &out = node.out;
    const int64_t k = w.ne[0], n = w.ne[1], m = x.ne[1], tile = rows_of_tile8(m);
    const Packed8 packed = packed8<PART>(x, part.scratch);
    pack8<PART>(x, packed, Block<TYPE>::ZERO, (float *)(part.scratch + packed_size(node)) + part.thread * k, part);
    if (!part.barrier()) return;
    Panel8<PART> panel;
    const int64_t panels = (n + COLUMNS - 1) / COLUMNS;
    const Span all = share(panels * x.ne[2] * x.ne[3], part);
    for (int64_t item = all.first; item < all.last; item++) {
        const int64_t matrix = item / panels, i2 = matrix % x.ne[2], i3 = matrix / x.ne[2];
        const int64_t column = item % panels * COLUMNS, columns = n - column < COLUMNS ? n - column : COLUMNS;
        const char *weights = at(w, column, i2 / (x.ne[2] / w.ne[2]), i3 / (x.ne[3] / w.ne[3]));
        for (int64_t k0 = 0; k0 < k; k0 += DEPTH) {
            if (part.stopped()) return;
            const int64_t depth = k - k0 < DEPTH ? k - k0 : DEPTH;
            read_panel<TYPE>(weights, w.nb[1], columns, k0, depth, panel);
            for (int64_t j = 0; j < m; j += tile) {
                const int64_t height = m - j < tile ? m - j : tile, start = matrix * m + j;
                const int64_t parts = start * (k / PART) + k0 / PART * height;
                const Packed8 here = {packed.values + start * k + k0 * height, packed.d + parts, packed.sums + parts, packed.shifts + parts};
                multiply_part8<TYPE>(height, depth, here, panel, (float *)at(out, j, i2, i3) + column, out.nb[1] / 4, k0 > 0, columns);
            }
        }
    }
}

// One row of x, rounded: codes, scales, scaled sums, and what is taken off in each lane of a dot product.
struct Row8 {
    int8_t *codes;
    float *d, *sums;
    int32_t *shifts;

    Row8(char *room, int64_t k) {
        codes = (int8_t *)room;
        d = (float *)(room + aligned(k));
        sums = d + aligned(k / GROUP);
        shifts = (int32_t *)(sums + aligned(k / GROUP));
    }
    static int64_t size(int64_t k) { return aligned(k) + 2 * 4 * aligned(k / GROUP) + k; }

    void round(const float *values, int64_t k, int zero) {
        for (int64_t g = 0; g < k / GROUP; g++) {
            int halves[2];
            d[g] = round_group(values + g * GROUP, codes + g * GROUP, halves);
            sums[g] = d[g] * (float)(halves[0] + halves[1]);
            const __m256i c = _mm256_loadu_si256((const __m256i *)(codes + g * GROUP));
            const __m256i lanes = _mm256_dpbusd_epi32(_mm256_setzero_si256(), _mm256_set1_epi8(1), c);
            _mm256_storeu_si256((__m256i *)(shifts + g * 8), _mm256_mullo_epi32(lanes, _mm256_set1_epi32(-zero)));
        }
    }
};

// Dot products of R rows, `step` bytes apart, with x.
template <int TYPE, int R> void dots8(const char *row, int64_t step, const Row8 &x, int64_t n, float *out) {
    typedef Block<TYPE> B;
    __m256 sums[R];
    float least[R];
    for (int r = 0; r < R; r++) sums[r] = _mm256_setzero_ps(), least[r] = 0;
    const byte *block = (const byte *)row;
    for (int64_t first = 0; first < n / GROUP; first += B::GROUPS, block += B::SIZE) {
        if (R > 1) prefetch<R>(row, (const char *)block - row, B::SIZE);
        for (int r = 0; r < R; r++) {
            float d[2 * B::GROUPS], m[B::GROUPS];
            B::scales(block + r * step, d, m);
            for (int g = 0; g < B::GROUPS; g++) {
                const int64_t at = first + g;
                const __m256i c = _mm256_loadu_si256((const __m256i *)(x.codes + at * GROUP));
                const __m256i shift = _mm256_loadu_si256((const __m256i *)(x.shifts + at * 8));
                const __m256i dot = _mm256_dpbusd_epi32(shift, B::raw(block + r * step, g), c);
                __m256 scale;
                if (B::HALVES) {
                    int64_t both;
                    std::memcpy(&both, d + 2 * g, 8);
                    const __m256 twice = _mm256_castsi256_ps(_mm256_set1_epi64x(both));
                    const __m256i which = _mm256_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1);
                    scale = _mm256_mul_ps(_mm256_permutevar_ps(twice, which), _mm256_set1_ps(x.d[at]));
                } else {
                    scale = _mm256_set1_ps(d[g] * x.d[at]);
                }
                sums[r] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(dot), scale, sums[r]);
                if (B::MIN) least[r] += m[g] * x.sums[at];
            }
        }
    }
    for (int r = 0; r < R; r++) {
        __m128 s = _mm_add_ps(_mm256_castps256_ps128(sums[r]), _mm256_extractf128_ps(sums[r], 1));
        s = _mm_add_ps(s, _mm_movehl_ps(s, s));
        out[r] = _mm_cvtss_f32(_mm_add_ss(s, _mm_movehdup_ps(s))) + least[r];
    }
}

// A single row of x. Each thread rounds it for itself: that is quicker than to wait for each other.
template <int TYPE> void mul_vec_int8(const Node &node, Part &part) {
    const Operand &w = node.src[0], &x = node.src[1], &out = node.out;
    const int64_t k = w.ne[0], n = w.ne[1];
    char *room = part.scratch + part.thread * (Row8::size(k) + aligned(k * 4));
    float *copy = (float *)(room + Row8::size(k));
    Row8 rounded(room, k);
    Turns turns = turns_of_few(node, part);
    Span turn{0, 0};
    int64_t matrix = -1;
    for (int64_t item = 0;;) {
        if (item == turn.last) {
            if (part.stopped() || !turns.next(turn)) return;
            item = turn.first;
        }
        const int64_t i2 = item / n % x.ne[2], i3 = item / n / x.ne[2];
        if (matrix != item / n) {
            matrix = item / n;
            read_row(x, {0, i2, i3}, copy);
            rounded.round(copy, k, Block<TYPE>::ZERO);
        }
        const int64_t row = item % n, left = n - row < turn.last - item ? n - row : turn.last - item;
        const char *weights = at(w, row, i2 / (x.ne[2] / w.ne[2]), i3 / (x.ne[3] / w.ne[3]));
        float *results = (float *)at(out, 0, i2, i3) + row;
        const int64_t count = left >= AT_ONCE ? AT_ONCE : 1;
        (count == 1 ? dots8<TYPE, 1> : dots8<TYPE, AT_ONCE>)(weights, w.nb[1], rounded, k, results);
        item += count;
    }
}

inline int64_t int8_scratch(const Node &node, int threads) {
    const int64_t k = node.src[1].ne[0];
    if (node.src[1].ne[1] == 1) return threads * (Row8::size(k) + aligned(k * 4));
    return packed_size(node) + threads * k * 4;
}

template <int TYPE> void product_int8(const Node &node, Part &part) {
    if (node.src[1].ne[1] == 1) return mul_vec_int8<TYPE>(node, part);
    mul_mat_int8<TYPE>(node, part);
}

// The kernel for a type; null where there is none.
inline void (*int8_kernel(int type))(const Node &, Part &) {
    switch (type) {
    case Q8_0: return product_int8<Q8_0>;
    case Q4_0: return product_int8<Q4_0>;
    case Q4_1: return product_int8<Q4_1>;
    case Q5_0: return product_int8<Q5_0>;
    case Q5_1: return product_int8<Q5_1>;
    case Q4_K: return product_int8<Q4_K>;
    case Q5_K: return product_int8<Q5_K>;
    case Q6_K: return product_int8<Q6_K>;
    default: return nullptr;
    }
}

#else

inline int64_t int8_scratch(const Node &, int) { return 0; }
inline void (*int8_kernel(int))(const Node &, Part &) { return nullptr; }

#endif

// i[0] asks for x in eight bits; two to four rows of x are as fast in f32.
inline bool wants_int8(const Node &node) {
    const int64_t rows = node.src[1].ne[1];
    return node.i[0] && (rows == 1 || rows > FEW) && int8_kernel(node.src[0].type) != nullptr;
}

inline void product(const Node &node, Part &part) {
    if (wants_int8(node)) return int8_kernel(node.src[0].type)(node, part);
    mul_mat(node, part);
}

inline int64_t product_scratch(const Node &node, int threads) {
    return wants_int8(node) ? int8_scratch(node, threads) : mul_mat_scratch(node, threads);
}

} // namespace
