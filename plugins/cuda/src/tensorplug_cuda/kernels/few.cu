// Products with few columns: which columns a group has, and how their sums come together. A kernel has
// `lane`, `i0` and `row`; few.k says what becomes of sums.

#ifdef EXPERTS
#define MATRIX(name) ROW(name, row, expert, 0)
#define PLACE_COLUMNS \
  const int first = GROUP_Y, i2 = GROUP_Z, i3 = 0; \
  const int expert = *(const int*)AT(ids, first, i2, 0, 0); \
  if (expert < 0 || expert >= p.w.ne[2]) { \
    if (lane == 0 && i0 < p.w.ne[1]) store_f32(AT(y, i0, first, i2, 0), NOTHING); \
    return; \
  }
#else
#define MATRIX(name) ROW(name, row, i2 / p.repeat2, i3 / p.repeat3)
#define PLACE_COLUMNS const int first = GROUP_Y * COLUMNS, i2 = GROUP_Z % p.y.ne[2], i3 = GROUP_Z / p.y.ne[2];
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
