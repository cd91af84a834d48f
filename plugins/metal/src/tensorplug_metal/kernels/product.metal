// Products with many columns, by matrices of simdgroups.

//: tiled_product
// A group of four simdgroups for ROWS results along rows of w and COLUMNS along those of x, DEPTH
// elements at a time through local memory. A simdgroup has a half of each: 4 * 2 matrices of 8 * 8.
// Halves stay halves, which is exact; all other weights are floats, for none of which halves have
// enough range.
#define ROWS 64
#define COLUMNS 32
#define DEPTH 32
#ifdef w_is_f16
#define WEIGHT half
#else
#define WEIGHT float
#endif

KERNEL_HEAD {
  LOCAL WEIGHT ws[ROWS * DEPTH];
  LOCAL float xs[COLUMNS * DEPTH];
  LOCAL float edge[4 * 64];
  const int row = GROUP_X * ROWS, column = GROUP_Y * COLUMNS;
  const int i2 = GROUP_Z % p.y.ne[2], i3 = GROUP_Z / p.y.ne[2];
  const int simdgroup = ITEM_X / 32, down = simdgroup % 2 * 32, across = simdgroup / 2 * 16;
  simdgroup_float8x8 sums[2][4];
  UNROLLED for (int j = 0; j < 2; j++)
    UNROLLED for (int i = 0; i < 4; i++) sums[j][i] = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
  for (int start = 0; start < p.x.ne[0]; start += DEPTH) {
#if w_block > 1
    // Half of the items unpack 32 weights each, the others take x.
    if (ITEM_X < ROWS) {
      const bool inside = row + ITEM_X < p.w.ne[1];
      GLOBAL const uchar* w = ROW(w, inside ? row + ITEM_X : row, i2 / p.repeat2, i3 / p.repeat3);
      int q[8];
      float s[2], o[2] = {0.0f, 0.0f};
      unpack(w + (long)(start / w_block) * w_bytes, start % w_block / 32, q, s, o);
      for (int j = 0; j < 8; j++) {
        const float4 four = s[j / 4] * float4(as_type<char4>(q[j])) + float4(o[OFFSETS == 2 ? j / 4 : 0]);
        for (int k = 0; k < 4; k++) ws[ITEM_X * DEPTH + 4 * j + k] = inside ? four[k] : 0.0f;
      }
    } else {
#define FIRST_OF_X (ITEM_X - ROWS)
#define ITEMS_OF_X 64
#else
    for (int i = ITEM_X; i < ROWS * DEPTH; i += LOCAL_X) {  // load the tile of w
      const int k = start + i % DEPTH, i1 = row + i / DEPTH;
      const bool inside = k < p.w.ne[0] && i1 < p.w.ne[1];
      ws[i] = inside ? (WEIGHT)load_w(AT(w, k, i1, i2 / p.repeat2, i3 / p.repeat3)) : (WEIGHT)0.0f;
    }
    {
#define FIRST_OF_X ITEM_X
#define ITEMS_OF_X LOCAL_X
#endif
      for (int i = FIRST_OF_X; i < COLUMNS * DEPTH; i += ITEMS_OF_X) {  // load the tile of x
        const int k = start + i % DEPTH, i1 = column + i / DEPTH;
        const bool inside = k < p.x.ne[0] && i1 < p.x.ne[1];
        xs[i] = inside ? load_x(AT(x, k, i1, i2, i3)) : 0.0f;
      }
    }
    LOCAL_BARRIER;
    for (int k = 0; k < DEPTH; k += 8) {  // multiply both tiles, 8 elements at a time
      simdgroup_matrix<WEIGHT, 8, 8> w[4];
      simdgroup_float8x8 x;
      UNROLLED for (int i = 0; i < 4; i++) simdgroup_load(w[i], ws + (down + 8 * i) * DEPTH + k, DEPTH, ulong2(0, 0), true);
      UNROLLED for (int j = 0; j < 2; j++) {
        simdgroup_load(x, xs + (across + 8 * j) * DEPTH + k, DEPTH);
        UNROLLED for (int i = 0; i < 4; i++) simdgroup_multiply_accumulate(sums[j][i], x, w[i], sums[j][i]);
      }
    }
    LOCAL_BARRIER;
  }
  // Whole tiles go to memory as they are, the others by way of the group's.
  const bool whole = row + ROWS <= p.y.ne[0] && column + COLUMNS <= p.y.ne[1] && p.y.nb[0] == 4;
  LOCAL_POINTER float* kept = edge + 64 * simdgroup;
  UNROLLED for (int j = 0; j < 2; j++) {
    UNROLLED for (int i = 0; i < 4; i++) {
      const int y0 = row + down + 8 * i, y1 = column + across + 8 * j;
      if (whole) {
        simdgroup_store(sums[j][i], (GLOBAL float*)AT(y, y0, y1, i2, i3), (ulong)(p.y.nb[1] / 4));
        continue;
      }
      simdgroup_store(sums[j][i], kept, 8);
      simdgroup_barrier(mem_flags::mem_threadgroup);
      for (int at = ITEM_X % 32; at < 64; at += 32) {
        const int i0 = y0 + at % 8, i1 = y1 + at / 8;
        if (i0 < p.y.ne[0] && i1 < p.y.ne[1]) store_f32(AT(y, i0, i1, i2, i3), kept[at]);
      }
      simdgroup_barrier(mem_flags::mem_threadgroup);
    }
  }
}
