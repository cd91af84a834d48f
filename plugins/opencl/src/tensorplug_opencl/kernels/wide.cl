// Products of matrices on processors: one work item streams rows of `w`, 32 elements at a time.
//
// A type says how many bytes hold a BLOCK (PARTS times 32 elements), what is read once of it
// (`begin`), and how 32 of its elements become floats (`part`; `j` counts them within the block).

#if w_block < 32
#define PARTS 1
#define BLOCK_BYTES (32 * w_bytes)
#else
#define PARTS (w_block / 32)
#define BLOCK_BYTES w_bytes
#endif

typedef GLOBAL const uchar* bytes;
#define BYTES16(p) vload16(0, (p))
#define LOW_HALVES(q) convert_float16((q) & (uchar16)15)
#define HIGH_HALVES(q) convert_float16((q) >> (uchar16)4)
#define WHOLE(w) convert_float16(w)
#define TIMES(a, b, c) fma((a), (float16)(b), (float16)(c))

#if defined(w_is_f32)
typedef int head;
DEVICE head begin(bytes b) { return 0; }
DEVICE void part(bytes b, const head* h, int j, float16* lo, float16* hi) {
  *lo = vload16(0, (GLOBAL const float*)b);
  *hi = vload16(1, (GLOBAL const float*)b);
}
#elif defined(w_is_bf16)
typedef int head;
DEVICE head begin(bytes b) { return 0; }
DEVICE void part(bytes b, const head* h, int j, float16* lo, float16* hi) {
  *lo = as_float16(convert_uint16(vload16(0, (GLOBAL const ushort*)b)) << 16);
  *hi = as_float16(convert_uint16(vload16(1, (GLOBAL const ushort*)b)) << 16);
}
#elif defined(w_is_f16)
typedef int head;
DEVICE head begin(bytes b) { return 0; }
DEVICE void part(bytes b, const head* h, int j, float16* lo, float16* hi) {
  *lo = vload_half16(0, (GLOBAL const half*)b);
  *hi = vload_half16(1, (GLOBAL const half*)b);
}
#elif defined(w_is_q8_0)
typedef struct { float d; } head;
DEVICE head begin(bytes b) { head h = {load_f16(b)}; return h; }
DEVICE void part(bytes b, const head* h, int j, float16* lo, float16* hi) {
  *lo = h->d * convert_float16(vload16(0, (GLOBAL const char*)(b + 2)));
  *hi = h->d * convert_float16(vload16(1, (GLOBAL const char*)(b + 2)));
}
#elif defined(w_is_q4_0)
typedef struct { float d; } head;
DEVICE head begin(bytes b) { head h = {load_f16(b)}; return h; }
DEVICE void part(bytes b, const head* h, int j, float16* lo, float16* hi) {
  const uchar16 q = BYTES16(b + 2);
  *lo = TIMES(LOW_HALVES(q), h->d, -8.0f * h->d);
  *hi = TIMES(HIGH_HALVES(q), h->d, -8.0f * h->d);
}
#elif defined(w_is_q4_1)
typedef struct { float d, m; } head;
DEVICE head begin(bytes b) { head h = {load_f16(b), load_f16(b + 2)}; return h; }
DEVICE void part(bytes b, const head* h, int j, float16* lo, float16* hi) {
  const uchar16 q = BYTES16(b + 4);
  *lo = TIMES(LOW_HALVES(q), h->d, h->m);
  *hi = TIMES(HIGH_HALVES(q), h->d, h->m);
}
#elif defined(w_is_q5_0) || defined(w_is_q5_1)
// Bit i of the fifth bits, moved to bit 4 of lane i.
#define FIFTH(bits, first) (rotate((uint16)(bits), (first) - (uint16)(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15)) & 16)
typedef struct { float d, m; uint fifth; } head;
#ifdef w_is_q5_0
#define CODES 6
DEVICE head begin(bytes b) {
  const float d = load_f16(b);
  head h = {d, -16.0f * d, as_uint(vload4(0, b + 2))};
  return h;
}
#else
#define CODES 8
DEVICE head begin(bytes b) {
  head h = {load_f16(b), load_f16(b + 2), as_uint(vload4(0, b + 4))};
  return h;
}
#endif
DEVICE void part(bytes b, const head* h, int j, float16* lo, float16* hi) {
  const uchar16 q = BYTES16(b + CODES);
  const uint16 low = convert_uint16(q & (uchar16)15) | FIFTH(h->fifth, 36u);
  const uint16 high = convert_uint16(q >> (uchar16)4) | FIFTH(h->fifth, 20u);
  *lo = TIMES(convert_float16(as_int16(low)), h->d, h->m);
  *hi = TIMES(convert_float16(as_int16(high)), h->d, h->m);
}
#elif defined(w_is_q4_K) || defined(w_is_q5_K)
typedef struct { float d[8], m[8]; } head;
DEVICE head begin(bytes b) {
  const float d = load_f16(b), m = -load_f16(b + 2);
  const uint a = as_uint(vload4(0, b + 4)), c = as_uint(vload4(0, b + 8)), e = as_uint(vload4(0, b + 12));
  const uint low = 0x0f0f0f0fu, six = 0x3f3f3f3fu;
  const float8 scales = d * convert_float8(as_uchar8((uint2)(a & six, (e & low) | (a >> 2 & 0x30303030u))));
  const float8 minima = m * convert_float8(as_uchar8((uint2)(c & six, (e >> 4 & low) | (c >> 2 & 0x30303030u))));
  head h;
  vstore8(scales, 0, h.d);
  vstore8(minima, 0, h.m);
  return h;
}
DEVICE void part(bytes b, const head* h, int j, float16* lo, float16* hi) {
  const uchar s = (uchar)(4 * (j & 1));
#ifdef w_is_q4_K
  bytes codes = b + 16 + (j >> 1) * 32;
  const uchar16 low = BYTES16(codes) >> s & (uchar16)15, high = BYTES16(codes + 16) >> s & (uchar16)15;
#else
  bytes codes = b + 48 + (j >> 1) * 32;
  const uchar16 low = (BYTES16(codes) >> s & (uchar16)15) | (BYTES16(b + 16) >> (uchar)j & (uchar16)1) << (uchar16)4;
  const uchar16 high = (BYTES16(codes + 16) >> s & (uchar16)15) | (BYTES16(b + 32) >> (uchar)j & (uchar16)1) << (uchar16)4;
#endif
  *lo = TIMES(convert_float16(low), h->d[j], h->m[j]);
  *hi = TIMES(convert_float16(high), h->d[j], h->m[j]);
}
#elif defined(w_is_q6_K)
typedef struct { float d[16]; } head;
DEVICE head begin(bytes b) {
  head h;
  vstore16(load_f16(b + 208) * convert_float16(vload16(0, (GLOBAL const char*)(b + 192))), 0, h.d);
  return h;
}
DEVICE void part(bytes b, const head* h, int j, float16* lo, float16* hi) {
  bytes low = b + (j >> 2) * 64 + (j & 1) * 32, high = b + 128 + (j >> 2) * 32;
  const uchar s = (uchar)(2 * (j & 2)), t = (uchar)(2 * (j & 3));
  const uchar16 first = (BYTES16(low) >> s & (uchar16)15) | (BYTES16(high) >> t & (uchar16)3) << (uchar16)4;
  const uchar16 second = (BYTES16(low + 16) >> s & (uchar16)15) | (BYTES16(high + 16) >> t & (uchar16)3) << (uchar16)4;
  *lo = h->d[2 * j] * convert_float16(as_char16(first - (uchar16)32));
  *hi = h->d[2 * j + 1] * convert_float16(as_char16(second - (uchar16)32));
}
#else
typedef int head;
DEVICE head begin(bytes b) { return 0; }
DEVICE void part(bytes b, const head* h, int j, float16* lo, float16* hi) {
  float all[32];
  for (int i = 0; i < 32; i++) all[i] = decode_w(b, 32 * j + i);
  *lo = vload16(0, all);
  *hi = vload16(1, all);
}
#endif

// Rows of `w` have BLOCK_BYTES after BLOCK_BYTES; those of element types end in a rest.
#if w_block > 1
#define REST_AT(row, k) 0.0f
#else
#define REST_AT(row, k) load_w((row) + (long)(k) * w_bytes)
#endif

DEVICE float sum16(float16 v) {
  const float8 a = v.lo + v.hi;
  const float4 b = a.lo + a.hi;
  return (b.x + b.y) + (b.z + b.w);
}

//: matvec
// Up to COLS rows of `x` against `p.rows` rows of `w`, which an item reads from one end to the other.
KERNEL_HEAD {
  const int first = GROUP_X * p.rows;
  const int last = min(first + p.rows, p.w.ne[1]);
  const int i2 = GROUP_Z % p.x.ne[2], i3 = GROUP_Z / p.x.ne[2];
  const int m0 = GROUP_Y * COLS;
  const int blocks = p.w.ne[0] / (32 * PARTS);
  GLOBAL const float* x[COLS];
#pragma unroll
  for (int c = 0; c < COLS; c++) x[c] = (GLOBAL const float*)ROW(x, min(m0 + c, p.x.ne[1] - 1), i2, i3);
  for (int row = first; row < last; row++) {
    bytes w = ROW(w, row, i2 / p.repeat2, i3 / p.repeat3);
    float16 even[COLS], odd[COLS];
#pragma unroll
    for (int c = 0; c < COLS; c++) even[c] = odd[c] = 0.0f;
    int k = 0;
    bytes b = w;
    for (int block = 0; block < blocks; block++, b += BLOCK_BYTES) {
      const head h = begin(b);
#pragma unroll
      for (int j = 0; j < PARTS; j++, k += 32) {
        float16 lo, hi;
        part(b, &h, j, &lo, &hi);
#pragma unroll
        for (int c = 0; c < COLS; c++) {
          even[c] = fma(lo, vload16(0, x[c] + k), even[c]);
          odd[c] = fma(hi, vload16(1, x[c] + k), odd[c]);
        }
      }
    }
#pragma unroll
    for (int c = 0; c < COLS; c++) {
      float sum = sum16(even[c] + odd[c]);
      for (int rest = k; rest < p.w.ne[0]; rest++) sum += REST_AT(w, rest) * x[c][rest];
      if (m0 + c < p.x.ne[1]) *(GLOBAL float*)AT(y, row, m0 + c, i2, i3) = sum;
    }
  }
}

//: matmul
// Panels of 32 rows of `w`, decoded and turned to local memory DEPTH elements at a time, against
// 8 rows of `x` at a time.
#define DEPTH 256
#define ROWS 8

DEVICE void fill(LOCAL float* panel, bytes w, long step, int rows, int k0, int depth) {
  for (int r = 0; r < 32; r++) {
    // Rows beyond the last are copies of it, whose results nobody stores.
    bytes row = w + min(r, rows - 1) * step;
    bytes b = row + (long)(k0 / (32 * PARTS)) * BLOCK_BYTES;
    LOCAL float* to = panel + r;
    int k = 0;
    for (; k + 32 * PARTS <= depth; b += BLOCK_BYTES) {
      const head h = begin(b);
      for (int j = 0; j < PARTS; j++, k += 32) {
        float16 v[2];
        part(b, &h, j, &v[0], &v[1]);
        const float* one = (const float*)v;
#pragma unroll
        for (int i = 0; i < 32; i++) to[(k + i) * 32] = one[i];
      }
    }
    for (; k < depth; k++) to[k * 32] = REST_AT(row, k0 + k);
  }
}

#define EACH(f) f(0) f(1) f(2) f(3) f(4) f(5) f(6) f(7)

KERNEL_HEAD {
  LOCAL float panel[DEPTH * 32];
  const int n = p.w.ne[1], rows = p.x.ne[1], length = p.w.ne[0];
  const int i2 = GROUP_Z % p.x.ne[2], i3 = GROUP_Z / p.x.ne[2];
  const int first = GROUP_Y * p.rows, last = min(first + p.rows, rows);
  const int end = min((GROUP_X + 1) * p.panels * 32, n);
  for (int n0 = GROUP_X * p.panels * 32; n0 < end; n0 += 32) {
    bytes w = ROW(w, n0, i2 / p.repeat2, i3 / p.repeat3);
    const int count = min(n - n0, 32);
    for (int k0 = 0; k0 < length; k0 += DEPTH) {
      const int depth = min(length - k0, DEPTH);
      fill(panel, w, p.w.nb[1], count, k0, depth);
      for (int m = first; m < last; m += ROWS) {
#define START(i) \
  GLOBAL const float* x##i = (GLOBAL const float*)ROW(x, min(m + i, rows - 1), i2, i3) + k0; \
  float16 a##i = 0.0f, b##i = 0.0f;
        EACH(START)
        for (int k = 0; k < depth; k++) {
          const float16 left = vload16(2 * k, panel), right = vload16(2 * k + 1, panel);
#define STEP(i) a##i = fma((float16)x##i[k], left, a##i); b##i = fma((float16)x##i[k], right, b##i);
          EACH(STEP)
        }
#define FINISH(i) \
  if (m + i < last) { \
    GLOBAL float* y = (GLOBAL float*)AT(y, n0, m + i, i2, i3); \
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
        EACH(FINISH)
      }
    }
  }
}
