// What an item takes of a block of weights: RUNS runs of 16 elements, four of their bytes to an int; SHARES items take
// a block. Element i of run r is s[r] * (byte i of q + 4 * r) + o[r].
//
// Most types have two runs, a part of 32 elements, and one offset or none, as OFFSETS says. Where the bits of a byte
// belong to several parts, an item takes 16 bytes whole, and so a run of each of these parts: all first or all second
// halves of them.

#if defined(w_is_q4_K) || defined(w_is_q5_K)
#define PARTS_SHARED 2
#elif defined(w_is_q2_K) || defined(w_is_q3_K) || defined(w_is_q6_K) || defined(w_is_tq2_0)
#define PARTS_SHARED 4
#endif

#ifdef PARTS_SHARED
#define RUNS PARTS_SHARED
#define SHARES (16 / RUNS)
#define FIRST_PART(share) (RUNS * ((share) >> 1))
#define HALF(share) ((share) & 1)
#define RUN_CODES(part, share, r) HALF_CODES((part) + (r), HALF(share))
#define RUN_SCALES(length, part, share) HALF_SCALE(length, part, HALF(share))
#define BYTES_OF_SCALES 16
#else
#define RUNS 2
#define SHARES (w_block / 32)
#define FIRST_PART(share) (share)
#define RUN_CODES(part, share, r) HALF_CODES(part, r)
#define RUN_SCALES(length, part, share) PART_SCALE(length, part)
#define BYTES_OF_SCALES 8
#endif
typedef struct {
  int q[4 * RUNS];
  float s[RUNS], o[RUNS];
} Share;

DEVICE float byte_float(uint word, int at) { return (float)(uchar)(word >> 8 * at); }

#ifdef PARTS_SHARED
// Four words, by one load where they begin at a multiple of 16.
DEVICE void words4(const uchar* from, int* to) {
  if (((uint)(ulong)from & 15u) == 0) {
    const int4 four = *(const int4*)from;
    to[0] = four.x, to[1] = four.y, to[2] = four.z, to[3] = four.w;
  } else {
    for (int j = 0; j < 4; j++) to[j] = bytes4(from + 4 * j);
  }
}
// Words that begin `odd` bytes, 0 or 2, behind a multiple of four. If there is nothing before them, `whole` is false.
DEVICE void odd_words(const uchar* from, uint odd, bool whole, int count, int* to) {
  const uint* words = (const uint*)from;
  uint word = whole ? words[0] : (uint)*(const ushort*)(from + 2) << 16;
  for (int j = 0; j < count; j++) {
    const uint next = j + 1 < count || odd ? words[j + 1] : 0u;
    to[j] = (int)BYTES_CHOSEN(word, next, odd ? 0x5432u : 0x3210u);
    word = next;
  }
}
// Bits up to the lowest of a byte, or down to it, for all bytes that stay.
#define MOVED(word, up) ((up) < 0 ? (uint)(word) >> -(up) : (uint)(word) << (up))
#endif

#if defined(w_is_q4_K) || defined(w_is_q5_K)
DEVICE void take(const uchar* b, int share, int* q, float* s, float* o) {
  int head[4], codes[4];  // two units, then scales and minima of six bits
  words4(b, head);
  words4(b + w_bytes - 128 + 16 * share, codes);
  for (int j = 0; j < 4; j++) {
    q[j] = LOW(codes[j]);
    q[j + 4] = HIGH(codes[j]);
  }
#ifdef w_is_q5_K
  int fifths[4];  // the fifth bit of each code, for each part of the block another bit of a byte
  words4(b + 16 + 16 * HALF(share), fifths);
  for (int j = 0; j < 4; j++) {
    const int two = fifths[j] >> FIRST_PART(share);
    q[j] |= two << 4 & 0x10101010;
    q[j + 4] |= two << 3 & 0x10101010;
  }
#endif
  // Scales of four parts, and minima: of the first parts six bits of a byte, of the last ones two and four apart.
  const bool late = share >= 4;
  const int scales = late ? LOW(head[3]) | (head[1] >> 2 & 0x30303030) : head[1] & 0x3f3f3f3f;
  const int minima = late ? HIGH(head[3]) | (head[2] >> 2 & 0x30303030) : head[2] & 0x3f3f3f3f;
  const uint chosen = BYTES_CHOSEN(scales, minima, (share & 2) ? 0x7632u : 0x5410u);
  const float2 units = two_halves((uint)head[0]);
  for (int r = 0; r < 2; r++) {
    s[r] = units.x * byte_float(chosen, r);
    o[r] = -units.y * byte_float(chosen, r + 2);
  }
}
#elif defined(PARTS_SHARED)
// Of eight bytes, two for each part, those of the halves that an item takes.
DEVICE uint of_halves(int first, int second, int share) {
  return BYTES_CHOSEN(first, second, HALF(share) ? 0x7531u : 0x6420u);
}
DEVICE void take(const uchar* b, int share, int* q, float* s, float* o) {
  const int late = share >> 1;  // 1 in the last four parts of the block
  const uint odd = (uint)(ulong)b & 2u;
  const uchar* even = b - odd;
  const bool inside = odd == 0u || share > 0;  // no byte before those of the share is before those of the block
#if defined(w_is_q6_K)
  // Codes: four bits, those of odd parts 32 bytes behind those of even ones, and two bits apart; less 32.
  int lows[8], highs[4], factors[2];
  odd_words(even + 64 * late + 16 * HALF(share), odd, inside, 4, lows);
  odd_words(even + 64 * late + 16 * HALF(share) + 32, odd, true, 4, lows + 4);
  odd_words(even + 128 + 16 * share, odd, true, 4, highs);
  for (int i = 0; i < 16; i++) {
    const int low = i < 8 ? LOW(lows[i]) : HIGH(lows[i - 8]);
    q[i] = low | (int)(MOVED(highs[i % 4], 4 - i / 4 * 2) & 0x30303030u);
  }
  odd_words(even + 192 + 8 * late, odd, true, 2, factors);
  const uint scales = of_halves(factors[0], factors[1], share);
  const float d = load_f16(b + 208);
  for (int r = 0; r < 4; r++) {
    s[r] = d * (float)SIGNED_BYTE(scales >> 8 * r);
    o[r] = -32.0f * s[r];
  }
#else
  int codes[4];
#if defined(w_is_q2_K)
  for (int j = 0; j < 4; j++) codes[j] = bytes4(b + 16 + 16 * share + 4 * j);
#elif defined(w_is_q3_K)
  odd_words(even + 32 + 16 * share, odd, true, 4, codes);
#else
  odd_words(even + 16 * share, odd, inside, 4, codes);
#endif
  for (int i = 0; i < 16; i++) q[i] = codes[i % 4] >> i / 4 * 2 & 0x03030303;
#if defined(w_is_q2_K)
  const float d = load_f16(b + 80), least = load_f16(b + 82);
  const uint both = of_halves(bytes4(b + 8 * late), bytes4(b + 8 * late + 4), share);
  for (int r = 0; r < 4; r++) {
    s[r] = d * byte_float(LOW(both), r);
    o[r] = -least * byte_float(HIGH(both), r);
  }
#elif defined(w_is_q3_K)
  // The third bit of each code, for each part of the block another bit of a byte; less 4.
  int thirds[4], packed[3];
  odd_words(even + 16 * HALF(share), odd, odd == 0u || HALF(share), 4, thirds);
  for (int i = 0; i < 16; i++) q[i] |= (int)(MOVED(thirds[i % 4] >> 4 * late, 2 - i / 4) & 0x04040404u);
  // Scales of six bits: four, and two apart, less 32.
  odd_words(even + 96, odd, true, 3, packed);
  const uint low = of_halves(packed[0], packed[1], share) >> 4 * late & 0x0f0f0f0fu;
  const int two = packed[2] >> 4 * late;
  const uint scales = low | (of_halves(two, two >> 2, share) & 0x03030303u) << 4;
  const float d = load_f16(b + 108);
  for (int r = 0; r < 4; r++) {
    s[r] = d * (byte_float(scales, r) - 32.0f);
    o[r] = -4.0f * s[r];
  }
#else
  const float d = load_f16(b + 64);
  for (int r = 0; r < 4; r++) {
    s[r] = d;
    o[r] = -d;
  }
#endif
#endif
}
#elif defined(w_is_mxfp4)
// A block of 17 bytes as five words, of which it begins at byte `at` of the first. Only bytes of the block are loaded.
DEVICE void words_of_block(const uchar* b, uint at, uint* words) {
  const uint* whole = (const uint*)(b - at);
  const bool odd = (at & 1u) != 0, middle = at == 1u || at == 2u;
  words[0] = words[4] = 0u;
  if (at == 0u) words[0] = whole[0];
  if (odd) words[0] = (uint)b[0] << 8 * at;
  if (middle) words[0] |= (uint)*(const ushort*)(b + 2 - at) << 16;
  UNROLLED for (int j = 1; j < 4; j++) words[j] = whole[j];
  if (at == 3u) words[4] = whole[4];
  if (!odd) words[4] = (uint)b[16] << 8 * at;
  if (middle) words[4] |= *(const ushort*)(b + 16 - at);
}
DEVICE void take(const uchar* b, int share, int* q, float* s, float* o) {
  const uint at = (uint)(ulong)b & 3u;
  uint words[5];
  words_of_block(b, at, words);
  s[0] = s[1] = half_scale(words[0] >> 8 * at & 255u);
  const int t0 = FOUR(VALUES, 0), t1 = FOUR(VALUES, 4), t2 = FOUR(VALUES, 8), t3 = FOUR(VALUES, 12);
  UNROLLED for (int j = 0; j < 4; j++)
    PLACE_BOTH(BYTES_CHOSEN(words[j], words[j + 1], 0x4321u + 0x1111u * at), q + j, q + j + 4);
}
#else
DEVICE void take(const uchar* b, int share, int* q, float* s, float* o) {
  unpack(b, share, q, s, o);
}
#endif
