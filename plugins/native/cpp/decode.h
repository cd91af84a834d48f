// Rows of any type: as floats, and their dot products with floats.
#pragma once

#include "level.h"
#include "grid_blocks.h"

namespace {

// Floats as blocks of one group of 32 are read with these.
template <int TYPE> inline vf load_floats(const char *p, int64_t i) {
    if constexpr (TYPE == F32) return vload((const float *)p + i);
    if constexpr (TYPE == F16) return vload16((const uint16_t *)p + i);
    if constexpr (TYPE == BF16) return vloadb16((const uint16_t *)p + i);
}
template <int TYPE> inline float load_float(const char *p, int64_t i) {
    if constexpr (TYPE == F32) return ((const float *)p)[i];
    if constexpr (TYPE == F16) return half_to_float(((const uint16_t *)p)[i]);
    if constexpr (TYPE == BF16) return bf16_to_float(((const uint16_t *)p)[i]);
}

constexpr bool is_plain(int type) { return type == F32 || type == F16 || type == BF16; }

template <class B> constexpr int PARTS = B::HALVES ? 2 * B::GROUPS : B::GROUPS; // of a block, each with a scale

// Elements `first` to `first + n` of a row as floats; both are multiples of a block for block types.
template <int TYPE> void decode(const char *row, int64_t first, int64_t n, float *out) {
    if constexpr (is_plain(TYPE)) {
        const char *p = row + first * (TYPE == F32 ? 4 : 2);
        int64_t i = 0;
        for (; i + W <= n; i += W) vstore(out + i, load_floats<TYPE>(p, i));
        for (; i < n; i++) out[i] = load_float<TYPE>(p, i);
    } else {
        typedef Block<TYPE> B;
        const byte *block = (const byte *)row + first / (32 * B::GROUPS) * B::SIZE;
        float d[PARTS<B>], m[PARTS<B>];
        for (int64_t i = 0; i < n; i += 32 * B::GROUPS, block += B::SIZE) {
            // Read the scales, then codes group by group: code * scale, plus the minimum where the type has one.
            B::scales(block, d, m);
            for (int g = 0; g < B::GROUPS; g++) {
                vf codes[VECTORS];
                B::floats(block, g, codes);
                for (int v = 0; v < VECTORS; v++) {
                    const int p = B::HALVES ? 2 * g + v * W / 16 : g;
                    vf x = vmul(codes[v], vset(d[p]));
                    if (B::MIN) x = vadd(x, vset(m[p]));
                    vstore(out + i + 32 * g + v * W, x);
                }
            }
        }
    }
}

constexpr int64_t AHEAD = 8192; // bytes: some 200 ns at the speed of the memory

// Fetches `n` bytes that lie `step` bytes, `times` over, behind p, into the first-level cache or the second. Nothing
// may lie there, and the step of a single row may be any number, so the address is computed without a sign, where an
// overflow is defined.
template <int LEVEL> inline void prefetch_at(const char *p, int64_t times, int64_t step, int64_t n) {
    const uintptr_t there = (uintptr_t)p + (uintptr_t)times * (uintptr_t)step;
    for (int64_t i = 0; i < n; i += 64) __builtin_prefetch((const void *)(there + (uintptr_t)i), 0, LEVEL == 1 ? 3 : 2);
}

// Prefetches `n` bytes of a long stream into the second-level cache, AHEAD bytes before they are read. The first level
// can wait for about 20 cache lines at once: blocks of panels and vectors of plain rows are more, and loads would queue
// behind them (q6_K in panels: 9 GB/s into the first level, 19 into the second, where the memory gives 20). Processors
// foresee blocks that are read from first to last byte, but not far enough: one thread of a Zen 3 reads rows of q8_0
// 1.2 times, of q6_K 1.3 and of q4_K 1.4 times as fast. (A Zen 4 that hid AVX-512 read q6_K in 1.13 of the time.)
inline void prefetch(const char *p, int64_t n) { prefetch_at<2>(p, 1, AHEAD, n); }

// The same for R rows side by side, of which `done` bytes were read: fetches the bytes at this place of the next R
// rows. Processors do not foresee several short streams.
template <int R> inline void prefetch_rows(const char *rows, int64_t step, int64_t done, int64_t n) {
    const bool far = step > AHEAD / R;
    for (int r = 0; r < R; r++) prefetch_at<2>(rows + r * step + done, far ? R : 1, far ? step : AHEAD, n);
}

// Dot products of R rows, `step` bytes apart, with x. `STREAM` says that what follows the rows will be read next.
template <int TYPE, int R, bool STREAM = (R > 1)>
void dots(const char *row, int64_t step, const float *x, int64_t n, float *out) {
    if constexpr (is_plain(TYPE)) {
        constexpr int CHAINS = 4, SIZE = TYPE == F32 ? 4 : 2; // sums that need not wait for each other; bytes
        vf a[R][CHAINS];
        for (int r = 0; r < R; r++) {
            for (int c = 0; c < CHAINS; c++) a[r][c] = vset(0);
        }
        // CHAINS vectors at a time, then one, then single elements.
        int64_t i = 0;
        for (; i + CHAINS * W <= n; i += CHAINS * W) {
            for (int r = 0; STREAM && r < R; r++) prefetch(row + r * step + i * SIZE, CHAINS * W * SIZE);
            for (int c = 0; c < CHAINS; c++) {
                const vf xs = vload(x + i + c * W);
                for (int r = 0; r < R; r++) a[r][c] = vfma(load_floats<TYPE>(row + r * step, i + c * W), xs, a[r][c]);
            }
        }
        for (; i + W <= n; i += W) {
            const vf xs = vload(x + i);
            for (int r = 0; r < R; r++) a[r][0] = vfma(load_floats<TYPE>(row + r * step, i), xs, a[r][0]);
        }
        for (int r = 0; r < R; r++) {
            float sum = vsum(vadd(vadd(a[r][0], a[r][1]), vadd(a[r][2], a[r][3])));
            for (int64_t j = i; j < n; j++) sum += load_float<TYPE>(row + r * step, j) * x[j];
            out[r] = sum;
        }
    } else {
        typedef Block<TYPE> B;
        float d[R][PARTS<B>], m[R][PARTS<B>];
        vf sums[R][2];
        for (int r = 0; r < R; r++) sums[r][0] = sums[r][1] = vset(0);
        const byte *block = (const byte *)row;
        for (int64_t i = 0; i < n; i += 32 * B::GROUPS, block += B::SIZE) {
            if (STREAM) prefetch_rows<R>(row, step, (const char *)block - row, B::SIZE);
            for (int r = 0; r < R; r++) B::scales(block + r * step, d[r], m[r]);
            for (int g = 0; g < B::GROUPS; g++) {
                const float *xg = x + i + 32 * g;
                vf xs[VECTORS];
                for (int v = 0; v < VECTORS; v++) xs[v] = vload(xg + v * W);
                // Minima are multiplied by the sums of x, which are the same for all rows.
                constexpr int HALF = VECTORS / (B::HALVES ? 2 : 1), COUNT = VECTORS / HALF;
                vf totals[COUNT];
                for (int h = 0; B::MIN && h < COUNT; h++) {
                    totals[h] = xs[h * HALF];
                    for (int v = 1; v < HALF; v++) totals[h] = vadd(totals[h], xs[h * HALF + v]);
                }
                for (int r = 0; r < R; r++) {
                    // Scale the sum of products of a group, or of each half of it, and add what the minimum gives.
                    vf codes[VECTORS];
                    B::floats(block + r * step, g, codes);
                    for (int h = 0; h < COUNT; h++) {
                        const int p = COUNT * g + h;
                        vf part = vmul(codes[h * HALF], xs[h * HALF]);
                        for (int v = 1; v < HALF; v++) part = vfma(codes[h * HALF + v], xs[h * HALF + v], part);
                        sums[r][h] = vfma(vset(d[r][p]), part, sums[r][h]);
                        if (B::MIN) sums[r][1] = vfma(vset(m[r][p]), totals[h], sums[r][1]);
                    }
                }
            }
        }
        for (int r = 0; r < R; r++) out[r] = vsum(vadd(sums[r][0], sums[r][1]));
    }
}

// Dot products of AT_ONCE rows of a plain type. Long rows without gaps, of weights, are read best in one long stream,
// one row after the other. Short ones, of a cache, go together: then most of the work is to sum up vectors.
template <int TYPE> void dots_of_plain(const char *row, int64_t step, const float *x, int64_t n, float *out) {
    constexpr int64_t LONG = 512;
    static_assert(AT_ONCE == 4, "vsums takes four");
    if (n >= LONG && step == n * (TYPE == F32 ? 4 : 2)) {
        for (int r = 0; r < AT_ONCE; r++) dots<TYPE, 1, true>(row + r * step, step, x, n, out + r);
        return;
    }
    vf a[AT_ONCE];
    for (int r = 0; r < AT_ONCE; r++) a[r] = vset(0);
    int64_t i = 0;
    for (; i + W <= n; i += W) {
        const vf xs = vload(x + i);
        for (int r = 0; r < AT_ONCE; r++) a[r] = vfma(load_floats<TYPE>(row + r * step, i), xs, a[r]);
    }
    vsums(a, out);
    for (; i < n; i++) {
        for (int r = 0; r < AT_ONCE; r++) out[r] += load_float<TYPE>(row + r * step, i) * x[i];
    }
}

// Dot products of R rows of blocks that are decoded before they are multiplied: less to compile.
constexpr int64_t DECODED_BEFORE = 256;
template <int R>
void dots_of_decoded(void (*decode)(const char *, int64_t, int64_t, float *), const char *row, int64_t step,
                     const float *x, int64_t n, float *out) {
    alignas(64) float values[DECODED_BEFORE];
    for (int r = 0; r < R; r++) {
        vf sums[2] = {vset(0), vset(0)};
        for (int64_t i = 0; i < n; i += DECODED_BEFORE) {
            const int64_t some = n - i < DECODED_BEFORE ? n - i : DECODED_BEFORE;
            decode(row + r * step, i, some, values);
            for (int64_t j = 0; j < some; j += 2 * W) {
                sums[0] = vfma(vload(values + j), vload(x + i + j), sums[0]);
                sums[1] = vfma(vload(values + j + W), vload(x + i + j + W), sums[1]);
            }
        }
        out[r] = vsum(vadd(sums[0], sums[1]));
    }
}
template <int TYPE, int R> void decoded_dots(const char *row, int64_t step, const float *x, int64_t n, float *out) {
    dots_of_decoded<R>(decode<TYPE>, row, step, x, n, out);
}

// What the kernels do with rows of one type.
struct RowType {
    int type, block, size; // elements and bytes of a block
    void (*decode)(const char *row, int64_t first, int64_t n, float *out);
    void (*dot)(const char *row, int64_t step, const float *x, int64_t n, float *out);
    void (*dot4)(const char *row, int64_t step, const float *x, int64_t n, float *out);
};

// `FUSED`: codes are multiplied as they are decoded.
template <int TYPE, bool FUSED = true> constexpr RowType block_type() {
    constexpr int BLOCK = 32 * Block<TYPE>::GROUPS, SIZE = Block<TYPE>::SIZE;
    static_assert(BLOCK == type_size(TYPE)->block && SIZE == type_size(TYPE)->size);
    if constexpr (FUSED) return {TYPE, BLOCK, SIZE, decode<TYPE>, dots<TYPE, 1>, dots<TYPE, AT_ONCE>};
    else return {TYPE, BLOCK, SIZE, decode<TYPE>, decoded_dots<TYPE, 1>, decoded_dots<TYPE, AT_ONCE>};
}

const RowType ROW_TYPES[] = {
    {F32, 1, 4, decode<F32>, dots<F32, 1>, dots_of_plain<F32>},
    {F16, 1, 2, decode<F16>, dots<F16, 1>, dots_of_plain<F16>},
    {BF16, 1, 2, decode<BF16>, dots<BF16, 1>, dots_of_plain<BF16>},
    block_type<Q8_0>(),
    block_type<Q4_0>(),
    block_type<Q4_1>(),
    block_type<Q5_0>(),
    block_type<Q5_1>(),
    block_type<IQ4_NL>(),
    block_type<MXFP4>(),
    block_type<Q2_K>(),
    block_type<Q3_K>(),
    block_type<Q4_K>(),
    block_type<Q5_K>(),
    block_type<Q6_K>(),
#define OF_ROWS(TYPE) block_type<TYPE, false>(),
    TYPES_IN_ROWS(OF_ROWS)
#undef OF_ROWS
};

// The functions for a type; null where there are none.
inline const RowType *row_type(int type) {
    for (const RowType &known : ROW_TYPES) {
        if (known.type == type) return &known;
    }
    return nullptr;
}

} // namespace
