// Functions of vectors, made of those in simd.h, and the tables of all functions of one and of two elements.
#pragma once

#include "program.h"
#include "simd.h"

namespace {

// --- parts -------------------------------------------------------------------------------------------------------

template <class F> inline vf each_lane(F f, vf x) {
    float lanes[W];
    vstore(lanes, x);
    for (int i = 0; i < W; i++) lanes[i] = f(lanes[i]);
    return vload(lanes);
}

#if defined(__AVX512F__)
inline vf vfloor(vf x) { return _mm512_roundscale_ps(x, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC); }
inline vf vtrunc(vf x) { return _mm512_roundscale_ps(x, _MM_FROUND_TO_ZERO | _MM_FROUND_NO_EXC); }
#elif defined(__AVX2__)
inline vf vfloor(vf x) { return _mm256_floor_ps(x); }
inline vf vtrunc(vf x) { return _mm256_round_ps(x, _MM_FROUND_TO_ZERO | _MM_FROUND_NO_EXC); }
#elif defined(TP_NEON)
inline vf vfloor(vf x) { return vrndmq_f32(x); }
inline vf vtrunc(vf x) { return vrndq_f32(x); }
#else
inline vf vfloor(vf x) { return each_lane([](float a) { return std::floor(a); }, x); }
inline vf vtrunc(vf x) { return each_lane([](float a) { return std::trunc(a); }, x); }
#endif

// x where a > b, else y; a comparison with NaN is false.
inline vf vpick(vf a, vf b, vf x, vf y) { return vselect(vless(b, a), x, y); }
inline vf vnegative(vf x) { return vmul(x, vset(-1)); }
// c[0] * x**(N-1) + ... + c[N-1]
template <int N> inline vf vpolynomial(const float (&c)[N], vf x) {
    vf p = vset(c[0]);
    for (int i = 1; i < N; i++) p = vfma(p, x, vset(c[i]));
    return p;
}

inline vf vexpm1(vf x) {
    // Taylor's series; its next term is less than 1e-8 of the result.
    static constexpr float c[] = {1 / 40320.0f, 1 / 5040.0f, 1 / 720.0f, 1 / 120.0f, 1 / 24.0f, 1 / 6.0f, 0.5f, 1};
    return vpick(vset(0.5f), vabs(x), vmul(vpolynomial(c, x), x), vsub(vexp(x), vset(1)));
}

inline vf vtanh(vf x) {
    // Moshier 1992 (Cephes) near zero, where 1 - 2 / (exp(2x) + 1) would lose digits.
    static constexpr float c[] = {-5.70498872745e-3f, 2.06390887954e-2f, -5.37397155531e-2f, 1.33314422036e-1f,
                                  -3.33332819422e-1f};
    const vf a = vabs(x), square = vmul(x, x);
    const vf near = vfma(vmul(vpolynomial(c, square), square), x, x);
    const vf far = vsub(vset(1), vdiv(vset(2), vadd(vexp(vadd(a, a)), vset(1))));
    return vpick(vset(0.625f), a, near, vpick(x, vset(0), far, vnegative(far)));
}

// erfc(z) for z >= 0: t * polynomial * exp(-z**2), t = 1 / (1 + z / 2), Chebyshev's points on 0 .. 10.5; the relative
// error of the polynomial is below 1e-7.
inline vf verfc(vf z) {
    static constexpr float c[] = {5.719310593121918e-06f, 6.529845450131688e-06f,  -7.098748756106943e-05f,
                                  9.852653420239221e-06f, 0.0006250582518987358f,  -0.0006749083986505866f,
                                  -0.00632731756195426f,  0.006308435462415218f,   0.10352098941802979f,
                                  0.3271878957748413f,    0.5694087147712708f};
    constexpr float LAST = 1 / (1 + 10.5f / 2);
    z = vmin(vset(10.5f), z);
    const vf t = vdiv(vset(1), vfma(z, vset(0.5f), vset(1)));
    const vf u = vmul(vsub(t, vset((1 + LAST) / 2)), vset(2 / (1 - LAST)));
    return vmul(vmul(vpolynomial(c, u), t), vexp(vnegative(vmul(z, z))));
}

inline vf vlogistic(vf x, vf slope) { return vdiv(x, vadd(vset(1), vexp(vnegative(vmul(x, slope))))); }

inline vf vgelu(vf x) {
    // 0.5 * x * (1 + tanh(u)) = x / (1 + exp(-2 * u))
    const vf cubic = vfma(vmul(x, x), vset(0.044715f), vset(1));
    const vf u = vmul(vmul(x, vset(-2 * 0.79788456080286535588f)), cubic);
    return vdiv(x, vadd(vset(1), vexp(u)));
}

inline vf vgelu_erf(vf x) {
    // 1 + erf(x / sqrt 2) is erfc(z) for negative x and 2 - erfc(z) for others, z = |x| / sqrt 2.
    const vf tail = verfc(vmul(vabs(x), vset(0.70710678118654752440f)));
    return vmul(vmul(vpick(x, vset(0), vsub(vset(2), tail), tail), vset(0.5f)), x);
}

inline vf vsoftplus(vf x) {
    const vf small = each_lane([](float e) { return std::log1p(e); }, vexp(x));
    return vpick(x, vset(20), x, small);
}

// Halves go away from zero. Adding 0.5 would lift 0.49999997 over the edge; doubling is exact.
inline vf vround_away(vf x) {
    const vf whole = vtrunc(x), rest = vsub(x, whole);
    return vpick(vabs(x), vset(8388608.0f), x, vadd(whole, vtrunc(vadd(rest, rest))));
}

inline vf vhardsigmoid(vf x) { return vbound(vdiv(vadd(x, vset(3)), vset(6)), 0, 1); }

inline vf vxielu(vf x, float alpha_n, float alpha_p, float beta, float eps) {
    const vf below = vmul(vsub(vexpm1(vmin(vset(eps), x)), x), vset(alpha_n));
    const vf above = vmul(vmul(x, x), vset(alpha_p));
    return vfma(x, vset(beta), vpick(x, vset(0), above, below));
}

inline vf vswiglu_oai(vf x, vf gate, float alpha, float limit) {
    return vmul(vlogistic(vmin(vset(limit), x), vset(alpha)), vadd(vbound(gate, -limit, limit), vset(1)));
}

// --- tables ------------------------------------------------------------------------------------------------------

// z = function(x), parameters f.
struct Mapping {
    MapFunction function;
    void (*compute)(const float *x, int64_t n, const float *f, float *z);
};
struct Joining {
    JoinFunction function;
    void (*compute)(const float *x, const float *y, int64_t n, const float *f, float *z);
};

inline vf load_some(const float *p, int64_t count) { return count == W ? vload(p) : vload(p, (int)count); }
inline void store_some(float *p, vf a, int64_t count) { count == W ? vstore(p, a) : vstore(p, a, (int)count); }

// Calls `f` with each vector of a row: the index of its first element, and how many there are.
#define EACH_VECTOR(i, count, n)                                                                                       \
    for (int64_t i = 0, count = 0; count = (n) - i < W ? (n) - i : W, i < (n); i += W)

#define MAPPING(NAME, expression)                                                                                      \
    {NAME, [](const float *xs, int64_t n, const float *f, float *z) {                                                  \
         (void)f;                                                                                                      \
         EACH_VECTOR(i, count, n) {                                                                                    \
             const vf x = load_some(xs + i, count);                                                                    \
             (void)x;                                                                                                  \
             store_some(z + i, expression, count);                                                                     \
         }                                                                                                             \
     }}

#define JOINING(NAME, expression)                                                                                      \
    {NAME, [](const float *xs, const float *ys, int64_t n, const float *f, float *z) {                                 \
         (void)f;                                                                                                      \
         EACH_VECTOR(i, count, n) {                                                                                    \
             const vf x = load_some(xs + i, count), y = load_some(ys + i, count);                                      \
             store_some(z + i, expression, count);                                                                     \
         }                                                                                                             \
     }}

#define LANES(function) each_lane([](float a) { return std::function(a); }, x)

constexpr Mapping MAPPINGS[] = {
    MAPPING(SQR, vmul(x, x)),
    MAPPING(SQRT, vsqrt(x)),
    MAPPING(LOG, LANES(log)),
    MAPPING(SIN, LANES(sin)),
    MAPPING(COS, LANES(cos)),
    MAPPING(ABS, vabs(x)),
    MAPPING(SGN, vpick(x, vset(0), vset(1), vpick(vset(0), x, vset(-1), x))),
    MAPPING(NEG, vnegative(x)),
    MAPPING(STEP, vpick(x, vset(0), vset(1), vset(0))),
    MAPPING(TANH, vtanh(x)),
    MAPPING(ELU, vpick(x, vset(0), x, vexpm1(x))),
    MAPPING(RELU, vmax(vset(0), x)),
    MAPPING(SIGMOID, vdiv(vset(1), vadd(vset(1), vexp(vnegative(x))))),
    MAPPING(GELU, vgelu(x)),
    MAPPING(GELU_QUICK, vlogistic(x, vset(1.702f))),
    MAPPING(GELU_ERF, vgelu_erf(x)),
    MAPPING(SILU, vlogistic(x, vset(1))),
    MAPPING(HARDSWISH, vmul(x, vhardsigmoid(x))),
    MAPPING(HARDSIGMOID, vhardsigmoid(x)),
    MAPPING(EXP, vexp(x)),
    MAPPING(EXPM1, vexpm1(x)),
    MAPPING(SOFTPLUS, vsoftplus(x)),
    MAPPING(FLOOR, vfloor(x)),
    MAPPING(CEIL, vnegative(vfloor(vnegative(x)))),
    MAPPING(ROUND, vround_away(x)),
    MAPPING(TRUNC, vtrunc(x)),
    MAPPING(XIELU, vxielu(x, f[0], f[1], f[2], f[3])),
    MAPPING(SCALE, f[1] == 0 ? vmul(x, vset(f[0])) : vadd(vmul(x, vset(f[0])), vset(f[1]))),
    MAPPING(CLAMP, vbound(x, f[0], f[1])),
    MAPPING(LEAKY_RELU, vpick(x, vset(0), x, vmul(x, vset(f[0])))),
    MAPPING(FILL, vset(f[0])),
};

constexpr Joining JOININGS[] = {
    JOINING(ADD, vadd(x, y)),
    JOINING(SUB, vsub(x, y)),
    JOINING(MUL, vmul(x, y)),
    JOINING(DIV, vdiv(x, y)),
    JOINING(REGLU, vmul(vmax(vset(0), x), y)),
    JOINING(GEGLU, vmul(vgelu(x), y)),
    JOINING(SWIGLU, vmul(vlogistic(x, vset(1)), y)),
    JOINING(GEGLU_ERF, vmul(vgelu_erf(x), y)),
    JOINING(GEGLU_QUICK, vmul(vlogistic(x, vset(1.702f)), y)),
    JOINING(SWIGLU_OAI, vswiglu_oai(x, y, f[0], f[1])),
};

#undef LANES
#undef MAPPING
#undef JOINING

template <class Table> constexpr bool functions_in_order(const Table &table, int count) {
    int next = 0;
    for (const auto &entry : table) {
        if (entry.function != next++) return false;
    }
    return next == count;
}
static_assert(functions_in_order(MAPPINGS, MAPS), "MAPPINGS must be in the order of tables.h");
static_assert(functions_in_order(JOININGS, JOINS), "JOININGS must be in the order of tables.h");

} // namespace
