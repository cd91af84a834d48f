// One row of `x` against rows of `w` of block types, on processors.
//
// Codes become floats where they are, without shifts: as codes times powers of two, by which `x` is
// divided beforehand. `x` is sorted as the codes lie, and scales multiply sums of products. Elements
// below 2^-98 lose bits by that. With INT8, `x` becomes bytes, and codes meet it as integers.

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
// At an address of floats.
typedef float16 number16 __attribute__((aligned(4)));

// 64 elements by their places in words: the first of each of 16 words, the second and so on.
DEVICE void sort(const float16* in, float16* to) {
  const float16 a = (float16)(in[0].even, in[1].even), b = (float16)(in[2].even, in[3].even);
  const float16 c = (float16)(in[0].odd, in[1].odd), d = (float16)(in[2].odd, in[3].odd);
  to[0] = (float16)(a.even, b.even);
  to[1] = (float16)(c.even, d.even);
  to[2] = (float16)(a.odd, b.odd);
  to[3] = (float16)(c.odd, d.odd);
}

#ifdef INT8
// `x` as bytes. Four words meet 16 neighbours by their low codes and 16 by their high ones, which have
// one scale; it is NaN where one of them is not finite. Vectors of a unit: the bytes that meet low
// codes, those for high codes, `added`, the scales.
//
// What is added: for blocks of 32 the sums of both, for minima or times what is taken off all codes.
// For blocks of 256 it stands in the first unit and is multiplied with all factors of the block: the
// sums for minima behind zeros for scales, or times what is taken off for scales.
#define PREPARED 4

// 64 elements as the bytes of words; their sums.
DEVICE int16 round_words(const float16* x, float16 inverse, LOCAL float16* to) {
  uint16 all = 0;
  int16 sums = 0;
  EVERY(i, 4) {
    const float16 scaled = x[i] * inverse;
    const int16 rounded = NEAREST(as_int16, scaled);
    sums += rounded;
    all |= (as_uint16(rounded) & 255u) << 8 * i;
  }
  *to = as_float16(all);
  return sums;
}

DEVICE void prepare(const float16* low, const float16* high, int unit, LOCAL float16* to) {
  float16 a[4], b[4];
  int16 bits = 0;  // of the largest: integers order floats without a sign, and NaN comes last
  sort(low, a);
  sort(high, b);
  EVERY(i, 4) bits = max(bits, max(as_int16(fabs(a[i])), as_int16(fabs(b[i]))));
  bits = max(bits, bits.s1032547698badcfe);  // of four lanes
  bits = max(bits, bits.s23016745ab89efcd);
  const float16 largest = as_float16(bits), odd = largest * 0.0f;  // odd: NaN where one is not finite
  // Numbers so small that their inverse is none count as 0.
  const float16 scale = largest / 127.0f + odd;
  const float16 inverse = select((float16)(0.0f), 127.0f / largest, largest > 1e-30f);
  const int16 lows = round_words(a, inverse, to), highs = round_words(b, inverse, to + 1);
  to[3] = scale;
#if UNITS == 2
  float sums[32];
  vstore16(SUMS * scale * convert_float16(lows), 0, sums);
  vstore16(SUMS * scale * convert_float16(highs), 1, sums);
  LOCAL float* added = (LOCAL float*)(to + 2 - PREPARED * unit);
  EVERY(i, 128 / SPAN) {  // sums of SPAN elements, in their order
#ifdef MINIMA
    const float* from = sums + 16 * (i % 2) + 8 * (i / 2);
    added[4 * unit + i] = 0.0f;
    added[8 + 4 * unit + i] = from[0] + from[1] + from[2] + from[3] + from[4] + from[5] + from[6] + from[7];
#else
    const float* from = sums + 4 * i;
    added[8 * unit + i] = from[0] + from[1] + from[2] + from[3];
#endif
  }
#elif defined(MINIMA)
  to[2] = SUMS * scale * convert_float16(lows + highs);
#else
  to[2] = as_float16((lows + highs) * (int)SUMS);
#endif
}

DEVICE void add(blocks b, int j, const head* h, LOCAL const float16* x, float16* sums) {
  uint16 low, high;
  words(b, j, h, &low, &high);
  const short32 lows = pairs(LOW_BYTES, as_uint16(x[0])), highs = pairs(HIGH_BYTES, as_uint16(x[1]));
#if UNITS == 2
  const int16 all = join(lows, CODES_OF_SCALES(h, 2 * j)) + join(highs, CODES_OF_SCALES(h, 2 * j + 1));
  sums[0] = fma(h->d, x[3] * convert_float16(all), sums[0]);
  if (j == 0) sums[1] = fma(h->both, x[2], sums[1]);
#elif defined(MINIMA)
  sums[0] = fma(h->d, x[3] * convert_float16(join(lows + highs, ONES)), sums[0]);
  sums[1] = fma(h->m, x[2], sums[1]);
#else
  sums[0] = fma(h->d, x[3] * convert_float16(join(lows + highs, ONES) + as_int16(x[2])), sums[0]);
#endif
}
#else
// Vectors of a unit: what meets low codes 0 to 3 and the sum of it, then high codes.
#define PREPARED 10

// Adds products of low codes, and of high ones.
#if w_block == 32
#define ADD(factors, a, b) sums[0] = fma(factors(h, 0), (a) + (b), sums[0]);
#else
#define ADD(factors, a, b) \
  sums[0] = fma(factors(h, 2 * j), (a), sums[0]); \
  sums[1] = fma(factors(h, 2 * j + 1), (b), sums[1]);
#endif

// 64 elements as they meet codes, and their sums.
DEVICE void divide(const float16* in, float4 factors, LOCAL float16* to) {
  float16 x[4];
  sort(in, x);
  to[0] = x[0] * factors.s0;
  to[1] = x[1] * factors.s1;
  to[2] = x[2] * factors.s2;
  to[3] = x[3] * factors.s3;
  to[4] = SUMS * ((x[0] + x[1]) + (x[2] + x[3]));
}

DEVICE void prepare(const float16* low, const float16* high, int unit, LOCAL float16* to) {
  divide(low, LOW_FACTORS, to);
  divide(high, HIGH_FACTORS, to + 5);
}

#ifdef MINIMA
#define START(i) (float16)(0.0f)
#else
#define START(i) x[i]
#endif
DEVICE void add(blocks b, int j, const head* h, LOCAL const float16* x, float16* sums) {
  uint16 low, high;
  words(b, j, h, &low, &high);
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
    FETCH_BLOCK(w[r] + AHEAD) \
    h[r] = begin(BLOCKS(w[r], n)); \
  } \
  EVERY(j, UNITS) { \
    EVERY(r, AT_ONCE) add(BLOCKS(w[r], n), j, &h[r], here + PREPARED * j, sums[r]); \
  } \
  EVERY(r, AT_ONCE) w[r] += BLOCK_BYTES; \
  here += PREPARED * UNITS; \
}
// Multiplies the last two blocks of both streams at once, for which `x` is prepared twice.
#define HALF_BLOCKS { \
  const blocks b = {{w[0], w[0] + w_bytes, w[1], w[1] + w_bytes}, 4}; \
  const head h = begin(b); \
  float16 both[2] = {0.0f, 0.0f}; \
  add(b, 0, &h, here, both); \
  EVERY(i, 2) { \
    sums[0][i].lo += both[i].lo; \
    sums[1][i].lo += both[i].hi; \
  } \
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
        int at = k + 16 * i / GROUP * 2 * GROUP + 16 * i % GROUP;
        if (at >= depth && depth - k == 64) at -= 64;  // HALF_BLOCKS
        low[i] = at < depth ? *(GLOBAL const number16*)(x + at) : (float16)(0.0f);
        high[i] = at < depth ? *(GLOBAL const number16*)(x + at + GROUP) : (float16)(0.0f);
      }
      prepare(low, high, k / 128 % UNITS, prepared + k / 128 * PREPARED);
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
      if (depth - k == 64) HALF_BLOCKS
      else if (k < depth) BLOCK((depth - k) / 32)
#endif
      EVERY(r, AT_ONCE) {
        const int n = row + r * span;
        const float sum = sum_of_lanes(sums[r][0] + sums[r][1]);  // add up the lanes
        if (n < last) y[n] = start ? y[n] + sum : sum;
      }
    }
  }
}
