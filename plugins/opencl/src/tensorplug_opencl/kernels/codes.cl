// The codes of weights of 4 to 6 bits, on processors: 128 elements at a time, a UNIT, as bytes or
// halves of bytes of 16 words.
//
// A type says how many UNITS a BLOCK has and how many bytes hold it, what is read once of it (`begin`),
// and how the codes of a unit lie (`words`): GROUP neighbouring elements in the low halves of the bytes
// and the next GROUP in the high ones (NIBBLES), or in bytes of two vectors of words. SCALES (and
// MINIMA) are those of the words, for low codes and high ones. SUMS multiplies the sums of `x` that
// minima are multiplied with; without minima it is what is taken off all codes, such as 8 of q4_0.
// FACTORS stores the scale of each SPAN of 256 elements and then the minima. CODES_OF_SCALES are those of
// the words as they lie in a block of 256, to be multiplied with its `d`.

// Drivers load a vector of bytes at an unknown address in pieces, and a vector of one of these types at once.
typedef uint4 word4 __attribute__((aligned(1)));
typedef uint8 word8 __attribute__((aligned(1)));
typedef uint16 word16 __attribute__((aligned(1)));
#define WORDS4(p) *(GLOBAL const word4*)(p)
#define WORDS8(p) *(GLOBAL const word8*)(p)
#define WORDS16(p) *(GLOBAL const word16*)(p)

#define FOURS 0x0f0f0f0fu
#define TWICE(v) (uint16)((v), (v))
#define SHIFTS(a, b) (uint16)((uint8)(a), (uint8)(b))

// Words of `v` by their numbers, for low codes and high ones of the first unit and the second.
#define NTH(i, v, a, b, c, d) \
  ((i) == 0 ? (v).s##a : (i) == 1 ? (v).s##b : (i) == 2 ? (v).s##c : (v).s##d)
// The same of 16 shorts, each as often as its number is in a list of 32.
#define X8(n) n, n, n, n, n, n, n, n
#define X16(n) X8(n), X8(n)
#define NUMBERS_OF(...) __VA_ARGS__
#define SHORTS_OF(v, list) __builtin_shufflevector(v, v, NUMBERS_OF list)
#define NTH_OF(i, v, a, b, c, d) \
  ((i) == 0 ? SHORTS_OF(v, a) : (i) == 1 ? SHORTS_OF(v, b) : (i) == 2 ? SHORTS_OF(v, c) : SHORTS_OF(v, d))

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
typedef struct {
  bytes at[4];
  int n;
} blocks;
#define BLOCK_AT(b, i, n) ((b) + min(i, (n) - 1) * w_bytes)
#define BLOCKS(b, n) (blocks){{b, BLOCK_AT(b, 1, n), BLOCK_AT(b, 2, n), BLOCK_AT(b, 3, n)}, n}
#define FROM_EACH(from) \
  (uint16)(WORDS4(b.at[0] + (from)), WORDS4(b.at[1] + (from)), WORDS4(b.at[2] + (from)), WORDS4(b.at[3] + (from)))
#define FIRST(v) (v).s000044448888cccc
#define SECOND(v) (v).s111155559999dddd
#define COUNTED(v) (b.n < 4 ? select((float16)(0.0f), (v), as_int16(NUMBERS_0_TO_15) < 4 * b.n) : (v))
#define SCALES(h, i) (h)->d
#define SPAN 32
#define FACTORS(h, unit, to) \
  vstore4((h).d.s048c, (unit), (to)); \
  vstore4((h).m.s048c, (unit) + 2, (to));
typedef struct {
  uint16 start;
  float16 d, m;
} head;
DEVICE head begin(blocks b) {
  head h;
  h.start = FROM_EACH(0);
  const float8 dm = halves8(as_short8(h.start.s048c));
  h.d = COUNTED(dm.s0000222244446666);
  h.m = COUNTED(dm.s1111333355557777);
  return h;
}
#else
// Of a block of 256: its factor, the codes of its scales and then of its minima, and their values.
#define UNITS 2
#define BLOCK_BYTES w_bytes
typedef bytes blocks;
#define BLOCKS(b, n) (b)
#define FACTORS(h, unit, to) vstore16((h).both, 0, (to));
typedef struct {
  float d;
  short16 codes;
  float16 both;
} head;
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
DEVICE void words(blocks b, int j, const head* h, uint16* low, uint16* high) {
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
DEVICE void words(blocks b, int j, const head* h, uint16* low, uint16* high) {
  const uint16 codes = FROM_EACH(CODES);
  *low = (codes & FOURS) | LOW_FIFTHS(h->start);
  *high = (codes >> 4 & FOURS) | HIGH_FIFTHS(h->start);
}
#elif defined(w_is_q4_K) || defined(w_is_q5_K)
#define GROUP 32
#define SUMS -1.0f
// Eight scales, then eight minima.
DEVICE head begin(blocks b) {
  const uint six = 0x3f3f3f3fu, four = FOURS, two = 0x30303030u;
  const uint4 v = WORDS4(b);
  const uint4 low = v.ywzw >> (uint4)(0, 0, 0, 4) & (uint4)(six, four, six, four);
  const uint4 high = v.yyzz >> (uint4)(2) & (uint4)(0, two, 0, two);
  const float8 dm = halves8(as_short8(v));
  const uchar16 codes = as_uchar16((uint4)(low | high));
  head h = {dm.s0, convert_short16(codes), dm.s0000000011111111 * convert_float16(codes)};
  return h;
}
#define SCALES(h, i) \
  NTH(i, (h)->both, 0000000022222222, 1111111133333333, 4444444466666666, 5555555577777777)
#define CODES_OF_SCALES(h, i) \
  NTH_OF(i, (h)->codes, (X16(0), X16(2)), (X16(1), X16(3)), (X16(4), X16(6)), (X16(5), X16(7)))
#define SPAN 32
#define MINIMA(h, i) \
  NTH(i, (h)->both, 88888888aaaaaaaa, 99999999bbbbbbbb, cccccccceeeeeeee, ddddddddffffffff)
#ifdef w_is_q4_K
#define NIBBLES
DEVICE void words(blocks b, int j, const head* h, uint16* low, uint16* high) {
  *low = WORDS16(b + 16 + 64 * j);
}
#else
#define MASK 0x1fu
DEVICE void words(blocks b, int j, const head* h, uint16* low, uint16* high) {
  const uint16 codes = WORDS16(b + 48 + 64 * j);
  const uint16 fifths = TWICE(WORDS8(b + 16)) >> SHIFTS(4 * j, 4 * j + 2);
  *low = (codes & FOURS) | (fifths << 4 & 0x10101010u);
  *high = (codes >> 4 & FOURS) | (fifths << 3 & 0x10101010u);
}
#endif
#elif defined(w_is_q6_K)
#define GROUP 64
#define SUMS -32.0f
#define MASK 0x3fu
DEVICE head begin(blocks b) {
  const float d = load_f16(b + 208);
  const char16 codes = vload16(0, (GLOBAL const char*)(b + 192));
  head h = {d, convert_short16(codes), d * convert_float16(codes)};
  return h;
}
#define SCALES(h, i) \
  NTH(i, (h)->both, 0000111122223333, 4444555566667777, 88889999aaaabbbb, ccccddddeeeeffff)
#define CODES_OF_SCALES(h, i) \
  NTH_OF(i, (h)->codes, (X8(0), X8(1), X8(2), X8(3)), (X8(4), X8(5), X8(6), X8(7)), \
         (X8(8), X8(9), X8(10), X8(11)), (X8(12), X8(13), X8(14), X8(15)))
#define SPAN 16
DEVICE void words(blocks b, int j, const head* h, uint16* low, uint16* high) {
  const uint16 codes = WORDS16(b + 64 * j), two = TWICE(WORDS8(b + 128 + 32 * j));
  *low = (codes & FOURS) | (two << SHIFTS(4, 2) & ~FOURS);
  *high = (codes >> 4 & FOURS) | (two >> SHIFTS(0, 2) & ~FOURS);
}
#endif

// The codes of `low` and `high` as bytes.
#ifdef NIBBLES
#define LOW_BYTES (low & FOURS)
#define HIGH_BYTES (low >> 4 & FOURS)
#else
#define LOW_BYTES (low & MASK * 0x01010101u)
#define HIGH_BYTES (high & MASK * 0x01010101u)
#endif

// Products of codes below 64 and signed bytes: the sums of two neighbours (`pairs`), and then of two
// of those times shorts (`join`).
typedef short short32 __attribute__((ext_vector_type(32)));
typedef char char64 __attribute__((ext_vector_type(64)));
typedef char char32 __attribute__((ext_vector_type(32)));
#define ONES (short32)(1)
#if defined(__AVX512BW__)
DEVICE short32 pairs(uint16 codes, uint16 x) {
  return __builtin_ia32_pmaddubsw512(__builtin_astype(codes, char64), __builtin_astype(x, char64));
}
DEVICE int16 join(short32 sums, short32 by) { return __builtin_ia32_pmaddwd512(sums, by); }
#elif defined(__AVX2__)
#define PAIRS8(codes, x) \
  __builtin_ia32_pmaddubsw256(__builtin_astype(codes, char32), __builtin_astype(x, char32))
DEVICE short32 pairs(uint16 codes, uint16 x) {
  return (short32)(PAIRS8(codes.lo, x.lo), PAIRS8(codes.hi, x.hi));
}
DEVICE int16 join(short32 sums, short32 by) {
  return (int16)(__builtin_ia32_pmaddwd256(sums.lo, by.lo), __builtin_ia32_pmaddwd256(sums.hi, by.hi));
}
#else
DEVICE short32 pairs(uint16 codes, uint16 x) {
  const short32 c = __builtin_astype(codes, short32), s = __builtin_astype(x, short32);
  return (c & (short)255) * (s << (short)8 >> (short)8) + (c >> (short)8) * (s >> (short)8);
}
DEVICE int16 join(short32 sums, short32 by) {
  const int16 s = __builtin_astype(sums, int16), b = __builtin_astype(by, int16);
  return (s << 16 >> 16) * (b << 16 >> 16) + (s >> 16) * (b >> 16);
}
#endif
