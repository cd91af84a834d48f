// Products of matrices by tensor cores: both sides become 16-bit floats in the memory of a group, in
// tiles of 64 rows of w and 64 columns of x. Each of four warps has 32 of both.

#define TALL 64
#define DEEP 32
// Rows are longer than they need be, so that a warp's items read from different banks.
#define PITCH (DEEP + 8)
#ifdef BRAIN
#define STORE16 store_bf16
#define LOAD16 load_bf16
#define KIND "bf16"
#else
#define STORE16 store_f16
#define LOAD16 load_f16
#define KIND "f16"
#endif

// c += a b for 16 x 16 elements of a and 16 x 8 of b, two to a number: item `lane` of a warp has rows
// lane / 4 and lane / 4 + 8 of a and c, and column lane / 4 of b.
#if !defined(TENSORPLUG_EMULATED) && __CUDA_ARCH__ >= 800
DEVICE void multiply(float* c, const uint* a, const uint* b) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32." KIND "." KIND ".f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
#else
// Without such cores items tell each other what they have.
DEVICE float two_products(uint a, uint b) {
  return LOAD16((const uchar*)&a) * LOAD16((const uchar*)&b) + LOAD16((const uchar*)&a + 2) * LOAD16((const uchar*)&b + 2);
}
DEVICE void multiply(float* c, const uint* a, const uint* b) {
  const int lane = ITEM_X % 32, mine = lane / 4 * 4, column = lane % 4 * 8;
  for (int from = 0; from < 4; from++) {
    uint theirs[4];
    for (int i = 0; i < 4; i++) theirs[i] = __shfl_sync(WHOLE_WARP, a[i], mine + from);
    for (int j = 0; j < 2; j++)
      for (int i = 0; i < 2; i++) {
        const uint other = __shfl_sync(WHOLE_WARP, b[i], column + 4 * j + from);
        c[j] += two_products(theirs[2 * i], other);
        c[j + 2] += two_products(theirs[2 * i + 1], other);
      }
  }
}
#endif

//: mma_product
KERNEL_HEAD {
  __shared__ uint ws[TALL][PITCH / 2];
  __shared__ uint xs[TALL][PITCH / 2];
  const int row = GROUP_X * TALL, column = GROUP_Y * TALL;
  const int i2 = GROUP_Z % p.y.ne[2], i3 = GROUP_Z / p.y.ne[2];
  const int warp = ITEM_X / 32, high = ITEM_X % 32 / 4, low = ITEM_X % 4;
  const int first = warp % 2 * 32, second = warp / 2 * 32;
  float sums[2][4][4];
  for (int m = 0; m < 2; m++)
    for (int n = 0; n < 4; n++)
      for (int i = 0; i < 4; i++) sums[m][n][i] = 0.0f;
  for (int start = 0; start < p.x.ne[0]; start += DEEP) {
    for (int at = ITEM_X; at < TALL * DEEP; at += 128) {
      const int i = at / DEEP, k = start + at % DEEP, inside = k < p.x.ne[0];
      float w = 0.0f, x = 0.0f;
      if (inside && row + i < p.w.ne[1]) w = W_AT(ROW(w, row + i, i2 / p.repeat2, i3 / p.repeat3), k);
      if (inside && column + i < p.x.ne[1]) x = load_x(AT(x, k, column + i, i2, i3));
      STORE16((uchar*)ws[i] + at % DEEP * 2, w);
      STORE16((uchar*)xs[i] + at % DEEP * 2, x);
    }
    LOCAL_BARRIER;
    _Pragma("unroll") for (int k = 0; k < DEEP / 2; k += 8) {
      uint a[2][4], b[4][2];
      for (int m = 0; m < 2; m++)
        for (int i = 0; i < 4; i++) a[m][i] = ws[first + 16 * m + high + i % 2 * 8][k + low + i / 2 * 4];
      for (int n = 0; n < 4; n++)
        for (int i = 0; i < 2; i++) b[n][i] = xs[second + 8 * n + high][k + low + i * 4];
      for (int m = 0; m < 2; m++)
        for (int n = 0; n < 4; n++) multiply(sums[m][n], a[m], b[n]);
    }
    LOCAL_BARRIER;
  }
  for (int m = 0; m < 2; m++)
    for (int n = 0; n < 4; n++)
      for (int i = 0; i < 4; i++) {
        const int i0 = row + first + 16 * m + high + i / 2 * 8, i1 = column + second + 8 * n + 2 * low + i % 2;
        if (i0 < p.y.ne[0] && i1 < p.y.ne[1]) store_f32(AT(y, i0, i1, i2, i3), sums[m][n][i]);
      }
}
