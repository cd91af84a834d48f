// Products of matrices on GPUs: the items of a group share rows. Any types, any layouts.

// Element `k` of the row of `w` at `row`.
#if w_block > 1
#define W_AT(row, k) decode_w((row) + (long)((k) / w_block) * p.w.nb[0], (k) % w_block)
#else
#define W_AT(row, k) load_w((row) + (long)(k) * p.w.nb[0])
#endif
#define X_AT(row, k) load_x((row) + (long)(k) * p.x.nb[0])

// With EXPERTS, row `m` of `x` and `y` is that of a pair (i, t) of `ids`, and `w` that of an expert.
#ifdef EXPERTS
#define W_ROW(n) ROW(w, n, expert, 0)
#define X_ROW(m) ROW(x, PAIR(m) % p.y.ne[1] % p.x.ne[1], PAIR(m) / p.y.ne[1], 0)
#define Y_ROW(m) ROW(y, PAIR(m) % p.y.ne[1], PAIR(m) / p.y.ne[1], 0)
#else
#define W_ROW(n) ROW(w, n, i2 / p.repeat2, i3 / p.repeat3)
#define X_ROW(m) ROW(x, m, i2, i3)
#define Y_ROW(m) ROW(y, m, i2, i3)
#endif

//: row_product
// A group for each row of `w`: its items take 8 neighbouring elements in turn, whose scale is the
// same, and multiply them with COLS rows of `x`.
#define EVERY(name, count) _Pragma("unroll") for (int name = 0; name < count; name++)
KERNEL_HEAD {
  GROUP_SCRATCH(room);
  const int row = GROUP_X, item = ITEM_X, length = p.w.ne[0];
#ifdef EXPERTS
#define PAIR(m) GROUP_Z
  const int columns = 1;
  const int expert = *(GLOBAL const int*)AT(ids, PAIR(0) % p.y.ne[1], PAIR(0) / p.y.ne[1], 0, 0);
  if (expert < 0 || expert >= p.w.ne[2]) {
    if (item == 0) ((GLOBAL float*)Y_ROW(0))[row] = 0.0f;
    return;
  }
#else
  const int columns = p.x.ne[1];
  const int i2 = GROUP_Z % p.x.ne[2], i3 = GROUP_Z / p.x.ne[2];
#endif
  GLOBAL const uchar* w = W_ROW(row);
  GLOBAL const uchar* x[COLS];
  float sums[COLS];
  EVERY(c, COLS) {
    x[c] = X_ROW(min(c, columns - 1));
    sums[c] = 0.0f;
  }
  const int whole = length / 8;
  for (int part = item; part < whole; part += GROUP_SIZE) {
    EVERY(i, 8) {
      const float value = W_AT(w, 8 * part + i);
      EVERY(c, COLS) sums[c] += value * X_AT(x[c], 8 * part + i);
    }
  }
#if w_block == 1
  for (int k = 8 * whole + item; k < length; k += GROUP_SIZE) {
    EVERY(c, COLS) sums[c] += W_AT(w, k) * X_AT(x[c], k);
  }
#endif
  EVERY(c, COLS) {
    const float sum = GROUP_SUM(sums[c], room);
    if (item == 0 && c < columns) ((GLOBAL float*)Y_ROW(c))[row] = sum;
  }
}

//: tile_product
// A group for each TILE x TILE results, which its items share 4 x 4 at a time, DEPTH elements deep.
#define TILE 64
#define DEPTH 16
#define STEP (TILE + 1)
KERNEL_HEAD {
  LOCAL float ws[DEPTH * STEP];
  LOCAL float xs[DEPTH * STEP];
  const int n = p.w.ne[1], length = p.w.ne[0], item = ITEM_X;
#ifdef EXPERTS
#define LIST(i) *(GLOBAL const int*)AT(lists, i, 0, 0, 0)
#undef PAIR
#define PAIR(m) LIST(p.w.ne[2] + 1 + start + (m))
  const int expert = GROUP_Z, start = LIST(expert), rows = LIST(expert + 1) - start;
#else
  const int rows = p.x.ne[1];
  const int i2 = GROUP_Z % p.x.ne[2], i3 = GROUP_Z / p.x.ne[2];
#endif
  const int n0 = GROUP_X * TILE, m0 = GROUP_Y * TILE;
  if (m0 >= rows) return;
  // Each item brings 4 neighbouring elements of a row. Rows beyond the last are copies of it.
  const int line = item / 4, depth = item % 4 * 4;
  GLOBAL const uchar* w = W_ROW(min(n0 + line, n - 1));
  GLOBAL const uchar* x = X_ROW(min(m0 + line, rows - 1));
  const int a = item % 16 * 4, b = item / 16 * 4;
  float sums[4][4];
  for (int i = 0; i < 16; i++) sums[i / 4][i % 4] = 0.0f;
  for (int k0 = 0; k0 < length; k0 += DEPTH) {
    LOCAL_BARRIER;
    for (int i = 0; i < 4; i++) {
      const int k = k0 + depth + i;
      ws[(depth + i) * STEP + line] = k < length ? W_AT(w, k) : 0.0f;
      xs[(depth + i) * STEP + line] = k < length ? X_AT(x, k) : 0.0f;
    }
    LOCAL_BARRIER;
    for (int k = 0; k < DEPTH; k++) {
      for (int j = 0; j < 4; j++) {
        const float right = xs[k * STEP + b + j];
        for (int i = 0; i < 4; i++) sums[j][i] += ws[k * STEP + a + i] * right;
      }
    }
  }
  for (int j = 0; j < 4; j++) {
    if (m0 + b + j >= rows) break;
    GLOBAL float* y = (GLOBAL float*)Y_ROW(m0 + b + j);
    for (int i = 0; i < 4; i++) {
      if (n0 + a + i < n) y[n0 + a + i] = sums[j][i];
    }
  }
}
