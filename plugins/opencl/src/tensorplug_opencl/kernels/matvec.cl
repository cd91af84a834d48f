// Products with few rows of `x`, on processors: one work item streams rows of `w`.

//: matvec
// Up to COLS rows of `x` against `p.rows` rows of `w`, which an item reads from one end to the other
// as AT_ONCE streams: decoding takes its time, and streams that are far apart are fetched ahead.
// Bare numbers come in one stream; more of them would fall on the same lines of the caches. SUMS
// sums of a row do not wait for each other.
#if COLS > 2
#define AT_ONCE 2
#define SUMS 1
#elif w_block > 1
#define AT_ONCE 2
#define SUMS 2
#else
#define AT_ONCE 1
#define SUMS (8 / COLS)
#endif
#define BLOCKS_AT_ONCE (SUMS > 2 * PARTS ? SUMS / (2 * PARTS) : 1)

// Processors fetch ahead within a page by themselves; what is AHEAD bytes on may be on the next.
#define AHEAD 2048

// Multiplies `count` blocks of each stream, and moves on to the next.
#define BLOCKS(count) { \
  EVERY(u, count) { \
    head h[AT_ONCE]; \
    EVERY(r, AT_ONCE) FETCH_BLOCK(w[r] + u * BLOCK_BYTES + AHEAD) \
    EVERY(r, AT_ONCE) h[r] = begin(w[r] + u * BLOCK_BYTES); \
    EVERY(j, PARTS) { /* Decode 32 elements, multiply them with COLS rows of x. */ \
      const int t = u * PARTS + j, a = 2 * t % SUMS, b = (2 * t + 1) % SUMS; \
      EVERY(r, AT_ONCE) { \
        float16 lo, hi; \
        part(w[r] + u * BLOCK_BYTES, &h[r], j, &lo, &hi); \
        EVERY(c, COLS) { \
          sums[r][c][a] = fma(lo, vload16(2 * t, x[c] + k), sums[r][c][a]); \
          sums[r][c][b] = fma(hi, vload16(2 * t + 1, x[c] + k), sums[r][c][b]); \
        } \
      } \
    } \
  } \
  EVERY(r, AT_ONCE) w[r] += count * BLOCK_BYTES; \
  k += 32 * PARTS * count; \
}

KERNEL_HEAD {
  const int first = GROUP_X * p.rows;
  const int last = min(first + p.rows, p.w.ne[1]);
  const int blocks = p.w.ne[0] / (32 * PARTS);
  GLOBAL const float* x[COLS];
  MATRIX  // declares columns; i2, i3 or expert, start, read by W_ROW, X_ROW, Y_ROW
  if (!IS_EXPERT) {  // no expert: zeros
    for (int row = first; row < last; row++) ((GLOBAL float*)Y_ROW(0))[row] = 0.0f;
    return;
  }
  EVERY(c, COLS) x[c] = (GLOBAL const float*)X_ROW(min(c, columns - 1));
  const int span = (last - first + AT_ONCE - 1) / AT_ONCE;
  for (int row = first; row < first + span; row++) {
    bytes w[AT_ONCE];
    float16 sums[AT_ONCE][COLS][SUMS];
    EVERY(r, AT_ONCE) {
      // Rows beyond the last compute the last one again, and their results are not stored.
      w[r] = W_ROW(min(row + r * span, last - 1));
      EVERY(c, COLS) EVERY(i, SUMS) sums[r][c][i] = 0.0f;
    }
    // Whole blocks, several at a time, then one by one.
    int k = 0, block = 0;
    for (; block + BLOCKS_AT_ONCE <= blocks; block += BLOCKS_AT_ONCE) BLOCKS(BLOCKS_AT_ONCE)
#if w_block <= 128
    for (; block < blocks; block++) BLOCKS(1)
#endif
    // The sums of lanes, and the elements after the last whole block.
    EVERY(r, AT_ONCE) {
      EVERY(c, COLS) {
        float16 all = sums[r][c][0];
        for (int i = 1; i < SUMS; i++) all += sums[r][c][i];
        float sum = sum_of_lanes(all);
        for (int rest = 0; k + rest < p.w.ne[0]; rest++) sum += REST_AT(w[r], rest) * x[c][k + rest];
        if (row + r * span < last && c < columns) ((GLOBAL float*)Y_ROW(c))[row + r * span] = sum;
      }
    }
  }
}
