// Products with few columns of x, by which weights of blocks go through once: PER_ROW items of a warp
// for each row of w. Columns are rounded to bytes with a scale for each 32 of them, so that four
// products are one instruction.

#define WARP 0xffffffffu

//: rounded
// A warp for each part of 32 elements of x; what is not finite makes its scale NaN.
KERNEL_HEAD {
  const int flat = GROUP_X * (LOCAL_X / 32) + ITEM_X / 32;
  if ((uint)flat >= p.count) return;
  const int parts = p.x.ne[0] / 32, row = quotient(flat, parts), matrix = quotient(row, p.x.ne[1]);
  const int lane = ITEM_X % 32, part = flat - row * parts;
  const int i1 = row - matrix * p.x.ne[1], i3 = quotient(matrix, p.x.ne[2]), i2 = matrix - i3 * p.x.ne[2];
  const float value = load_x(AT(x, 32 * part + lane, i1, i2, i3));
  uint bits = FLOAT_BITS(fabs(value));  // in the order of their values, with infinity and NaN after all others
  for (int other = 16; other > 0; other >>= 1) bits = max(bits, __shfl_xor_sync(WARP, bits, other));
  const bool odd = bits >= 0x7f800000u;
  const float largest = BITS_FLOAT(odd ? 0x7fc00000u : bits);
  // Numbers so small that their inverse is none count as 0.
  const float inverse = largest > 1e-30f ? 127.0f / largest : 0.0f;
  const int code = odd ? 0 : (int)rint(value * inverse);
  int half = code;
  for (int other = 8; other > 0; other >>= 1) half += __shfl_xor_sync(WARP, half, other);
  const int whole = half + __shfl_xor_sync(WARP, half, 16);
  uchar* to = ROW(y, i1, i2, i3);
  to[HALF_CODES(part, lane / 16) + lane % 16] = (uchar)(code & 255);
  const float scale = largest / 127.0f;
  const int length = p.x.ne[0];
  if (lane % 16 == 0) *(float2*)(to + HALF_SCALE(length, part, lane / 16)) = make_float2(scale, scale * (float)half);
  if (lane == 0) *(float2*)(to + PART_SCALE(length, part)) = make_float2(scale, scale * (float)whole);
}

//: matvec
// A run of w times the codes of a column at the same places.
DEVICE float product(const int* q, const uchar* codes) {
  const int4 x = *(const int4*)codes;
  const int sum = __dp4a(q[1], x.y, __dp4a(q[0], x.x, 0));
  return (float)__dp4a(q[3], x.w, __dp4a(q[2], x.z, sum));
}

// What a share of w gives with a column that begins at `x`, of which the codes of run r lie at codes[r], and the scales
// at `scales`, for the first block; `moved` is how many elements away from it the share is.
DEVICE float dot(const Share* w, const uchar* x, const uint* codes, uint scales, uint moved) {
  const uchar* from = x + (scales + moved / 32 * BYTES_OF_SCALES);
  float products[RUNS];
  for (int r = 0; r < RUNS; r++) products[r] = product(w->q + 4 * r, x + (codes[r] + moved));
#ifdef PARTS_SHARED
  float total = 0.0f;
  for (int r = 0; r < RUNS; r += 2) {
    const float4 two = *(const float4*)(from + 8 * r);
    total += w->s[r] * (two.x * products[r]);
    total += w->s[r + 1] * (two.z * products[r + 1]);
    total += w->o[r] * two.y;
    total += w->o[r + 1] * two.w;
  }
#else
  const float2 scale = *(const float2*)from;
  float total = scale.x * (w->s[0] * products[0] + w->s[1] * products[1]);
  if (OFFSETS) total += w->o[0] * scale.y;
#endif
  return total;
}

KERNEL_HEAD {
  const int lane = ITEM_X % PER_ROW, i0 = (GROUP_X * LOCAL_X + ITEM_X) / PER_ROW;
  // Items of rows beyond the last help to exchange sums.
  const int row = i0 < p.w.ne[1] ? i0 : p.w.ne[1] - 1;
  PLACE_COLUMNS  // declares first, i2, i3; with EXPERTS expert
  const uchar* w = MATRIX(w);
  float sums[COLUMNS];
  for (int c = 0; c < COLUMNS; c++) sums[c] = 0.0f;
  WITH_GATE(const uchar* w2 = MATRIX(w2); float sums2[COLUMNS];)
  WITH_GATE(for (int c = 0; c < COLUMNS; c++) sums2[c] = 0.0f;)
  const uchar* columns[COLUMNS];
  for (int c = 0; c < COLUMNS; c++) columns[c] = ROW(x, COLUMN(c), i2, i3);
  // An item has the same share of all of its blocks, whose codes of a column are equally far apart. In place of a block
  // beyond the last it takes its first one, or the last, for nothing: all items of a warp take equally many turns, in
  // which the compiler puts more loads in front (q8_0 3.6 TB/s of 4.4; 3.2 where items stop by themselves).
  const int blocks = p.w.ne[0] / w_block, step = PER_ROW / SHARES;
  const int share = lane % SHARES, own = lane / SHARES, start = own < blocks ? own : blocks - 1;
  const int part = start * (w_block / 32) + FIRST_PART(share);
  const uint scales = (uint)RUN_SCALES(p.w.ne[0], part, share);
  uint codes[RUNS];
  for (int r = 0; r < RUNS; r++) codes[r] = (uint)RUN_CODES(part, share, r);
  for (int turn = 0; turn < blocks; turn += step) {
    const bool counts = turn + own < blocks;
    const int at = counts ? turn + own : start;
    Share taken;
    take(w + (long)at * w_bytes, share, taken.q, taken.s, taken.o);
    WITH_GATE(Share taken2; take(w2 + (long)at * w_bytes, share, taken2.q, taken2.s, taken2.o);)
    const uint moved = (uint)(at - start) * w_block;
    for (int c = 0; c < COLUMNS; c++) {
      const float sum = dot(&taken, columns[c], codes, scales, moved);
      sums[c] += counts ? sum : 0.0f;
      WITH_GATE(const float sum2 = dot(&taken2, columns[c], codes, scales, moved);)
      WITH_GATE(sums2[c] += counts ? sum2 : 0.0f;)
    }
  }
  FINISH(PER_ROW)  // adds up sums of PER_ROW items, stores them
}
