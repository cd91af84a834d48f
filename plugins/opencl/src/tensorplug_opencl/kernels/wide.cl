// Products of matrices on processors: one work item streams rows of `w`, 32 elements at a time.
//
// A type says how many bytes hold a BLOCK (PARTS times 32 elements), what is read once of it
// (`begin`), and how 32 of its elements become floats (`part`; `j` counts them within the block).
// Block types are unpacked by `unpack` of bytes.k. Those that have a section here take less time with vectors of 16:
// on PoCL, with 2 rows of `x`, 0.5 of that of `unpack` (q4_K), 0.4 (q2_K), 0.2 (q6_K, iq4_xs), 0.15 (q5_1).

#if w_block < 32
#define PARTS 1
#define BLOCK_BYTES (32 * w_bytes)
#else
#define PARTS (w_block / 32)
#define BLOCK_BYTES w_bytes
#endif

#define EVERY(name, count) _Pragma("unroll") for (int name = 0; name < count; name++)
typedef GLOBAL const uchar* bytes;

#define HALF(p) load_f16(p)
#define BYTES16(p) vload16(0, (p))
// 32 bytes, to be shifted and masked together.
#define FOURS(p) (uint8)(as_uint4(BYTES16(p)), as_uint4(BYTES16((p) + 16)))
#define FIRST16(q) as_uchar16((q).lo)
#define SECOND16(q) as_uchar16((q).hi)
#define WORDS16(p) convert_uint16(BYTES16(p))
#define TIMES(a, b, c) fma((a), (float16)(b), (float16)(c))
#define NUMBERS_0_TO_15 (uint16)(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15)

// d * q + m of the codes q in the low four bits of 16 words: looked up where that is one instruction.
#if defined(__AVX512F__) && defined(__clang__)
typedef float16 line;
#define LINE(d, m) TIMES(convert_float16(NUMBERS_0_TO_15), d, m)
DEVICE float16 ON_LINE(line l, uint16 q) { return __builtin_ia32_permvarsf512(l, as_int16(q)); }
#define ON_TABLE(t, q) ON_LINE(convert_float16(vload16(0, t)), q)
#else
typedef struct { float d, m; } line;
DEVICE line line_of(float d, float m) { line l = {d, m}; return l; }
#define LINE(d, m) line_of(d, m)
#define ON_LINE(l, q) TIMES(convert_float16(as_int16((q) & 15u)), (l).d, (l).m)
DEVICE float16 ON_TABLE(TABLE const char* t, uint16 words) {
  float found[16];
  uint q[16];
  vstore16(words & 15u, 0, q);
  for (int i = 0; i < 16; i++) found[i] = t[q[i]];
  return vload16(0, found);
}
#endif
#if w_block == 1
#if defined(w_is_f32)
#define LOAD16(i) vload16(i, (GLOBAL const float*)b)
#elif defined(w_is_bf16)
#define LOAD16(i) as_float16(convert_uint16(vload16(i, (GLOBAL const ushort*)b)) << 16)
#else
#define LOAD16(i) load_halves16(b + 32 * (i))
#endif
typedef int head;
DEVICE head begin(bytes b) { return 0; }
DEVICE void part(bytes b, const head* h, int j, float16* lo, float16* hi) {
  *lo = LOAD16(0);
  *hi = LOAD16(1);
}
#elif defined(w_is_q5_0) || defined(w_is_q5_1)
typedef struct { float d, m; uint fifth; } head;
#ifdef w_is_q5_0
#define CODES 6
DEVICE head begin(bytes b) {
  const float d = HALF(b);
  head h = {d, -16.0f * d, as_uint(vload4(0, b + 2))};
  return h;
}
#else
#define CODES 8
DEVICE head begin(bytes b) {
  head h = {HALF(b), HALF(b + 2), as_uint(vload4(0, b + 4))};
  return h;
}
#endif
// Bit `first` of the fifth bits to bit 4 of the first word, the next to that of the second.
#define FIFTH(bits, first) (rotate((uint16)(bits), (36u - first) - NUMBERS_0_TO_15) & 16u)
DEVICE void part(bytes b, const head* h, int j, float16* lo, float16* hi) {
  const uint16 q = WORDS16(b + CODES);
  *lo = TIMES(convert_float16(as_int16((q & 15u) | FIFTH(h->fifth, 0))), h->d, h->m);
  *hi = TIMES(convert_float16(as_int16((q >> 4) | FIFTH(h->fifth, 16))), h->d, h->m);
}
#elif defined(w_is_q4_K) || defined(w_is_q5_K)
typedef struct { float d[8], m[8]; } head;
DEVICE head begin(bytes b) {
  const float d = HALF(b), m = -HALF(b + 2);
  const uint a = as_uint(vload4(0, b + 4)), c = as_uint(vload4(0, b + 8));
  const uint e = as_uint(vload4(0, b + 12)), six = 0x3f3f3f3fu, four = 0x0f0f0f0fu, two = 0x30303030u;
  head h;
  vstore8(d * convert_float8(as_uchar8((uint2)(a & six, (e & four) | (a >> 2 & two)))), 0, h.d);
  vstore8(m * convert_float8(as_uchar8((uint2)(c & six, (e >> 4 & four) | (c >> 2 & two)))), 0, h.m);
  return h;
}
DEVICE void part(bytes b, const head* h, int j, float16* lo, float16* hi) {
#ifdef w_is_q4_K
  const line l = LINE(h->d[j], h->m[j]);
  bytes codes = b + 16 + (j >> 1) * 32;
  *lo = ON_LINE(l, WORDS16(codes) >> 4 * (j & 1));
  *hi = ON_LINE(l, WORDS16(codes + 16) >> 4 * (j & 1));
#else
  bytes codes = b + 48 + (j >> 1) * 32;
  const uint8 low = FOURS(codes) >> 4 * (j & 1) & 0x0f0f0f0fu;
  const uint8 q = low | (FOURS(b + 16) >> j << 4 & 0x10101010u);
  *lo = TIMES(convert_float16(FIRST16(q)), h->d[j], h->m[j]);
  *hi = TIMES(convert_float16(SECOND16(q)), h->d[j], h->m[j]);
#endif
}
#elif defined(w_is_q6_K)
typedef struct { float d[16]; } head;
DEVICE head begin(bytes b) {
  head h;
  vstore16(HALF(b + 208) * convert_float16(vload16(0, (GLOBAL const char*)(b + 192))), 0, h.d);
  return h;
}
DEVICE void part(bytes b, const head* h, int j, float16* lo, float16* hi) {
  const uint8 low = FOURS(b + (j >> 2) * 64 + (j & 1) * 32) >> 2 * (j & 2) & 0x0f0f0f0fu;
  const uint8 high = FOURS(b + 128 + (j >> 2) * 32) >> 2 * (j & 3) << 4 & 0x30303030u;
  const uint8 q = low | high;
  *lo = h->d[2 * j] * convert_float16(as_char16(FIRST16(q) - (uchar16)32));
  *hi = h->d[2 * j + 1] * convert_float16(as_char16(SECOND16(q) - (uchar16)32));
}
#elif defined(w_is_q2_K)
typedef struct { float d[16], m[16]; } head;
DEVICE head begin(bytes b) {
  const uchar16 both = BYTES16(b);
  head h;
  vstore16(HALF(b + 80) * convert_float16(both & (uchar16)15), 0, h.d);
  vstore16(-HALF(b + 82) * convert_float16(both >> (uchar16)4), 0, h.m);
  return h;
}
DEVICE void part(bytes b, const head* h, int j, float16* lo, float16* hi) {
  const uint8 q = FOURS(b + 16 + (j >> 2) * 32) >> 2 * (j & 3) & 0x03030303u;
  *lo = TIMES(convert_float16(FIRST16(q)), h->d[2 * j], h->m[2 * j]);
  *hi = TIMES(convert_float16(SECOND16(q)), h->d[2 * j + 1], h->m[2 * j + 1]);
}
#elif defined(w_is_q3_K)
typedef struct { float d[16]; } head;
DEVICE head begin(bytes b) {
  const uint a = as_uint(vload4(0, b + 96)), c = as_uint(vload4(0, b + 100));
  const uint4 high = (uint4)as_uint(vload4(0, b + 104)) >> (uint4)(0, 2, 4, 6) & 0x03030303u;
  const uint4 all = ((uint4)(a, c, a >> 4, c >> 4) & 0x0f0f0f0fu) | high << 4;
  head h;
  vstore16(HALF(b + 108) * convert_float16(as_char16(all) - (char16)32), 0, h.d);
  return h;
}
DEVICE void part(bytes b, const head* h, int j, float16* lo, float16* hi) {
  const uint8 low = FOURS(b + 32 + (j >> 2) * 32) >> 2 * (j & 3) & 0x03030303u;
  const uint8 q = low | (FOURS(b) >> j & 0x01010101u) << 2;
  *lo = h->d[2 * j] * convert_float16(as_char16(FIRST16(q)) - (char16)4);
  *hi = h->d[2 * j + 1] * convert_float16(as_char16(SECOND16(q)) - (char16)4);
}
#elif defined(w_is_iq4_xs)
typedef struct { float d[8]; } head;
DEVICE head begin(bytes b) {
  const float d = HALF(b);
  const uint high = b[2] | (uint)b[3] << 8;
  head h;
  EVERY(g, 8) h.d[g] = d * ((int)((b[4 + g / 2] >> 4 * (g & 1) & 15) | (high >> 2 * g & 3u) << 4) - 32);
  return h;
}
DEVICE void part(bytes b, const head* h, int j, float16* lo, float16* hi) {
  const uint16 q = WORDS16(b + 8 + 16 * j);
  *lo = h->d[j] * ON_TABLE(values_iq4, q);
  *hi = h->d[j] * ON_TABLE(values_iq4, q >> 4);
}
#elif defined(w_is_iq4_nl) || defined(w_is_mxfp4)
typedef struct { float d; } head;
#ifdef w_is_iq4_nl
#define VALUES values_iq4
DEVICE head begin(bytes b) { head h = {HALF(b)}; return h; }
#else
#define VALUES values_fp4
// Values are doubled, so the scale is halved: 2^-128 and 2^-127 are below the smallest normal float.
DEVICE head begin(bytes b) {
  const uint e = b[0];
  head h = {BITS_FLOAT(e > 1u ? (e - 1u) << 23 : 0x200000u << e)};
  return h;
}
#endif
DEVICE void part(bytes b, const head* h, int j, float16* lo, float16* hi) {
  const uint16 q = WORDS16(b + w_bytes - 16);
  *lo = h->d * ON_TABLE(VALUES, q);
  *hi = h->d * ON_TABLE(VALUES, q >> 4);
}
#else
typedef int head;
DEVICE head begin(bytes b) { return 0; }
DEVICE void part(bytes b, const head* h, int j, float16* lo, float16* hi) {
  int q[8];
  float s[2], o[2] = {0.0f, 0.0f};
  unpack(b, j, q, s, o);
  *lo = TIMES(convert_float16(as_char16(vload4(0, q))), s[0], o[0]);
  *hi = TIMES(convert_float16(as_char16(vload4(1, q))), s[1], o[OFFSETS == 2]);
}
#endif

// Rows of `w` have BLOCK_BYTES after BLOCK_BYTES; those of element types end in a rest.
#if w_block > 1
#define REST_AT(row, k) 0.0f
#else
#define REST_AT(row, k) load_w((row) + (long)(k) * w_bytes)
#endif

//: matvec
// Up to COLS rows of `x` against `p.rows` rows of `w`, which an item reads from one end to the other
// as AT_ONCE streams: decoding takes its time, and streams that are far apart are fetched ahead.
// Bare numbers come in one stream; more of them would fall on the same lines of the caches. SUMS
// sums of a row do not wait for each other.
#if COLS > 2
#define AT_ONCE 2
#define SUMS 1
#elif w_block > 1
#define AT_ONCE 2
#define SUMS 2
#else
#define AT_ONCE 1
#define SUMS (8 / COLS)
#endif
#define BLOCKS_AT_ONCE (SUMS > 2 * PARTS ? SUMS / (2 * PARTS) : 1)

// Processors fetch ahead within a page by themselves; what is AHEAD bytes on may be on the next.
#define AHEAD 2048
#define FETCH_AHEAD(p) { \
  EVERY(line, (BLOCK_BYTES + 63) / 64) { PREFETCH((p) + AHEAD + 64 * line); } \
}

// Multiplies `count` blocks of each stream, and moves on to the next.
#define BLOCKS(count) { \
  EVERY(u, count) { \
    head h[AT_ONCE]; \
    EVERY(r, AT_ONCE) FETCH_AHEAD(w[r] + u * BLOCK_BYTES) \
    EVERY(r, AT_ONCE) h[r] = begin(w[r] + u * BLOCK_BYTES); \
    EVERY(j, PARTS) { /* Decode 32 elements, multiply them with COLS rows of x. */ \
      const int t = u * PARTS + j, a = 2 * t % SUMS, b = (2 * t + 1) % SUMS; \
      EVERY(r, AT_ONCE) { \
        float16 lo, hi; \
        part(w[r] + u * BLOCK_BYTES, &h[r], j, &lo, &hi); \
        EVERY(c, COLS) { \
          sums[r][c][a] = fma(lo, vload16(2 * t, x[c] + k), sums[r][c][a]); \
          sums[r][c][b] = fma(hi, vload16(2 * t + 1, x[c] + k), sums[r][c][b]); \
        } \
      } \
    } \
  } \
  EVERY(r, AT_ONCE) w[r] += count * BLOCK_BYTES; \
  k += 32 * PARTS * count; \
}

KERNEL_HEAD {
  const int first = GROUP_X * p.rows;
  const int last = min(first + p.rows, p.w.ne[1]);
  const int blocks = p.w.ne[0] / (32 * PARTS);
  GLOBAL const float* x[COLS];
  MATRIX  // declares columns; i2, i3 or expert, start, read by W_ROW, X_ROW, Y_ROW
  if (!IS_EXPERT) {  // no expert: zeros
    for (int row = first; row < last; row++) ((GLOBAL float*)Y_ROW(0))[row] = 0.0f;
    return;
  }
  EVERY(c, COLS) x[c] = (GLOBAL const float*)X_ROW(min(c, columns - 1));
  const int span = (last - first + AT_ONCE - 1) / AT_ONCE;
  for (int row = first; row < first + span; row++) {
    bytes w[AT_ONCE];
    float16 sums[AT_ONCE][COLS][SUMS];
    EVERY(r, AT_ONCE) {
      // Rows beyond the last compute the last one again, and their results are not stored.
      w[r] = W_ROW(min(row + r * span, last - 1));
      EVERY(c, COLS) EVERY(i, SUMS) sums[r][c][i] = 0.0f;
    }
    // Whole blocks, several at a time, then one by one.
    int k = 0, block = 0;
    for (; block + BLOCKS_AT_ONCE <= blocks; block += BLOCKS_AT_ONCE) BLOCKS(BLOCKS_AT_ONCE)
#if w_block <= 128
    for (; block < blocks; block++) BLOCKS(1)
#endif
    // The sums of lanes, and the elements after the last whole block.
    EVERY(r, AT_ONCE) {
      EVERY(c, COLS) {
        float16 all = sums[r][c][0];
        for (int i = 1; i < SUMS; i++) all += sums[r][c][i];
        float sum = sum_of_lanes(all);
        for (int rest = 0; k + rest < p.w.ne[0]; rest++) sum += REST_AT(w[r], rest) * x[c][k + rest];
        if (row + r * span < last && c < columns) ((GLOBAL float*)Y_ROW(c))[row + r * span] = sum;
      }
    }
  }
}

//: matmul
// Panels of 32 rows of `w`, decoded and turned to local memory DEPTH elements at a time, against
// 8 rows of `x` at a time.
#define DEPTH 256
#define ROWS 8

// 16 x 16 elements, rows for columns: four perfect shuffles of their 256 places.
DEVICE void turn(float16* rows, LOCAL float* to) {
  float16 a[16], b[16];
  EVERY(i, 16) a[i] = rows[i];
  EVERY(shuffles, 4) {
    EVERY(i, 8) {
      b[2 * i].even = a[i].lo;
      b[2 * i].odd = a[i + 8].lo;
      b[2 * i + 1].even = a[i].hi;
      b[2 * i + 1].odd = a[i + 8].hi;
    }
    EVERY(i, 16) a[i] = b[i];
  }
  EVERY(i, 16) vstore16(a[i], 2 * i, to);
}

// Elements k0 to k0 + depth of 16 rows as `depth` groups of 16. Rows beyond the last are copies of
// it, whose results are not stored.
DEVICE void fill(LOCAL float* panel, bytes w, long step, int rows, int k0, int depth) {
  int k = 0;
  for (; k + 32 * PARTS <= depth; k += 32 * PARTS) {
    bytes b = w + (long)((k0 + k) / (32 * PARTS)) * BLOCK_BYTES;
    head h[16];
    for (int r = 0; r < 16; r++) h[r] = begin(b + min(r, rows - 1) * step);
    for (int j = 0; j < PARTS; j++) {
      float16 lo[16], hi[16];
      for (int r = 0; r < 16; r++) part(b + min(r, rows - 1) * step, &h[r], j, &lo[r], &hi[r]);
      turn(lo, panel + (k + 32 * j) * 32);
      turn(hi, panel + (k + 32 * j + 16) * 32);
    }
  }
  for (; k < depth; k++) {
    for (int r = 0; r < 16; r++) panel[k * 32 + r] = REST_AT(w + min(r, rows - 1) * step, k0 + k);
  }
}

#define EACH(f) f(0) f(1) f(2) f(3) f(4) f(5) f(6) f(7)

KERNEL_HEAD {
  LOCAL float panel[DEPTH * 32];
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
        fill(panel + half_, w + from * p.w.nb[1], p.w.nb[1], count - from, k0, depth);
      }
      // Multiply it by 8 rows of x at a time; results of earlier panels are added.
      for (int m = first; m < last; m += ROWS) {
#define START(i) \
  GLOBAL const float* x##i = (GLOBAL const float*)X_ROW(min(m + i, columns - 1)) + k0; \
  float16 a##i = 0.0f, b##i = 0.0f;
        EACH(START)  // declares x0 to x7, sums a0 to a7 and b0 to b7
        for (int k = 0; k < depth; k++) {
          const float16 left = vload16(2 * k, panel), right = vload16(2 * k + 1, panel);
#define STEP(i) a##i = fma((float16)x##i[k], left, a##i); b##i = fma((float16)x##i[k], right, b##i);
          EACH(STEP)
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
