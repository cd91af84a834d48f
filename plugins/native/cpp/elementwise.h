// Element by element: arithmetic of two tensors, of a tensor with constants, and gated units.
#pragma once

#include "rows.h"

namespace {

struct Add {
    static vf of(vf a, vf b) { return vadd(a, b); }
};
struct Sub {
    static vf of(vf a, vf b) { return vsub(a, b); }
};
struct Mul {
    static vf of(vf a, vf b) { return vmul(a, b); }
};
struct Div {
    static vf of(vf a, vf b) { return vdiv(a, b); }
};

// f32; rows without gaps; b repeats.
template <class F> void arithmetic(const Node &node, Part &part) {
    const Operand &a = node.src[0], &b = node.src[1], &out = node.out;
    const Span rows = share(row_count(out), part);
    const int64_t n = b.ne[0];
    for (int64_t row = rows.first; row < rows.last; row++) {
        if (give_up(part, row)) return;
        const Place p = place(out, row);
        const float *x = (const float *)at(a, p), *y = (const float *)at_repeated(b, p);
        float *z = (float *)at(out, p);
        if (n == 1) {
            const vf same = vset(*y);
            EACH_VECTOR(i, count, out.ne[0]) store_some(z + i, F::of(load_some(x + i, count), same), count);
            continue;
        }
        for (int64_t start = 0; start < out.ne[0]; start += n) {
            EACH_VECTOR(i, count, n) {
                const vf value = F::of(load_some(x + start + i, count), load_some(y + i, count));
                store_some(z + start + i, value, count);
            }
        }
    }
}

// f[0] * x + f[1]
inline void scale(const Node &node, Part &part) {
    const Span rows = share(row_count(node.out), part);
    const vf factor = vset(node.f[0]), bias = vset(node.f[1]);
    const bool biased = node.f[1] != 0.0f;
    for (int64_t row = rows.first; row < rows.last; row++) {
        if (give_up(part, row)) return;
        const Place p = place(node.out, row);
        const float *x = (const float *)at(node.src[0], p);
        float *z = (float *)at(node.out, p);
        EACH_VECTOR(i, count, node.out.ne[0]) {
            const vf value = vmul(load_some(x + i, count), factor);
            store_some(z + i, biased ? vadd(value, bias) : value, count);
        }
    }
}

struct Relu {
    static vf of(vf x) { return vmax(vset(0), x); }
};
struct Silu {
    static vf of(vf x) { return vdiv(x, vadd(vset(1), vexp(vsub(vset(0), x)))); }
};
struct GeluQuick {
    static vf of(vf x) { return vdiv(x, vadd(vset(1), vexp(vmul(x, vset(-1.702f))))); }
};
struct Gelu {
    // 0.5 * x * (1 + tanh(u)) = x / (1 + exp(-2 * u))
    static vf of(vf x) {
        const vf cubic = vfma(vmul(x, x), vset(0.044715f), vset(1));
        const vf u = vmul(vmul(x, vset(-2 * 0.79788456080286535588f)), cubic);
        return vdiv(x, vadd(vset(1), vexp(u)));
    }
};

// activation(src[0]) * src[1], f32 rows without gaps.
template <class F> void gated(const Node &node, Part &part) {
    const Operand &out = node.out;
    // One long row is shared by its columns.
    const bool by_rows = row_count(out) >= part.threads;
    const Span rows = by_rows ? share(row_count(out), part) : Span{0, row_count(out)};
    const Span columns = by_rows ? Span{0, out.ne[0]} : share(out.ne[0], part, 64);
    for (int64_t row = rows.first; row < rows.last; row++) {
        if (give_up(part, row)) return;
        const Place p = place(out, row);
        const float *x = (const float *)at(node.src[0], p) + columns.first;
        const float *gate = (const float *)at(node.src[1], p) + columns.first;
        float *z = (float *)at(out, p) + columns.first;
        EACH_VECTOR(i, count, columns.last - columns.first) {
            store_some(z + i, vmul(F::of(load_some(x + i, count)), load_some(gate + i, count)), count);
        }
    }
}

inline void glu(const Node &node, Part &part) {
    switch (node.i[0]) {
    case RELU: return gated<Relu>(node, part);
    case GELU: return gated<Gelu>(node, part);
    case SILU: return gated<Silu>(node, part);
    default: return gated<GeluQuick>(node, part);
    }
}

} // namespace
