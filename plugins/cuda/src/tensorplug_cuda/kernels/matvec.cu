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
  int sum = code;
  for (int other = 8; other > 0; other >>= 1) sum += __shfl_xor_sync(WARP, sum, other);
  uchar* to = ROW(y, i1, i2, i3);
  to[RUN_CODES(part, lane / 16) + lane % 16] = (uchar)(code & 255);
  if (lane % 16 == 0) {
    const float scale = largest / 127.0f;
    *(float2*)(to + RUN_SCALE(part, lane / 16)) = make_float2(scale, scale * (float)sum);
  }
}

//: matvec
// What runs of w and of a column at the same places give.
DEVICE float dot(const int* q, const float* s, const float* o, const uchar* codes, const uchar* scales) {
  float total = 0.0f;
  for (int r = 0; r < RUNS; r++) {
    const int4 x = *(const int4*)(codes + RUN(r, 16));
    const float2 scale = *(const float2*)(scales + RUN(r, 8));
    int sum = __dp4a(q[4 * r], x.x, 0);
    sum = __dp4a(q[4 * r + 1], x.y, sum);
    sum = __dp4a(q[4 * r + 2], x.z, sum);
    sum = __dp4a(q[4 * r + 3], x.w, sum);
    total += s[r] * (scale.x * (float)sum);
    if (HAS_OFFSETS) total += o[r] * scale.y;
  }
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
#define ADD_SHARE(w, sums) \
  { \
    int q[4 * RUNS]; \
    float s[RUNS], o[RUNS]; \
    take(w + (long)block * w_bytes, share, q, s, o); \
    for (int c = 0; c < COLUMNS; c++) { \
      const uchar* x = ROW(x, COLUMN(c), i2, i3); \
      sums[c] += dot(q, s, o, x + codes, x + scales); \
    } \
  }
  // An item has the same share of all of its blocks.
  const int share = lane & (SHARES - 1), start = lane / SHARES, step = PER_ROW / SHARES;
  const int blocks = p.w.ne[0] / w_block;
  const int part = start * (w_block / 32) + FIRST_PART(share);
  int codes = RUN_CODES(part, HALF(share)), scales = RUN_SCALE(part, HALF(share));
  for (int block = start; block < blocks; block += step) {
    ADD_SHARE(w, sums)
    WITH_GATE(ADD_SHARE(w2, sums2))
    codes += step * w_block / 256 * OF_RECORD;
    scales += step * w_block / 256 * OF_RECORD;
  }
  FINISH(PER_ROW)  // adds up sums of PER_ROW items, stores them
}
