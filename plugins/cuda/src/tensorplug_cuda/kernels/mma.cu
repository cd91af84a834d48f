// Products of matrices by tensor cores: both sides become 16-bit floats in the memory of a group, in
// tiles of TALL rows of w and WIDTH columns of x, of which each warp has DOWN and ACROSS.

#define DEEP 32
#define UNROLLED _Pragma("unroll")
#define TALL (WIDTH > 64 ? 128 : 64)
#define DOWN (WIDTH > 64 ? 64 : WIDTH > 32 ? 32 : 16)
#define ACROSS (WIDTH > 32 ? 32 : WIDTH)
#define ITEMS (TALL / DOWN * (WIDTH / ACROSS) * 32)
#define TILEWISE(m, n) UNROLLED for (int m = 0; m < DOWN / 16; m++) UNROLLED for (int n = 0; n < ACROSS / 8; n++)
#define X_ELEMENT(row, e) load_x((row) + (long)(e) * p.x.nb[0])
#define PAIRS_OF(a, b) make_uint4(pair(a.x, a.y), pair(a.z, a.w), pair(b.x, b.y), pair(b.z, b.w))

#if (defined(BRAIN) && defined(x_is_bf16)) || (!defined(BRAIN) && defined(x_is_f16))
#define X_QUADS HAS_QUADS(x)
#else
#define X_QUADS 0
#endif

// DEEP elements from `from` on of all rows and columns, zeros where there are none. Part `turn` of both
// memories takes them, while the other one is read.
#define LOAD(kept, rows, left, from, turn, ROW_AT, QUADS, FOURS, ELEMENT) \
  for (uint at = ITEM_X; at < rows * DEEP / 8; at += ITEMS) { \
    const uint i = at / (DEEP / 8), e = (from) + at % (DEEP / 8) * 8; \
    uint4* to = &kept[turn][i][at % (DEEP / 8)]; \
    if ((int)i >= left || e >= depth) { \
      *to = make_uint4(0, 0, 0, 0); \
      continue; \
    } \
    const uchar* row_ = ROW_AT((int)i); \
    const float4* fours = (const float4*)(row_ + 4 * e); \
    if (QUADS && e + 8 <= depth) COPY_QUAD(to, row_ + 2 * e); \
    else if (FOURS && e + 8 <= depth) *to = PAIRS_OF(fours[0], fours[1]); \
    else *to = EIGHT_OF(ELEMENT, row_, e, depth); \
  }
#define LOAD_BOTH(from, turn) \
  LOAD(ws, TALL, down, from, turn, W_ROW, w_quads, 0, W_AT) \
  LOAD(xs, WIDTH, columns, from, turn, X_ROW, x_quads, x_fours, X_ELEMENT)

// A group for rows of w (W_ROW) from `row` on and columns of x (X_ROW), with `down` and `columns` of them left, `depth`
// elements each. Both pass through local memory (`ws`, `xs`); a warp has results (`sums`) for rows from `own` on and
// columns from `other` on, and stores them (Y_ROW).
#define MATRIX_TILE \
  __shared__ uint4 ws[2][TALL][PITCH(DEEP)]; \
  __shared__ uint4 xs[2][WIDTH][PITCH(DEEP)]; \
  const int warp = ITEM_X / 32, high = ITEM_X % 32 / 4, low = ITEM_X % 4; \
  const int own = warp % (TALL / DOWN) * DOWN, other = warp / (TALL / DOWN) * ACROSS; \
  const int w_quads = HAS_QUADS(w), x_quads = X_QUADS, x_fours = HAS_FOURS(x); \
  COPIES \
  float sums[DOWN / 16][ACROSS / 8][4]; \
  TILEWISE(m, n) UNROLLED for (int i = 0; i < 4; i++) sums[m][n][i] = 0.0f; \
  LOAD_BOTH(0, 0) \
  for (int start = 0, turn = 0; start < depth; start += DEEP, turn ^= 1) { \
    COPIED; \
    LOCAL_BARRIER; \
    /* Load the next part of both sides while this one is multiplied. */ \
    if (start + DEEP < depth) { LOAD_BOTH(start + DEEP, turn ^ 1) } \
    UNROLLED for (int k = 0; k < DEEP / 8; k += 2) { \
      uint a[DOWN / 16][4], b[ACROSS / 16][4]; \
      UNROLLED for (int m = 0; m < DOWN / 16; m++) four_matrices(a[m], ROW_OF_A(ws[turn], own + 16 * m, k)); \
      UNROLLED for (int n = 0; n < ACROSS / 16; n++) \
        four_matrices(b[n], ROW_OF_COLUMNS(xs[turn], other + 16 * n, k)); \
      TILEWISE(m, n) multiply(sums[m][n], a[m], b[n / 2] + n % 2 * 2); \
    } \
  } \
  TILEWISE(m, n) UNROLLED for (int i = 0; i < 4; i++) { \
    const int i0 = own + 16 * m + high + i / 2 * 8, j = other + 8 * n + 2 * low + i % 2; \
    if (i0 < down && j < columns) store_f32(Y_ROW(j) + (long)(row + i0) * p.y.nb[0], sums[m][n][i]); \
  }

//: mma_product
KERNEL_HEAD {
  const int row = GROUP_X * TALL, down = p.w.ne[1] - row;
  const int column = GROUP_Y * WIDTH, columns = p.x.ne[1] - column;
  const int i2 = GROUP_Z % p.y.ne[2], i3 = GROUP_Z / p.y.ne[2];
  const int depth = p.x.ne[0];
#define W_ROW(i) ROW(w, row + (i), i2 / p.repeat2, i3 / p.repeat3)
#define X_ROW(j) ROW(x, column + (j), i2, i3)
#define Y_ROW(j) ROW(y, column + (j), i2, i3)
  MATRIX_TILE  // reads W_ROW, X_ROW, Y_ROW, row, down, columns, depth; stores its results
}

//: mma_experts
// Tiles of rows that have one expert; those without rows have 0 columns.
KERNEL_HEAD {
  LOCAL int numbers[WIDTH];
  const int4 tile = *(const int4*)ROW(tiles, GROUP_Y, 0, 0);
  const int expert = tile.x, columns = tile.z, row = GROUP_X * TALL, down = p.w.ne[1] - row;
  if (columns == 0) return;
  take_numbers(numbers, (const int*)ROW(rows, 0, 0, 0) + tile.y, min(columns, WIDTH), ITEMS);
  const int depth = expert < p.w.ne[2] ? p.x.ne[0] : 0;
#define W_ROW(i) ROW(w, row + (i), expert, 0)
#define X_ROW(j) ROW(x, SLOT(j) % p.x.ne[1], TOKEN(j), 0)
#define Y_ROW(j) ROW(y, SLOT(j), TOKEN(j), 0)
  MATRIX_TILE  // reads W_ROW, X_ROW, Y_ROW, row, down, columns, depth; stores its results
}
