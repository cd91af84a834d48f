// Products with few columns: which columns a group has, and what becomes of their sums. A kernel has
// `lane`, `i0` and `row`; with w2 a second matrix gives sums, by which activated ones are multiplied.

#ifdef EXPERTS
#define MATRIX(name) ROW(name, row, expert, 0)
#define COLUMN(c) (first % p.x.ne[1])
#define BIAS(name, c) load_##name(AT(name, i0, expert, 0, 0))
// Without an expert a product is 0, and a bias none.
#if defined(bias_bytes) || defined(bias2_bytes)
#define NOTHING BITS_FLOAT(0x7fc00000u)
#else
#define NOTHING 0.0f
#endif
#define PLACE_COLUMNS \
  const int first = GROUP_Y, i2 = GROUP_Z, i3 = 0; \
  const int expert = *(const int*)AT(ids, first, i2, 0, 0); \
  if (expert < 0 || expert >= p.w.ne[2]) { \
    if (lane == 0 && i0 < p.w.ne[1]) store_f32(AT(y, i0, first, i2, 0), NOTHING); \
    return; \
  }
#else
#define MATRIX(name) ROW(name, row, i2 / p.repeat2, i3 / p.repeat3)
#define COLUMN(c) (first + (c) < p.x.ne[1] ? first + (c) : p.x.ne[1] - 1)
#define BIAS(name, c) \
  load_##name(AT(name, i0 % p.name.ne[0], (first + (c)) % p.name.ne[1], i2 % p.name.ne[2], i3 % p.name.ne[3]))
#define PLACE_COLUMNS const int first = GROUP_Y * COLUMNS, i2 = GROUP_Z % p.y.ne[2], i3 = GROUP_Z / p.y.ne[2];
#endif

#ifdef bias_bytes
#define BIASED(sum, c) ((sum) + BIAS(bias, c))
#else
#define BIASED(sum, c) (sum)
#endif
#ifdef bias2_bytes
#define BIASED2(sum, c) ((sum) + BIAS(bias2, c))
#else
#define BIASED2(sum, c) (sum)
#endif

#ifndef w2_bytes
#define WITH_GATE(...)
#define RESULT(c) BIASED(sum, c)
#else
#define WITH_GATE(...) __VA_ARGS__
#ifdef OAI
#define RESULT(c) gated_oai_of(BIASED(sum, c), BIASED2(sum2, c), p.alpha, p.limit)
#else
#define RESULT(c) FUNCTION(BIASED(sum, c)) * BIASED2(sum2, c)
#endif
#endif

// `sums`, and `sums2`, of SHARING items each become results.
#define FINISH(SHARING) \
  for (int c = 0; c < COLUMNS; c++) { \
    float sum = sums[c]; \
    WITH_GATE(float sum2 = sums2[c];) \
    for (int other = SHARING / 2; other > 0; other >>= 1) { \
      sum += __shfl_xor_sync(0xffffffffu, sum, other); \
      WITH_GATE(sum2 += __shfl_xor_sync(0xffffffffu, sum2, other);) \
    } \
    if (lane == 0 && i0 < p.w.ne[1] && first + c < p.y.ne[1]) \
      store_f32(AT(y, i0, first + c, i2, i3), RESULT(c)); \
  }
