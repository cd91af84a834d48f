// 32 elements of `w` as floats, on processors.
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

#define HALF(p) load_f16(p)
#define BYTES16(p) vload16(0, (p))
// 32 bytes, to be shifted and masked together.
#define FOURS(p) (uint8)(as_uint4(BYTES16(p)), as_uint4(BYTES16((p) + 16)))
#define FIRST16(q) as_uchar16((q).lo)
#define SECOND16(q) as_uchar16((q).hi)
#define WORDS16(p) convert_uint16(BYTES16(p))
#define TIMES(a, b, c) fma((a), (float16)(b), (float16)(c))

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
