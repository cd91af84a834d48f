// Products with many rows of `x`, on processors: panels of 32 rows of `w`, decoded and turned to local
// memory DEPTH elements at a time, against 8 rows of `x` at a time. A panel is one of floats or of
// codes as bytes.

//: matmul
#define ROWS 8
#define EACH(f) f(0) f(1) f(2) f(3) f(4) f(5) f(6) f(7)

KERNEL_HEAD {
  LOCAL panel decoded;
  const int n = p.w.ne[1], length = p.w.ne[0];
  MATRIX  // declares columns; i2, i3 or expert, start, read by W_ROW, X_ROW, Y_ROW
  const int first = GROUP_Y * p.rows, last = min(first + p.rows, columns);
  const int end = min((GROUP_X + 1) * p.panels * 32, n);
  if (first >= last) return;
  for (int n0 = GROUP_X * p.panels * 32; n0 < end; n0 += 32) {
    bytes w = W_ROW(n0);
    const int count = min(n - n0, 32);
    for (int k0 = 0; k0 < length; k0 += DEPTH) {
      // Decode a panel: DEPTH elements of 32 rows of w.
      const int depth = min(length - k0, DEPTH);
      for (int half_ = 0; half_ < 32; half_ += 16) {
        const int from = min(half_, count - 1);
        fill(&decoded, half_ / 16, w + from * p.w.nb[1], p.w.nb[1], count - from, k0, depth);
      }
      // Multiply it by 8 rows of x at a time; results of earlier panels are added.
      for (int m = first; m < last; m += ROWS) {
#define START(i) \
  elements x##i = X_FROM(min(m + i, columns - 1), k0); \
  float16 a##i = 0.0f, b##i = 0.0f;
        EACH(START)  // declares x0 to x7, sums a0 to a7 and b0 to b7
        for (int k = 0; k < depth; k += STEP) {
          TAKE(decoded, k)
#define NEXT(i) ADD(k, x##i, a##i, b##i)
          EACH(NEXT)
        }
#define FINISH(i) \
  if (m + i < last) { \
    GLOBAL float* y = (GLOBAL float*)Y_ROW(m + i) + n0; \
    if (count == 32) { \
      if (k0) a##i += vload16(0, y), b##i += vload16(1, y); \
      vstore16(a##i, 0, y); \
      vstore16(b##i, 1, y); \
    } else { \
      float ends[32]; \
      vstore16(a##i, 0, ends); \
      vstore16(b##i, 1, ends); \
      for (int c = 0; c < count; c++) y[c] = ends[c] + (k0 ? y[c] : 0.0f); \
    } \
  }
        EACH(FINISH)  // store, or add to what is stored
      }
    }
  }
}
