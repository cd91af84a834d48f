// Products with few columns of x, by which weights of blocks go through once: PER_ROW items of a warp
// for each row of w. Columns are rounded to bytes with a scale for each 32 of them, so that four
// products are one instruction.

#define WARP 0xffffffffu

//: rounded
// A warp for each 32 elements of x: their codes, and behind all codes of a row the scale and the sum
// times the scale for each 32. What is not finite makes the scale NaN.
KERNEL_HEAD {
  const uint flat = (uint)(GROUP_X * (LOCAL_X / 32) + ITEM_X / 32);
  if (flat >= p.count) return;
  const uint parts = (uint)p.x.ne[0] / 32u, row = flat / parts;
  const int i0 = (int)(flat % parts) * 32 + ITEM_X % 32;
  UNFLATTEN_ROW(x, row, i1, i2, i3)
  const float value = load_x(AT(x, i0, i1, i2, i3));
  float largest = fabs(value), odd = value * 0.0f;  // odd: NaN where a value is not finite
  for (int other = 16; other > 0; other >>= 1) {
    largest = fmax(largest, __shfl_xor_sync(WARP, largest, other));
    odd += __shfl_xor_sync(WARP, odd, other);
  }
  // Numbers so small that their inverse is none count as 0.
  const float inverse = largest > 1e-30f ? 127.0f / largest : 0.0f;
  const int code = odd == 0.0f ? (int)rint(value * inverse) : 0;
  int sum = code;
  for (int other = 16; other > 0; other >>= 1) sum += __shfl_xor_sync(WARP, sum, other);
  uchar* to = ROW(y, i1, i2, i3);
  to[i0] = (uchar)(code & 255);
  if (ITEM_X % 32 == 0) {
    const float scale = largest / 127.0f + odd;
    *(float2*)(to + p.x.ne[0] + i0 / 4) = make_float2(scale, scale * (float)sum);
  }
}

//: matvec
// What a part of w and the codes of a column at the same place give.
DEVICE float dot(const int* q, const float* s, const float* o, const uchar* codes, float2 scale) {
  const int4 first = ((const int4*)codes)[0], second = ((const int4*)codes)[1];
  const int x[8] = {first.x, first.y, first.z, first.w, second.x, second.y, second.z, second.w};
  int sums[2] = {0, 0};
  for (int j = 0; j < 8; j++) sums[j / 4] = __dp4a(q[j], x[j], sums[j / 4]);
  float total = scale.x * (s[0] * (float)sums[0] + s[1] * (float)sums[1]);
#if OFFSETS == 1
  total += o[0] * scale.y;
#elif OFFSETS == 2
  int ones[2] = {0, 0};
  for (int j = 0; j < 8; j++) ones[j / 4] = __dp4a(0x01010101, x[j], ones[j / 4]);
  total += scale.x * (o[0] * (float)ones[0] + o[1] * (float)ones[1]);
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
#define ADD_PART(w, sums) \
  { \
    int q[8]; \
    float s[2], o[2]; \
    unpack(w + (long)(at / (w_block / 32)) * w_bytes, at % (w_block / 32), q, s, o); \
    for (int c = 0; c < COLUMNS; c++) { \
      const uchar* x = ROW(x, COLUMN(c), i2, i3); \
      sums[c] += dot(q, s, o, x + 32 * at, *(const float2*)(x + p.w.ne[0] + 8 * at)); \
    } \
  }
  const int parts = p.w.ne[0] / 32;
  for (int at = lane; at < parts; at += PER_ROW) {  // items take parts of 32 elements in turn
    ADD_PART(w, sums)
    WITH_GATE(ADD_PART(w2, sums2))
  }
  FINISH(PER_ROW)  // adds up sums of PER_ROW items, stores them
}
