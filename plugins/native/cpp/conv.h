// Windows of images: copied into rows, summed back, weighed by channel, pooled. Signals are images of height 1.
#pragma once

#include "elementwise.h"

namespace {

// How windows slide: the first six of i.
struct Slide {
    int64_t s0, s1, p0, p1, d0, d1;

    explicit Slide(const Node &node)
        : s0(node.i[0]), s1(node.i[1]), p0(node.i[2]), p1(node.i[3]), d0(node.i[4]), d1(node.i[5]) {}
};

// `n` elements of a row, `step` apart from element `start` on, which may lie before it; 0 where there are none.
inline void read_taps(const Operand &x, const char *row, int64_t start, int64_t step, int64_t n, float *out) {
    for (int64_t i = 0; i < n; i++) {
        const int64_t at = start + i * step;
        out[i] = at < 0 || at >= x.ne[0] ? 0.0f : number_at(x.type, row + at * x.nb[0]);
    }
}

// out [taps * channels, windows, ..., n], from window i[9] on: i[6] x i[7] taps, i[8] windows side by side.
inline void im2col(const Node &node, Part &part) {
    const Operand &x = node.src[0], &out = node.out;
    const Slide slide(node);
    const int64_t wide = node.i[6], high = node.i[7], beside = node.i[8];
    const int64_t size = type_size(out.type)->size;
    const Span rows = share(row_count(out), part);
    for (int64_t row = rows.first; row < rows.last; row++) {
        if (give_up(part, row)) return;
        const Place p = place(out, row);
        const int64_t window = node.i[9] + p.i1 + p.i2 * out.ne[1];
        // The image element that the first tap of the window meets; it may lie in the padding.
        const int64_t left = window % beside * slide.s0 - slide.p0, top = window / beside * slide.s1 - slide.p1;
        char *to = at(out, p);
        // Copy the taps of all channels, row by row, TILE at a time; padding is zero.
        for (int64_t c = 0; c < x.ne[2]; c++) {
            for (int64_t j = 0; j < high; j++) {
                const int64_t y = top + j * slide.d1;
                for (int64_t first = 0; first < wide; first += TILE) {
                    const int64_t n = wide - first < TILE ? wide - first : TILE;
                    float room[TILE];
                    float *values = out.type == F32 ? (float *)to : room;
                    if (y < 0 || y >= x.ne[1]) {
                        for (int64_t i = 0; i < n; i++) values[i] = 0;
                    } else {
                        read_taps(x, at(x, y, c, p.i3), left + first * slide.d0, slide.d0, n, values);
                    }
                    if (out.type != F32) store_row(out.type, values, n, to, size);
                    to += n * size;
                }
            }
        }
    }
}

// Indices u with 0 <= u * step + offset < n, of `count`.
inline Span inside(int64_t step, int64_t offset, int64_t n, int64_t count) {
    const int64_t first = offset < 0 ? (-offset + step - 1) / step : 0;
    const int64_t last = n > offset ? (n - offset + step - 1) / step : 0;
    return {first, last < count ? last : count};
}

// out [.., .., channels] = sum of src [places, taps wide, taps high, channels] where they belong; i[6] places are
// side by side.
inline void col2im(const Node &node, Part &part) {
    const Operand &x = node.src[0], &out = node.out;
    const Slide slide(node);
    const int64_t beside = node.i[6], rows_of_places = x.ne[0] / beside;
    const Span rows = share(row_count(out), part);
    for (int64_t row = rows.first; row < rows.last; row++) {
        if (give_up(part, row)) return;
        const Place p = place(out, row);
        float *z = (float *)at(out, p);
        for (int64_t i = 0; i < out.ne[0]; i++) z[i] = 0;
        for (int64_t j = 0; j < x.ne[2]; j++) {
            // The row v of places whose taps j lie in this row of the result, if there is one.
            const int64_t from = p.i1 + slide.p1 - j * slide.d1, v = from / slide.s1;
            if (from < 0 || from % slide.s1 || v >= rows_of_places) continue;
            for (int64_t i = 0; i < x.ne[1]; i++) {
                // Add tap i of the places in that row, where it lies inside the result.
                const char *values = at(x, i, j, p.i2) + v * beside * x.nb[0];
                const int64_t offset = i * slide.d0 - slide.p0;
                const Span seen = inside(slide.s0, offset, out.ne[0], beside);
                for (int64_t u = seen.first; u < seen.last; u++) {
                    z[u * slide.s0 + offset] += *(const float *)(values + u * x.nb[0]);
                }
            }
        }
    }
}

// Each channel of src[1] with its filter of src[0] [wide, high, 1, channels].
inline void conv_dw(const Node &node, Part &part) {
    const Operand &filters = node.src[0], &x = node.src[1];
    const Slide slide(node);
    each_tile(node.out, part, [&](const Place &p, int64_t first, int64_t n) {
        float *z = (float *)at(node.out, p) + first;
        for (int64_t u = 0; u < n; u++) z[u] = 0;
        for (int64_t j = 0; j < filters.ne[1]; j++) {
            // The row of the image that row j of the filter meets; padding adds nothing.
            const int64_t y = p.i1 * slide.s1 + j * slide.d1 - slide.p1;
            if (y < 0 || y >= x.ne[1]) continue;
            const float *row = (const float *)at(x, y, p.i2, p.i3);
            for (int64_t i = 0; i < filters.ne[0]; i++) {
                // Add the products of tap i with the elements that it meets inside the image.
                const float factor = number_at(filters.type, at(filters, j, 0, p.i2) + i * filters.nb[0]);
                const int64_t offset = first * slide.s0 + i * slide.d0 - slide.p0, step = slide.s0;
                const Span seen = inside(step, offset, x.ne[0], n);
                if (step == 1) {
                    for (int64_t u = seen.first; u < seen.last; u++) z[u] += factor * row[u + offset];
                } else {
                    for (int64_t u = seen.first; u < seen.last; u++) z[u] += factor * row[u * step + offset];
                }
            }
        }
    });
}

// The largest or the mean of windows of i[6] x i[7] elements; i[8]: largest; i[9]: only elements that are there
// count in a mean.
inline void pool(const Node &node, Part &part) {
    const Operand &x = node.src[0];
    const Slide slide(node);
    const int64_t wide = node.i[6], high = node.i[7];
    const bool largest = node.i[8];
    each_tile(node.out, part, [&](const Place &p, int64_t first, int64_t n) {
        float *z = (float *)at(node.out, p) + first;
        const int64_t top = p.i1 * slide.s1 - slide.p1;
        for (int64_t u = 0; u < n; u++) {
            // The columns of the window, cut off at the end of the image.
            const int64_t left = (first + u) * slide.s0 - slide.p0;
            const int64_t end = left + wide < x.ne[0] ? left + wide : x.ne[0];
            float value = largest ? -3.40282347e38f : 0.0f;
            // The largest element or the sum of what is inside the image; NaN counts as largest.
            for (int64_t y = top < 0 ? 0 : top; y < top + high && y < x.ne[1]; y++) {
                const float *row = (const float *)at(x, y, p.i2, p.i3);
                for (int64_t i = left < 0 ? 0 : left; i < end; i++) {
                    if (largest) value = row[i] > value || row[i] != row[i] ? row[i] : value;
                    else value += row[i];
                }
            }
            // A mean divides by the size of the window, or by the number of its columns in the image.
            const int64_t start = left < 0 ? 0 : left, there = end > start ? end - start : 1;
            z[u] = largest ? value : value / (float)(node.i[9] ? there : wide * high);
        }
    });
}

} // namespace
