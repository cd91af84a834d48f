// Products with few columns of x, by which weights of blocks go through once: LANES items of a warp
// for each row of w. Columns are rounded to bytes with a scale for each 32 of them, so that four
// products are one instruction.

#define WARP 0xffffffffu

//: rounded
// A warp for each 32 elements of x: their codes, and behind all codes of a row the scale and the sum
// times the scale for each 32. What is not finite makes the scale NaN.
KERNEL_HEAD {
  const uint flat = (uint)(GROUP_X * (LOCAL_X / 32) + ITEM_X / 32);
  if (flat >= p.count) return;
  const uint parts = (uint)p.x.ne[0] / 32u, row = flat / parts, matrix = row / (uint)p.x.ne[1];
  const int i0 = (int)(flat % parts) * 32 + ITEM_X % 32, i1 = (int)(row % (uint)p.x.ne[1]);
  const int i2 = (int)(matrix % (uint)p.x.ne[2]), i3 = (int)(matrix / (uint)p.x.ne[2]);
  const float value = load_x(AT(x, i0, i1, i2, i3));
  float largest = fabs(value), odd = value * 0.0f;
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
// Four bytes that begin at any byte, at an even one, at a multiple of four.
DEVICE int bytes1(const uchar* p) { return (int)(p[0] | (uint)p[1] << 8 | (uint)p[2] << 16 | (uint)p[3] << 24); }
DEVICE int bytes2(const uchar* p) { return (int)(((const ushort*)p)[0] | (uint)((const ushort*)p)[1] << 16); }
DEVICE int bytes4(const uchar* p) { return *(const int*)p; }

// Four bits, or four times two, as bytes; eight bytes of codes of four bits as places in a table.
DEVICE int spread1(uint v) { return (int)((v & 1u) | (v & 2u) << 7 | (v & 4u) << 14 | (v & 8u) << 21); }
DEVICE int spread2(uint v) { return (int)((v & 3u) | (v & 12u) << 6 | (v & 48u) << 12 | (v & 192u) << 18); }
DEVICE uint digits(int bytes) {
  const uint pairs = ((uint)bytes | (uint)bytes >> 4) & 0x00ff00ffu;
  return (pairs | pairs >> 8) & 0xffffu;
}
// Four bytes of a table of 16 by four places of four bits.
DEVICE int looked_up(uint places, int t0, int t1, int t2, int t3) {
  const uint low = __byte_perm(t0, t1, places & 0x7777u), high = __byte_perm(t2, t3, places & 0x7777u);
  const uint bits = places >> 3 & 0x1111u;
  const uint upper = ((bits & 1u) | (bits & 0x10u) << 4 | (bits & 0x100u) << 8 | (bits & 0x1000u) << 12) * 255u;
  return (int)((low & ~upper) | (high & upper));
}
// Four bytes, negated where a bit is set.
DEVICE int turned(int bytes, uint signs) {
  const uint mask = (uint)spread1(signs) * 255u;
  return (int)__vsub4((uint)bytes ^ mask, mask);
}
DEVICE uint eight_signs(uint bits) { return (bits & 127u) | (uint)(__popc(bits & 127u) & 1) << 7; }

#define LOW(v) ((v) & 0x0f0f0f0f)
#define HIGH(v) ((v) >> 4 & 0x0f0f0f0f)

// Element i of part `part` of 32 elements is s[i / 16] * (byte i of q) + o[i / 16 where OFFSETS is 2].
#if defined(w_is_q2_K)
#define OFFSETS 2
#elif defined(w_is_q4_0) || defined(w_is_q4_1) || defined(w_is_q5_0) || defined(w_is_q5_1) || \
    defined(w_is_q4_K) || defined(w_is_q5_K) || defined(w_is_q1_0) || defined(w_is_q2_0) || \
    defined(w_is_tq1_0) || defined(w_is_tq2_0)
#define OFFSETS 1
#else
#define OFFSETS 0
#endif
#define CODES(value) for (int j = 0; j < 8; j++) q[j] = (value);

DEVICE void unpack(const uchar* b, int part, int* q, float* s, float* o) {
#if defined(w_is_q4_0) || defined(w_is_q4_1) || defined(w_is_q5_0) || defined(w_is_q5_1)
  const float d = load_f16(b);
#if defined(w_is_q4_1) || defined(w_is_q5_1)
  o[0] = load_f16(b + 2);
  const uchar* codes = b + w_bytes - 16;
  for (int j = 0; j < 4; j++) q[j] = bytes4(codes + 4 * j);
#else
  const uchar* codes = b + w_bytes - 16;
  for (int j = 0; j < 4; j++) q[j] = bytes2(codes + 4 * j);
#endif
  for (int j = 0; j < 4; j++) {
    q[j + 4] = HIGH(q[j]);
    q[j] = LOW(q[j]);
  }
#if defined(w_is_q5_0) || defined(w_is_q5_1)
  const uint fifth = (uint)bytes2(codes - 4);
  for (int j = 0; j < 8; j++) q[j] |= spread1(fifth >> 4 * j) << 4;
#endif
#if defined(w_is_q4_0)
  o[0] = -8.0f * d;
#elif defined(w_is_q5_0)
  o[0] = -16.0f * d;
#endif
  s[0] = s[1] = d;
#elif defined(w_is_q8_0)
  s[0] = s[1] = load_f16(b);
  CODES(bytes2(b + 2 + 4 * j))
#elif defined(w_is_q8_1)
  s[0] = s[1] = load_f16(b);
  CODES(bytes4(b + 4 + 4 * j))
#elif defined(w_is_q8_K)
  s[0] = s[1] = load_f32(b);
  CODES(bytes4(b + 4 + 32 * part + 4 * j))
#elif defined(w_is_q1_0)
  const float d = load_f16(b);
  const uint signs = (uint)bytes2(b + 2 + 4 * part);
  CODES(spread1(signs >> 4 * j))
  s[0] = s[1] = 2.0f * d;
  o[0] = -d;
#elif defined(w_is_q2_0)
  const float d = load_f16(b);
  CODES(spread2(b[2 + 8 * part + j]))
  s[0] = s[1] = d;
  o[0] = -d;
#elif defined(w_is_tq2_0)
  const float d = load_f16(b + 64);
  CODES(bytes2(b + (part >> 2) * 32 + 4 * j) >> 2 * (part & 3) & 0x03030303)
  s[0] = s[1] = d;
  o[0] = -d;
#elif defined(w_is_tq1_0)
  const float d = load_f16(b + 52);
  for (int j = 0; j < 8; j++) {
    q[j] = 0;
    for (int k = 0; k < 4; k++) {
      const int i = 32 * part + 4 * j + k;
      const int digit = i < 160 ? i >> 5 : (i < 240 ? (i - 160) >> 4 : (i - 240) >> 2);
      const int at = i < 160 ? i & 31 : (i < 240 ? 32 + (i & 15) : 48 + (i & 3));
      const uint power = digit == 0 ? 1u : (digit == 1 ? 3u : (digit == 2 ? 9u : (digit == 3 ? 27u : 81u)));
      q[j] |= (int)((b[at] * power & 255u) * 3u >> 8) << 8 * k;
    }
  }
  s[0] = s[1] = d;
  o[0] = -d;
#elif defined(w_is_q2_K)
  const float d = load_f16(b + 80), least = load_f16(b + 82);
  CODES(bytes4(b + 16 + (part >> 2) * 32 + 4 * j) >> 2 * (part & 3) & 0x03030303)
  for (int half = 0; half < 2; half++) {
    const int factors = b[2 * part + half];
    s[half] = d * (float)(factors & 15);
    o[half] = -least * (float)(factors >> 4);
  }
#elif defined(w_is_q3_K)
  const float d = load_f16(b + 108);
  for (int j = 0; j < 8; j++) {
    const int low = bytes2(b + 32 + (part >> 2) * 32 + 4 * j) >> 2 * (part & 3) & 0x03030303;
    const int third = bytes2(b + 4 * j) >> part & 0x01010101;
    q[j] = (int)__vsub4(low | third << 2, 0x04040404u);
  }
  for (int half = 0; half < 2; half++) {
    const int group = 2 * part + half;
    const int low = b[96 + (group & 7)] >> (group < 8 ? 0 : 4) & 15;
    const int high = b[104 + (group & 3)] >> 2 * (group >> 2) & 3;
    s[half] = d * (float)((low | high << 4) - 32);
  }
#elif defined(w_is_q6_K)
  const float d = load_f16(b + 208);
  const uchar* lows = b + (part >> 2) * 64 + (part & 1) * 32;
  const uchar* highs = b + 128 + (part >> 2) * 32;
  for (int j = 0; j < 8; j++) {
    const int low = bytes2(lows + 4 * j) >> 4 * (part >> 1 & 1) & 0x0f0f0f0f;
    const int high = bytes2(highs + 4 * j) >> 2 * (part & 3) & 0x03030303;
    q[j] = (int)__vsub4(low | high << 4, 0x20202020u);
  }
  for (int half = 0; half < 2; half++) s[half] = d * (float)SIGNED_BYTE(b[192 + 2 * part + half]);
#elif defined(w_is_q4_K) || defined(w_is_q5_K)
  const uchar* codes = b + w_bytes - 128 + (part >> 1) * 32;
  CODES(bytes4(codes + 4 * j) >> 4 * (part & 1) & 0x0f0f0f0f)
#ifdef w_is_q5_K
  for (int j = 0; j < 8; j++) q[j] |= (bytes4(b + 16 + 4 * j) >> part & 0x01010101) << 4;
#endif
  s[0] = s[1] = load_f16(b) * (float)six_bit_scale(b + 4, part);
  o[0] = -load_f16(b + 2) * (float)six_bit_minimum(b + 4, part);
#elif defined(w_is_iq4_nl) || defined(w_is_iq4_xs) || defined(w_is_mxfp4) || defined(w_is_nvfp4)
#if defined(w_is_iq4_nl) || defined(w_is_iq4_xs)
#define VALUES ((const uchar*)values_iq4)
#else
#define VALUES ((const uchar*)values_fp4)
#endif
  const int t0 = bytes1(VALUES), t1 = bytes1(VALUES + 4), t2 = bytes1(VALUES + 8), t3 = bytes1(VALUES + 12);
#define PLACED(v) looked_up(digits(v), t0, t1, t2, t3)
#if defined(w_is_nvfp4)
  for (int half = 0; half < 2; half++) {
    const int group = 2 * part + half;
    for (int j = 0; j < 2; j++) {
      const int both = bytes4(b + 4 + group * 8 + 4 * j);
      q[4 * half + j] = PLACED(LOW(both));
      q[4 * half + 2 + j] = PLACED(HIGH(both));
    }
    const uint packed = b[group], e = packed >> 3 & 15u;
    const float unit = e == 0u ? (float)(packed & 7u) * 0.0009765625f
                               : BITS_FLOAT((e + 119u) << 23 | (packed & 7u) << 20);
    s[half] = packed == 127u ? 0.0f : unit;
  }
#else
#if defined(w_is_mxfp4)
#define BOTH(j) bytes1(b + 1 + 4 * (j))
  // Half the scale, since the table holds doubled values.
  const uint e = b[0];
  s[0] = s[1] = e < 2u ? BITS_FLOAT(0x200000u << e) : BITS_FLOAT((e - 1u) << 23);
#elif defined(w_is_iq4_nl)
#define BOTH(j) bytes2(b + 2 + 4 * (j))
  s[0] = s[1] = load_f16(b);
#else
#define BOTH(j) bytes4(b + 8 + 16 * part + 4 * (j))
  const int high = b[2 + (part >> 2)] >> 2 * (part & 3) & 3, low = b[4 + (part >> 1)] >> 4 * (part & 1) & 15;
  s[0] = s[1] = load_f16(b) * (float)((low | high << 4) - 32);
#endif
  for (int j = 0; j < 4; j++) {
    q[j] = PLACED(LOW(BOTH(j)));
    q[j + 4] = PLACED(HIGH(BOTH(j)));
  }
#endif
#elif defined(w_is_iq1_s) || defined(w_is_iq1_m)
  // Values of the grid, less 7/8 or 9/8, as eighths.
#ifdef w_is_iq1_s
  const uint word = *(const ushort*)(b + 34 + 2 * part);
  s[0] = s[1] = load_f16(b) * 0.125f * (float)(2u * (word >> 12 & 7u) + 1u);
#else
  const uint unit = b[49] >> 4 | (b[51] & 0xf0u) | (b[53] & 0xf0u) << 4 | (b[55] & 0xf0u) << 8;
  const uint factors = *(const ushort*)(b + 48 + (part >> 1) * 2) >> 6 * (part & 1);
  for (int half = 0; half < 2; half++)
    s[half] = half_bits_to_float((ushort)unit) * 0.125f * (float)(2u * (factors >> 3 * half & 7u) + 1u);
#endif
  for (int l = 0; l < 4; l++) {
#ifdef w_is_iq1_s
    const uint code = grid_iq1[b[2 + 4 * part + l] | (word >> 3 * l & 7u) << 8], minus = word >> 15;
#else
    const uint extra = b[32 + 2 * part + (l >> 1)] >> 4 * (l & 1) & 15u;
    const uint code = grid_iq1[b[4 * part + l] | (extra & 7u) << 8], minus = extra >> 3;
#endif
    const uint less = minus ? 0x09090909u : 0x07070707u;
    q[2 * l] = (int)__vsub4((uint)spread2(code) << 3, less);
    q[2 * l + 1] = (int)__vsub4((uint)spread2(code >> 8) << 3, less);
  }
#elif defined(w_is_iq2_xxs) || defined(w_is_iq2_xs) || defined(w_is_iq2_s)
  const float d = load_f16(b) * 0.25f;
#ifdef w_is_iq2_xxs
  const uchar* places = b + 2 + 8 * part;
  const uint word = (uint)bytes2(places + 4);
  s[0] = s[1] = d * (0.5f + (float)(word >> 28));
#else
  const int factors = b[w_bytes - 8 + part];
  s[0] = d * (0.5f + (float)(factors & 15));
  s[1] = d * (0.5f + (float)(factors >> 4));
#endif
  for (int l = 0; l < 4; l++) {
#if defined(w_is_iq2_xxs)
    const uint code = grid_iq2_xxs[places[l]], signs = eight_signs(word >> 7 * l);
#elif defined(w_is_iq2_xs)
    const uint word = *(const ushort*)(b + 2 + 2 * (4 * part + l));
    const uint code = grid_iq2_xs[word & 511u], signs = eight_signs(word >> 9);
#else
    const uint code = grid_iq2_s[b[2 + 4 * part + l] | (b[66 + part] >> 2 * l & 3u) << 8];
    const uint signs = b[34 + 4 * part + l];
#endif
    // Codes 0, 1, 2 stand for 8, 25, 43.
    for (int k = 0; k < 2; k++) {
      const uint chosen = digits(spread2(code >> 8 * k));
      q[2 * l + k] = turned((int)__byte_perm(0x002b1908u, 0u, chosen), signs >> 4 * k);
    }
  }
#elif defined(w_is_iq3_xxs) || defined(w_is_iq3_s)
#ifdef w_is_iq3_xxs
  const uint word = (uint)bytes2(b + 66 + 4 * part);
  s[0] = s[1] = load_f16(b) * 0.5f * (0.5f + (float)(word >> 28));
#else
  const int factor = b[106 + (part >> 1)] >> 4 * (part & 1) & 15;
  s[0] = s[1] = load_f16(b) * (float)(1 + 2 * factor);
#endif
  for (int l = 0; l < 4; l++) {
#ifdef w_is_iq3_xxs
    const uint signs = eight_signs(word >> 7 * l);
#else
    const uint signs = b[74 + 4 * part + l];
#endif
    for (int k = 0; k < 2; k++) {
      const int place = 2 * l + k;
#ifdef w_is_iq3_xxs
      const uint chosen = grid_iq3_xxs[b[2 + 8 * part + place]];
      const uint values = __byte_perm(0x1c140c04u, 0x3e342c24u, chosen);
#else
      const uint chosen = grid_iq3_s[b[2 + 8 * part + place] | (b[66 + part] >> place & 1u) << 8];
      const uint values = __byte_perm(0x07050301u, 0x0f0d0b09u, chosen);
#endif
      q[place] = turned((int)values, signs >> 4 * k);
    }
  }
#endif
}

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
  const int lane = ITEM_X % LANES, i0 = (GROUP_X * LOCAL_X + ITEM_X) / LANES;
  // Items of rows beyond the last help to exchange sums.
  const int row = i0 < p.w.ne[1] ? i0 : p.w.ne[1] - 1;
#ifdef EXPERTS
  const int first = GROUP_Y, i2 = GROUP_Z, i3 = 0;
  const int expert = *(const int*)AT(ids, first, i2, 0, 0);
  if (expert < 0 || expert >= p.w.ne[2]) {
    if (lane == 0 && i0 < p.w.ne[1]) store_f32(AT(y, i0, first, i2, 0), 0.0f);
    return;
  }
  const uchar* w = ROW(w, row, expert, 0);
#define COLUMN(c) (first % p.x.ne[1])
#else
  const int first = GROUP_Y * COLUMNS, i2 = GROUP_Z % p.y.ne[2], i3 = GROUP_Z / p.y.ne[2];
  const uchar* w = ROW(w, row, i2 / p.repeat2, i3 / p.repeat3);
#define COLUMN(c) (first + (c) < p.x.ne[1] ? first + (c) : p.x.ne[1] - 1)
#endif
  float sums[COLUMNS];
  for (int c = 0; c < COLUMNS; c++) sums[c] = 0.0f;
  const int parts = p.w.ne[0] / 32;
  for (int at = lane; at < parts; at += LANES) {
    int q[8];
    float s[2], o[2];
    unpack(w + (long)(at / (w_block / 32)) * w_bytes, at % (w_block / 32), q, s, o);
    for (int c = 0; c < COLUMNS; c++) {
      const uchar* x = ROW(x, COLUMN(c), i2, i3);
      sums[c] += dot(q, s, o, x + 32 * at, *(const float2*)(x + p.w.ne[0] + 8 * at));
    }
  }
  for (int c = 0; c < COLUMNS; c++) {
    float sum = sums[c];
    for (int other = LANES / 2; other > 0; other >>= 1) sum += __shfl_xor_sync(WARP, sum, other);
    if (lane == 0 && i0 < p.w.ne[1] && first + c < p.y.ne[1]) store_f32(AT(y, i0, first + c, i2, i3), sum);
  }
}
