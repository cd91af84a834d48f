// Panels of codes as bytes, and their products with rows of bytes.
//
// Rows of `x` are records of 16 elements, as `quantise` makes them. A word has four bytes of one row
// of `w`, and a vector of words those of 16 rows.

#define DEPTH 256
typedef GLOBAL const uint* elements;
#define RECORD_WORDS 6
#define X_FROM(m, k0) (elements)X_ROW(m) + (k0) / 16 * RECORD_WORDS

// DEPTH elements of 32 rows of `w`: their codes, and for each SPAN what products of codes and bytes
// are multiplied with, and sums of bytes.
typedef struct {
  uint16 codes[DEPTH / 4 * 2];
  float16 scales[DEPTH / SPAN * 2], minima[DEPTH / SPAN * 2];
} panel;

// Bytes to the next DEPTH elements. Processors do not look ahead in rows that are read in pieces.
#define NEXT_DEPTH (DEPTH / (128 * UNITS) * BLOCK_BYTES)

// Where word `i` of a unit's low codes lies among words in the order of elements; the high one
// is GROUP / 4 after it.
#define WORD(i) ((i) / (GROUP / 4) * (GROUP / 2) + (i) % (GROUP / 4))

// Elements k0 to k0 + depth of 16 rows, those of `half_`. Rows beyond the last are copies of it,
// whose results are not stored.
DEVICE void fill(LOCAL panel* to, int half_, bytes w, long step, int rows, int k0, int depth) {
  head h[16];
  float16 factors[16];  // scales, and then minima
  EVERY(r, 16) factors[r] = 0.0f;
  for (int unit = 0; 128 * unit < depth; unit++) {
    float16 lows[16], highs[16];
    bytes b = w + (long)((k0 + 128 * unit) / (128 * UNITS)) * BLOCK_BYTES;
    const int count = min((depth - 128 * unit) / 32, 4);
    // A unit of each row: its scales once a block, its codes as bytes, low and high halves apart.
    for (int r = 0; r < 16; r++) {
      bytes row = b + min(r, rows - 1) * step;
      if (unit % UNITS == 0) {
        FETCH_BLOCK(row + NEXT_DEPTH)
        h[r] = begin(BLOCKS(row, count));
        FACTORS(h[r], unit, (float*)&factors[r])
      }
      uint16 low, high;
      words(BLOCKS(row, count), unit % UNITS, &h[r], &low, &high);
      lows[r] = as_float16(LOW_BYTES);
      highs[r] = as_float16(HIGH_BYTES);
    }
    // Vectors of a row become vectors of 16 rows, in the order of elements.
    turn(lows);
    turn(highs);
    EVERY(i, 16) {
      to->codes[2 * (32 * unit + WORD(i)) + half_] = as_uint16(lows[i]);
      to->codes[2 * (32 * unit + WORD(i) + GROUP / 4) + half_] = as_uint16(highs[i]);
    }
  }
  // So do the scales; the minima are for sums of x.
  turn(factors);
  EVERY(i, DEPTH / SPAN) {
    to->scales[2 * i + half_] = factors[i];
#ifdef MINIMA
    to->minima[2 * i + half_] = SUMS * factors[DEPTH / SPAN + i];
#else
    to->minima[2 * i + half_] = SUMS * factors[i];
#endif
  }
}

// The products of 16 codes of each row and 16 bytes. Sums of 16 bits hold those of four words, if
// codes are below 32.
#define PAIRS(i, half_) pairs(codes[2 * (i) + half_], (uint16)(record[i]))
#if defined(MASK) && MASK > 31
#define PRODUCTS(half_) \
  (join(PAIRS(0, half_) + PAIRS(1, half_), ONES) + join(PAIRS(2, half_) + PAIRS(3, half_), ONES))
#else
#define PRODUCTS(half_) \
  join((PAIRS(0, half_) + PAIRS(1, half_)) + (PAIRS(2, half_) + PAIRS(3, half_)), ONES)
#endif

// Adds elements k to k + 15 of row `x` times those of the panel.
#define STEP 16
#define TAKE(panel, k) \
  LOCAL const uint16* codes = (panel).codes + (k) / 2; \
  const float16 scales0 = (panel).scales[(k) / SPAN * 2], scales1 = (panel).scales[(k) / SPAN * 2 + 1]; \
  const float16 minima0 = (panel).minima[(k) / SPAN * 2], minima1 = (panel).minima[(k) / SPAN * 2 + 1];
#define ADD(k, x, a, b) { \
  elements record = (x) + (k) / 16 * RECORD_WORDS; \
  const float16 scale = as_float(record[4]), sum = as_float(record[5]); \
  a = fma(minima0, sum, fma(scales0, scale * convert_float16(PRODUCTS(0)), a)); \
  b = fma(minima1, sum, fma(scales1, scale * convert_float16(PRODUCTS(1)), b)); \
}
