// One row of `x` against rows of `w` of block types, on processors: 128 elements at a time, a UNIT.
//
// The codes of a unit are bytes or halves of bytes of 16 words. They become floats where they are,
// without shifts: as codes times powers of two, by which `x` is divided beforehand. `x` is sorted
// as the codes lie, and scales multiply sums of products. Elements below 2^-98 lose bits by that.
//
// A type says how many UNITS a BLOCK has and how many bytes hold it, what is read once of it (`begin`),
// and how the codes of a unit lie (`words`): GROUP neighbouring elements in the low halves of the bytes
// and the next GROUP in the high ones (NIBBLES), or in bytes of two vectors of words. SCALES (and
// MINIMA) are those of the words, for low codes and high ones. SUMS multiplies the sums of `x` that
// minima are multiplied with; without minima it is what is taken off all codes, such as 8 of q4_0.
//
// With INT8, `x` becomes bytes, and codes meet it as integers.

#define EVERY(name, count) _Pragma("unroll") for (int name = 0; name < count; name++)
typedef GLOBAL const uchar* bytes;

// Drivers load a vector of bytes at an unknown address in pieces, and a vector of one of these types at once.
typedef uint4 word4 __attribute__((aligned(1)));
typedef uint8 word8 __attribute__((aligned(1)));
typedef uint16 word16 __attribute__((aligned(1)));
typedef float16 number16 __attribute__((aligned(4)));
#define WORDS4(p) *(GLOBAL const word4*)(p)
#define WORDS8(p) *(GLOBAL const word8*)(p)
#define WORDS16(p) *(GLOBAL const word16*)(p)

#define NUMBERS_0_TO_15 (uint16)(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15)
#define FOURS 0x0f0f0f0fu
#define TWICE(v) (uint16)((v), (v))
#define SHIFTS(a, b) (uint16)((uint8)(a), (uint8)(b))

// Words of `v` by their numbers, for low codes and high ones of the first unit and the second.
#define NTH(i, v, a, b, c, d) \
  ((i) == 0 ? (v).s##a : (i) == 1 ? (v).s##b : (i) == 2 ? (v).s##c : (v).s##d)

// 8 halves as floats.
#if defined(__F16C__) && defined(__clang__)
DEVICE float8 halves8(short8 halves) { return __builtin_ia32_vcvtph2ps256(halves); }
#else
DEVICE float8 halves8(short8 halves) { return vload_half8(0, (const half*)&halves); }
#endif

#if w_block == 32
// Four blocks, or the first `n` of them and copies. Those are counted as 0.
#define UNITS 1
#define GROUP 16
#define BLOCK_BYTES (4 * w_bytes)
#define PLACE(i, at) (b + min(i, n - 1) * w_bytes + (at))
#define FROM_EACH(at) \
  (uint16)(WORDS4(PLACE(0, at)), WORDS4(PLACE(1, at)), WORDS4(PLACE(2, at)), WORDS4(PLACE(3, at)))
#define FIRST(v) (v).s000044448888cccc
#define SECOND(v) (v).s111155559999dddd
#define COUNTED(v) (n < 4 ? select((float16)(0.0f), (v), as_int16(NUMBERS_0_TO_15) < 4 * n) : (v))
#define SCALES(h, i) (h)->d
typedef struct {
  uint16 start;
  float16 d, m;
} head;
DEVICE head begin(bytes b, int n) {
  head h;
  h.start = FROM_EACH(0);
  const float8 dm = halves8(as_short8(h.start.s048c));
  h.d = COUNTED(dm.s0000222244446666);
  h.m = COUNTED(dm.s1111333355557777);
  return h;
}
#endif

#if defined(w_is_q4_0) || defined(w_is_q4_1)
#define NIBBLES
#ifdef w_is_q4_0
#define CODES 2
#define SUMS -8.0f
#else
#define CODES 4
#define SUMS 1.0f
#define MINIMA(h, i) (h)->m
#endif
DEVICE void words(bytes b, int n, int j, const head* h, uint16* low, uint16* high) {
  *low = FROM_EACH(CODES);
}
#elif defined(w_is_q5_0) || defined(w_is_q5_1)
#ifdef w_is_q5_0
#define CODES 6
#define SUMS -16.0f
#define LOW_FIFTHS(v) SPREAD(FIRST(v), 16)
#define HIGH_FIFTHS(v) SPREAD(SECOND(v), 0)
#else
#define CODES 8
#define SUMS 1.0f
#define MINIMA(h, i) (h)->m
#define LOW_FIFTHS(v) SPREAD(SECOND(v), 0)
#define HIGH_FIFTHS(v) SPREAD(SECOND(v), 16)
#endif
#define MASK 0x1fu
// Four bits for each word, each to bit 4 of its byte by a product without carries.
#define SPREAD(bits, from) (((bits) >> (4 * (NUMBERS_0_TO_15 & 3u) + (from)) & 15u) * 0x02040810u & ~FOURS)
DEVICE void words(bytes b, int n, int j, const head* h, uint16* low, uint16* high) {
  const uint16 codes = FROM_EACH(CODES);
  *low = (codes & FOURS) | LOW_FIFTHS(h->start);
  *high = (codes >> 4 & FOURS) | HIGH_FIFTHS(h->start);
}
#elif defined(w_is_q4_K) || defined(w_is_q5_K)
#define UNITS 2
#define GROUP 32
#define BLOCK_BYTES w_bytes
#define SUMS -1.0f
// Eight scales, then eight minima.
typedef struct { float16 both; } head;
DEVICE head begin(bytes b, int n) {
  const uint six = 0x3f3f3f3fu, four = FOURS, two = 0x30303030u;
  const uint4 v = WORDS4(b);
  const uint4 low = v.ywzw >> (uint4)(0, 0, 0, 4) & (uint4)(six, four, six, four);
  const uint4 high = v.yyzz >> (uint4)(2) & (uint4)(0, two, 0, two);
  const float8 dm = halves8(as_short8(v));
  head h = {dm.s0000000011111111 * convert_float16(as_uchar16(low | high))};
  return h;
}
#define SCALES(h, i) \
  NTH(i, (h)->both, 0000000022222222, 1111111133333333, 4444444466666666, 5555555577777777)
#define MINIMA(h, i) \
  NTH(i, (h)->both, 88888888aaaaaaaa, 99999999bbbbbbbb, cccccccceeeeeeee, ddddddddffffffff)
#ifdef w_is_q4_K
#define NIBBLES
DEVICE void words(bytes b, int n, int j, const head* h, uint16* low, uint16* high) {
  *low = WORDS16(b + 16 + 64 * j);
}
#else
#define MASK 0x1fu
DEVICE void words(bytes b, int n, int j, const head* h, uint16* low, uint16* high) {
  const uint16 codes = WORDS16(b + 48 + 64 * j);
  const uint16 fifths = TWICE(WORDS8(b + 16)) >> SHIFTS(4 * j, 4 * j + 2);
  *low = (codes & FOURS) | (fifths << 4 & 0x10101010u);
  *high = (codes >> 4 & FOURS) | (fifths << 3 & 0x10101010u);
}
#endif
#elif defined(w_is_q6_K)
#define UNITS 2
#define GROUP 64
#define BLOCK_BYTES w_bytes
#define SUMS -32.0f
#define MASK 0x3fu
typedef struct { float16 d; } head;
DEVICE head begin(bytes b, int n) {
  head h = {load_f16(b + 208) * convert_float16(vload16(0, (GLOBAL const char*)(b + 192)))};
  return h;
}
#define SCALES(h, i) \
  NTH(i, (h)->d, 0000111122223333, 4444555566667777, 88889999aaaabbbb, ccccddddeeeeffff)
DEVICE void words(bytes b, int n, int j, const head* h, uint16* low, uint16* high) {
  const uint16 codes = WORDS16(b + 64 * j), two = TWICE(WORDS8(b + 128 + 32 * j));
  *low = (codes & FOURS) | (two << SHIFTS(4, 2) & ~FOURS);
  *high = (codes >> 4 & FOURS) | (two >> SHIFTS(0, 2) & ~FOURS);
}
#endif

// Code `i` of each word as a float, and by what `x` makes up for its place.
#define FLOATS(codes) convert_float16(as_int16(codes))
#define LOW_FACTORS (float4)(1.0f, 0x1p-8f, 0x1p-16f, 0x1p-24f)
#ifdef NIBBLES
#define LOW(i) FLOATS(low & 0x0fu << 8 * (i))
#define HIGH(i) FLOATS((i) < 3 ? low & 0xf0u << 8 * (i) : low >> 28)
#define HIGH_FACTORS (float4)(0x1p-4f, 0x1p-12f, 0x1p-20f, 1.0f)
#else
#define LOW(i) FLOATS(low & MASK << 8 * (i))
#define HIGH(i) FLOATS(high & MASK << 8 * (i))
#define HIGH_FACTORS LOW_FACTORS
#endif


//: stream
// A group is one item, so its local memory needs no barrier.
// An item reads its rows as AT_ONCE streams: those that are far apart are fetched ahead. Processors
// do that within a page by themselves; what is AHEAD bytes on may be on the next.
#define AT_ONCE 2
#define AHEAD 2048
// Elements of `x` that are prepared at once, in local memory.
#define DEPTH 6144

// Adds products of low codes, and of high ones.
#if w_block == 32
#define ADD(factors, a, b) sums[0] = fma(factors(h, 0), (a) + (b), sums[0]);
#else
#define ADD(factors, a, b) \
  sums[0] = fma(factors(h, 2 * j), (a), sums[0]); \
  sums[1] = fma(factors(h, 2 * j + 1), (b), sums[1]);
#endif

#ifdef INT8
// `x` as bytes with a scale for each unit, which is NaN where a number is not finite. Vectors of a
// unit: the bytes that meet low codes, those for high codes, the sums of both, the scale.
#define PREPARED 5
#ifdef NIBBLES
#define LOW_BYTES (low & FOURS)
#define HIGH_BYTES (low >> 4 & FOURS)
#else
#define LOW_BYTES (low & MASK * 0x01010101u)
#define HIGH_BYTES (high & MASK * 0x01010101u)
#endif

// For each word the sum of four products of codes below 64 and signed bytes.
#if defined(__AVX512BW__) && defined(__clang__)
typedef char char64 __attribute__((ext_vector_type(64)));
typedef short short32 __attribute__((ext_vector_type(32)));
DEVICE int16 dots(uint16 codes, uint16 x) {
  const short32 pairs = __builtin_ia32_pmaddubsw512(
      __builtin_astype(codes, char64), __builtin_astype(x, char64));
  return __builtin_ia32_pmaddwd512(pairs, (short32)(1));
}
#else
DEVICE int16 dots(uint16 codes, uint16 x) {
  int16 sum = 0;
  EVERY(i, 4) sum += as_int16(codes >> 8 * i & 255u) * (as_int16(x << (24 - 8 * i)) >> 24);
  return sum;
}
#endif

DEVICE void round_half(const float16* in, float scale, float inverse, LOCAL float16* to) {
  uint4 parts[4];
  EVERY(i, 4) parts[i] = as_uint4(convert_char16(convert_int16_rte(in[i] * inverse)));
  const uint16 all = (uint16)(parts[0], parts[1], parts[2], parts[3]);
  const int16 sums = dots((uint16)(0x01010101u), all);
  to[0] = as_float16(all);
#ifdef MINIMA
  to[2] = SUMS * scale * convert_float16(sums);
#else
  to[2] = as_float16(sums * (int)SUMS);
#endif
}

DEVICE void prepare(const float16* low, const float16* high, LOCAL float16* to) {
  float16 most = 0.0f, odd = 0.0f;
  EVERY(i, 4) {
    most = fmax(most, fmax(fabs(low[i]), fabs(high[i])));
    odd += (low[i] + high[i]) * 0.0f;
  }
  const float8 most8 = fmax(most.lo, most.hi);
  const float4 most4 = fmax(most8.lo, most8.hi);
  const float largest = fmax(fmax(most4.x, most4.y), fmax(most4.z, most4.w));
  // Numbers so small that their inverse is none count as 0.
  const float scale = largest / 127.0f + sum_of_lanes(odd);
  const float inverse = largest > 1e-30f ? 127.0f / largest : 0.0f;
  round_half(low, scale, inverse, to);
  round_half(high, scale, inverse, to + 1);
  to[4] = scale;
}

#ifdef MINIMA
#define START(i) 0
#else
#define START(i) as_int16(x[i])
#endif
DEVICE void add(bytes b, int n, int j, const head* h, LOCAL const float16* x, float16* sums) {
  uint16 low, high;
  words(b, n, j, h, &low, &high);
  const int16 lows = dots(LOW_BYTES, as_uint16(x[0])) + START(2);
  const int16 highs = dots(HIGH_BYTES, as_uint16(x[1])) + START(3);
  ADD(SCALES, x[4] * convert_float16(lows), x[4] * convert_float16(highs))
#ifdef MINIMA
  ADD(MINIMA, x[2], x[3])
#endif
}
#else
// Vectors of a unit: what meets low codes 0 to 3 and the sum of it, then high codes.
#define PREPARED 10

// 64 elements by their places in words, and their sums.
DEVICE void sort(const float16* in, float4 factors, LOCAL float16* to) {
  const float16 a = (float16)(in[0].even, in[1].even), b = (float16)(in[2].even, in[3].even);
  const float16 c = (float16)(in[0].odd, in[1].odd), d = (float16)(in[2].odd, in[3].odd);
  const float16 x0 = (float16)(a.even, b.even), x1 = (float16)(c.even, d.even);
  const float16 x2 = (float16)(a.odd, b.odd), x3 = (float16)(c.odd, d.odd);
  to[0] = x0 * factors.s0;
  to[1] = x1 * factors.s1;
  to[2] = x2 * factors.s2;
  to[3] = x3 * factors.s3;
  to[4] = SUMS * ((x0 + x1) + (x2 + x3));
}

DEVICE void prepare(const float16* low, const float16* high, LOCAL float16* to) {
  sort(low, LOW_FACTORS, to);
  sort(high, HIGH_FACTORS, to + 5);
}

#ifdef MINIMA
#define START(i) (float16)(0.0f)
#else
#define START(i) x[i]
#endif
DEVICE void add(bytes b, int n, int j, const head* h, LOCAL const float16* x, float16* sums) {
  uint16 low, high;
  words(b, n, j, h, &low, &high);
  float16 lows = START(4), highs = START(9);
  EVERY(i, 4) {
    lows = fma(LOW(i), x[i], lows);
    highs = fma(HIGH(i), x[5 + i], highs);
  }
  ADD(SCALES, lows, highs)
#ifdef MINIMA
  ADD(MINIMA, x[4], x[9])
#endif
}
#endif

// Multiplies a block of each stream, or `n` blocks, and moves on.
#define BLOCK(n) { \
  head h[AT_ONCE]; \
  EVERY(r, AT_ONCE) { \
    EVERY(line, (BLOCK_BYTES + 63) / 64) { PREFETCH(w[r] + AHEAD + 64 * line); } \
    h[r] = begin(w[r], n); \
  } \
  EVERY(j, UNITS) { \
    EVERY(r, AT_ONCE) add(w[r], n, j, &h[r], here + PREPARED * j, sums[r]); \
  } \
  EVERY(r, AT_ONCE) w[r] += BLOCK_BYTES; \
  here += PREPARED * UNITS; \
}

KERNEL_HEAD {
  LOCAL float16 prepared[DEPTH / 128 * PREPARED];
  const int first = GROUP_X * p.rows, last = min(first + p.rows, p.w.ne[1]);
  MATRIX  // declares columns; i2, i3 or expert, start, read by W_ROW, X_ROW, Y_ROW
  if (!IS_EXPERT) {  // no expert: zeros
    for (int row = first; row < last; row++) ((GLOBAL float*)Y_ROW(0))[row] = 0.0f;
    return;
  }
  GLOBAL const float* x = (GLOBAL const float*)X_ROW(0);
  GLOBAL float* y = (GLOBAL float*)Y_ROW(0);
  const int span = (last - first + AT_ONCE - 1) / AT_ONCE;
  for (int start = 0; start < p.w.ne[0]; start += DEPTH, x += DEPTH) {
    const int depth = min(p.w.ne[0] - start, DEPTH);
    for (int k = 0; k < depth; k += 128) {  // prepare DEPTH elements of x in local memory
      float16 low[4], high[4];
      EVERY(i, 4) {
        const int at = k + 16 * i / GROUP * 2 * GROUP + 16 * i % GROUP;
        low[i] = at < depth ? *(GLOBAL const number16*)(x + at) : (float16)(0.0f);
        high[i] = at < depth ? *(GLOBAL const number16*)(x + at + GROUP) : (float16)(0.0f);
      }
      prepare(low, high, prepared + k / 128 * PREPARED);
    }
    for (int row = first; row < first + span; row++) {  // AT_ONCE rows, `span` apart
      bytes w[AT_ONCE];
      float16 sums[AT_ONCE][2];
      EVERY(r, AT_ONCE) {
        // Rows beyond the last compute the last one again, and their results are not stored.
        w[r] = W_ROW(min(row + r * span, last - 1)) + (long)(start / (128 * UNITS)) * BLOCK_BYTES;
        sums[r][0] = sums[r][1] = 0.0f;
      }
      LOCAL const float16* here = prepared;
      int k = 0;
      for (; k + 128 * UNITS <= depth; k += 128 * UNITS) BLOCK(4)  // adds to sums; moves w and here on
#if UNITS == 1
      if (k < depth) BLOCK((depth - k) / 32)
#endif
      EVERY(r, AT_ONCE) {
        const int n = row + r * span;
        const float sum = sum_of_lanes(sums[r][0] + sums[r][1]);  // add up the lanes
        if (n < last) y[n] = start ? y[n] + sum : sum;
      }
    }
  }
}
