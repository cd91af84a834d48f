// Products of matrices of any types and layouts: one item for each result, or tiles of them.

#define UNFLATTEN_Y \
  const uint flat = FLAT_INDEX; \
  if (flat >= p.count) return; \
  const int i0 = (int)(flat % (uint)p.y.ne[0]); \
  const uint row_ = flat / (uint)p.y.ne[0]; \
  const int i1 = (int)(row_ % (uint)p.y.ne[1]); \
  const uint matrix_ = row_ / (uint)p.y.ne[1]; \
  const int i2 = (int)(matrix_ % (uint)p.y.ne[2]); \
  const int i3 = (int)(matrix_ / (uint)p.y.ne[2]);

// Element `k` of the row of `w` at `row`.
#if w_block > 1
#define W_AT(row, k) decode_w((row) + (long)((k) / w_block) * p.w.nb[0], (k) % w_block)
#else
#define W_AT(row, k) load_w((row) + (long)(k) * p.w.nb[0])
#endif

//: product
KERNEL_HEAD {
  UNFLATTEN_Y
  const uchar* w = ROW(w, i0, i2 / p.repeat2, i3 / p.repeat3);
  const uchar* x = ROW(x, i1, i2, i3);
  float sum = 0.0f;
  for (int k = 0; k < p.x.ne[0]; k++) sum += W_AT(w, k) * load_x(x + (long)k * p.x.nb[0]);
  store_f32(AT(y, i0, i1, i2, i3), sum);
}

//: expert_product
// Rows of tokens whose id names no expert get 0.
KERNEL_HEAD {
  UNFLATTEN_Y
  const int expert = *(const int*)AT(ids, i1, i2, 0, 0);
  float sum = 0.0f;
  if (expert >= 0 && expert < p.w.ne[2]) {
    const uchar* w = ROW(w, i0, expert, 0);
    const uchar* x = ROW(x, i1 % p.x.ne[1], i2, 0);
    for (int k = 0; k < p.x.ne[0]; k++) sum += W_AT(w, k) * load_x(x + (long)k * p.x.nb[0]);
  }
  store_f32(AT(y, i0, i1, i2, i3), sum);
}

//: outer_product
KERNEL_HEAD {
  UNFLATTEN_Y
  const uchar* w = ROW(w, 0, i2 / p.repeat2, i3 / p.repeat3);
  const uchar* x = AT(x, i1, 0, i2, i3);
  float sum = 0.0f;
  for (int k = 0; k < p.x.ne[1]; k++) sum += W_AT(w + k * p.w.nb[1], i0) * load_x(x + k * p.x.nb[1]);
  store_f32(AT(y, i0, i1, i2, i3), sum);
}

//: warp_product
// A warp for each row of w and COLUMNS rows of x: four elements at a time where they lie in order.
#if defined(x_is_f32) && (defined(w_is_f32) || defined(w_is_f16) || defined(w_is_bf16))
#define IN_ORDER(pointer, role) ((ulong)(pointer) % (4 * role##_bytes) == 0 && p.role.nb[0] == role##_bytes)
DEVICE float4 four_of(const uchar* w) {
#if defined(w_is_f32)
  return *(const float4*)w;
#else
  const uint2 both = *(const uint2*)w;
#if defined(w_is_f16)
#define LOWER(v) half_bits_to_float((ushort)((v) & 0xffffu))
#define UPPER(v) half_bits_to_float((ushort)((v) >> 16))
#else
#define LOWER(v) BITS_FLOAT((v) << 16)
#define UPPER(v) BITS_FLOAT((v) & 0xffff0000u)
#endif
  return make_float4(LOWER(both.x), UPPER(both.x), LOWER(both.y), UPPER(both.y));
#endif
}
#endif
KERNEL_HEAD {
  const int lane = ITEM_X % 32, i0 = GROUP_X * (LOCAL_X / 32) + ITEM_X / 32;
  if (i0 >= p.w.ne[1]) return;
  const int first = GROUP_Y * COLUMNS, i2 = GROUP_Z % p.y.ne[2], i3 = GROUP_Z / p.y.ne[2];
  const uchar* w = ROW(w, i0, i2 / p.repeat2, i3 / p.repeat3);
  float sums[COLUMNS];
  for (int c = 0; c < COLUMNS; c++) sums[c] = 0.0f;
  int start = 0;
#ifdef IN_ORDER
  // Rows of x are alike: the first and the step between two tell of all.
  if (IN_ORDER(w, w) && IN_ORDER(ROW(x, 0, i2, i3), x) && p.x.nb[1] % 16 == 0) {
    start = p.w.ne[0] / 4 * 4;
    for (int k = 4 * lane; k < start; k += 128) {
      const float4 a = four_of(w + (long)k * w_bytes);
      for (int c = 0; c < COLUMNS; c++) {
        const int i1 = first + c < p.x.ne[1] ? first + c : p.x.ne[1] - 1;
        const float4 b = *(const float4*)(ROW(x, i1, i2, i3) + 4 * (long)k);
        sums[c] += a.x * b.x + a.y * b.y + (a.z * b.z + a.w * b.w);
      }
    }
  }
#endif
  for (int k = start + lane; k < p.w.ne[0]; k += 32) {
    const float value = W_AT(w, k);
    for (int c = 0; c < COLUMNS; c++) {
      const int i1 = first + c < p.x.ne[1] ? first + c : p.x.ne[1] - 1;
      sums[c] += value * load_x(AT(x, k, i1, i2, i3));
    }
  }
  for (int c = 0; c < COLUMNS; c++) {
    float sum = sums[c];
    for (int other = 16; other > 0; other >>= 1) sum += __shfl_xor_sync(0xffffffffu, sum, other);
    if (lane == 0 && first + c < p.y.ne[1]) store_f32(AT(y, i0, first + c, i2, i3), sum);
  }
}

//: tiled_product
// A group of 256 items for SIDE * SIDE results, 16 of them each, through local memory DEPTH deep.
#define SIDE 64
#define DEPTH 16
KERNEL_HEAD {
  __shared__ float ws[DEPTH][SIDE + 4];
  __shared__ float xs[DEPTH][SIDE + 4];
  const int row = GROUP_X * SIDE, column = GROUP_Y * SIDE;
  const int i2 = GROUP_Z % p.y.ne[2], i3 = GROUP_Z / p.y.ne[2];
  const int across = ITEM_X % 16, down = ITEM_X / 16;
  float sums[4][4];
  for (int i = 0; i < 4; i++)
    for (int j = 0; j < 4; j++) sums[i][j] = 0.0f;
  for (int start = 0; start < p.x.ne[0]; start += DEPTH) {
    // Neighbours load neighbouring elements of a row.
    for (int i = down; i < SIDE; i += 16) {
      const int k = start + across, inside = k < p.x.ne[0];
      float w = 0.0f, x = 0.0f;
      if (inside && row + i < p.w.ne[1]) w = W_AT(ROW(w, row + i, i2 / p.repeat2, i3 / p.repeat3), k);
      if (inside && column + i < p.x.ne[1]) x = load_x(AT(x, k, column + i, i2, i3));
      ws[across][i] = w;
      xs[across][i] = x;
    }
    LOCAL_BARRIER;
    for (int k = 0; k < DEPTH; k++) {
      float a[4], b[4];
      for (int i = 0; i < 4; i++) {
        a[i] = ws[k][across + 16 * i];
        b[i] = xs[k][down + 16 * i];
      }
      for (int i = 0; i < 4; i++)
        for (int j = 0; j < 4; j++) sums[i][j] += a[i] * b[j];
    }
    LOCAL_BARRIER;
  }
  for (int j = 0; j < 4; j++)
    for (int i = 0; i < 4; i++) {
      const int i0 = row + across + 16 * i, i1 = column + down + 16 * j;
      if (i0 < p.y.ne[0] && i1 < p.y.ne[1]) store_f32(AT(y, i0, i1, i2, i3), sums[i][j]);
    }
}
