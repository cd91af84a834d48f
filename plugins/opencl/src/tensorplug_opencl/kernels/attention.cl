// Attention on processors, for heads of DK and DV elements, any numbers: 80 is five vectors of 16, and a rest is filled
// up with zeros (PART). families/attention.py of tensorplug-simt sets DK and DV; K_AT, V_AT, GROUP_WORK, END_OF_ROW and
// attend_join, which joins long texts' parts, are in its attention.k, slope_of in its slope.k.

//: attend_row
// One item takes ROWS rows that share keys, and 16 positions at a time, so each key is loaded once.

#define KEYS ((DK + 15) / 16)
#define VALUES ((DV + 15) / 16)
// Sums stay in registers only where the loops over them are unrolled; VALUES times ROWS vectors of
// results are too many for that.
#define ROWWISE(r) _Pragma("unroll") for (int r = 0; r < ROWS; r++)
#define KEYWISE(c) _Pragma("unroll") for (int c = 0; c < KEYS; c++)
#define VALUEWISE(c) for (int c = 0; c < VALUES; c++)

// Elements 16 c to 16 c + 15 of a row, zeros beyond its end.
#define PART(role, ROLE, size) \
  float16 role##_part(GLOBAL const uchar* row, int c, long step) { \
    float t[16]; \
    for (int i = 0; i < 16; i++) t[i] = (size) % 16 == 0 || 16 * c + i < (size) ? ROLE(row, 16 * c + i, step) : 0.0f; \
    return vload16(0, t); \
  }
#define FLOATS16(row, c) vload16((c), (GLOBAL const float*)(row))
#define HALVES16(row, c) load_halves16((row) + 32 * (c))
#define SHORTS16(row, c) as_float16(convert_uint16(vload16((c), (GLOBAL const ushort*)(row))) << 16)

// The types of cached keys and values: 32 elements with a scale before them.
#define BYTES16(row, c) bytes_part((row) + (c) / 2 * 34, (c) % 2)
#define NIBBLES16(row, c) nibbles_part((row) + (c) / 2 * 18, (c) % 2)
float16 bytes_part(GLOBAL const uchar* block, int upper) {
  const char16 codes = vload16(upper, (GLOBAL const char*)(block + 2));
  return load_f16(block) * convert_float16(codes);
}
float16 nibbles_part(GLOBAL const uchar* block, int upper) {
  const uchar16 both = vload16(0, block + 2);
  return load_f16(block) * (convert_float16(upper ? both >> (uchar16)4 : both & (uchar16)15) - 8.0f);
}

#if defined(K_PACKED) && DK % 16 == 0 && defined(k_is_f32)
#define K16(row, c) FLOATS16(row, c)
#elif defined(K_PACKED) && DK % 16 == 0 && defined(k_is_f16)
#define K16(row, c) HALVES16(row, c)
#elif defined(K_PACKED) && DK % 16 == 0 && defined(k_is_bf16)
#define K16(row, c) SHORTS16(row, c)
#elif defined(k_is_q8_0)
#define K16(row, c) BYTES16(row, c)
#elif defined(k_is_q4_0)
#define K16(row, c) NIBBLES16(row, c)
#else
PART(k, K_AT, DK)
#define K16(row, c) k_part(row, c, p.k.nb[0])
#endif
#if defined(V_PACKED) && DV % 16 == 0 && defined(v_is_f32)
#define V16(row, c) FLOATS16(row, c)
#elif defined(V_PACKED) && DV % 16 == 0 && defined(v_is_f16)
#define V16(row, c) HALVES16(row, c)
#elif defined(V_PACKED) && DV % 16 == 0 && defined(v_is_bf16)
#define V16(row, c) SHORTS16(row, c)
#elif defined(v_is_q8_0)
#define V16(row, c) BYTES16(row, c)
#elif defined(v_is_q4_0)
#define V16(row, c) NIBBLES16(row, c)
#else
PART(v, V_AT, DV)
#define V16(row, c) v_part(row, c, p.v.nb[0])
#endif

// 16 elements of a mask, which is of F32 or F16.
#if defined(mask_is_f32)
#define MASK16(row) FLOATS16(row, 0)
#else
#define MASK16(row) HALVES16(row, 0)
#endif

// The rows of a head lie apart, where processors do not look ahead.
#define FETCH(at, bytes) for (int l = 0; l < (bytes); l += 64) { PREFETCH((at) + l); }
#define FETCH_AHEAD \
  for (int i = 16; i < min(32, stop - first); i++) { \
    FETCH(ROW(k, first + i, kv_head, kv_batch), DK * k_bytes / k_block) \
    FETCH(ROW(v, first + i - 16, kv_head, kv_batch), DV * v_bytes / v_block) \
  }

KERNEL_HEAD {
  GROUP_WORK  // declares batch, kv_head, kv_batch, group, tile, split, rows, start, stop
  int token[ROWS], head[ROWS];
  float16 q[ROWS][KEYS], y[ROWS][VALUES], powers[ROWS];
  float top[ROWS], total[ROWS], slope[ROWS];
  ROWWISE(r) {
    token[r] = TOKEN(r);
    head[r] = HEAD(r);
    top[r] = LOWEST;
    total[r] = 0.0f;
    slope[r] = slope_of(head[r], p.max_bias, p.even);
    GLOBAL const uchar* from = ROW(q, token[r], head[r], batch);
    KEYWISE(c) {  // queries times the scale, zeros beyond DK
      float t[16];
      for (int i = 0; i < 16; i++)
        t[i] = 16 * c + i < DK ? p.scale * load_q(from + (16 * c + i) * p.q.nb[0]) : 0.0f;
      q[r][c] = vload16(0, t);
    }
    VALUEWISE(c) y[r][c] = 0.0f;
  }
  for (int first = start; first < stop; first += 16) {
    // The masks of 16 positions. Positions that no row sees are left out; a mask of NaN counts as seen.
    const int count = min(16, stop - first);
    float16 added[ROWS];
#ifdef mask_bytes
    int16 seen = 0;
    ROWWISE(r) {
      GLOBAL const uchar* mask = ROW(mask, token[r], head[r] % p.mask.ne[2], batch % p.mask.ne[3]);
      if (count == 16 && p.mask.nb[0] == mask_bytes) {
        added[r] = MASK16(mask + (long)first * mask_bytes);
      } else {
        float t[16];
        for (int i = 0; i < 16; i++)
          t[i] = i < count ? load_mask(mask + (first + i) * p.mask.nb[0]) : -INFINITY;
        added[r] = vload16(0, t);
      }
      seen |= added[r] != -INFINITY;
      added[r] *= slope[r];
    }
    if (!any(seen)) continue;
#else
    float t[16];
    for (int i = 0; i < 16; i++) t[i] = i < count ? 0.0f : -INFINITY;
    ROWWISE(r) added[r] = vload16(0, t);
#endif
    // Scores: products of queries and keys.
    float scores[ROWS][16];
    for (int i = 0; i < 16; i++)
      ROWWISE(r) scores[r][i] = 0.0f;
    FETCH_AHEAD
    for (int i = 0; i < count; i++) {
      GLOBAL const uchar* row = ROW(k, first + i, kv_head, kv_batch);
      float16 sums[ROWS];
      ROWWISE(r) sums[r] = 0.0f;
      KEYWISE(c) {
        const float16 part = K16(row, c);
        ROWWISE(r) sums[r] += q[r][c] * part;
      }
      ROWWISE(r) scores[r][i] = sum_of_lanes(sums[r]);
    }
    // The running maximum and sum; powers in the place of scores.
    ROWWISE(r) {
      float16 score = vload16(0, scores[r]);
      if (p.softcap != 0.0f) score = p.softcap * tanh(score);
      score += added[r];
      const float larger = fmax(top[r], largest_of_lanes(score));
      const float shrink = exp(top[r] - larger);
      powers[r] = exp(score - larger);
      total[r] = total[r] * shrink + sum_of_lanes(powers[r]);
      if (larger > top[r])
        VALUEWISE(c) y[r][c] *= shrink;
      top[r] = larger;
      vstore16(powers[r], 0, scores[r]);
    }
    // Powers times values, 16 values of all positions at a time.
    GLOBAL const uchar* values = ROW(v, first, kv_head, kv_batch);
    VALUEWISE(c) {
      float16 sums[ROWS];
      ROWWISE(r) sums[r] = y[r][c];
      for (int i = 0; i < count; i++) {
        const float16 part = V16(values + i * p.v.nb[1], c);
        ROWWISE(r) sums[r] += scores[r][i] * part;
      }
      ROWWISE(r) y[r][c] = sums[r];
    }
  }
  // Divided by the sum, or left for `attend_join` where positions are split.
  ROWWISE(r) {
    END_OF_ROW(r, top[r], total[r])  // declares to, factor, stored
    if (!stored) return;
    if (p.splits > 1) {
      to[-2] = top[r];
      to[-1] = total[r];
    }
    VALUEWISE(c) {
      const float16 value = y[r][c] * factor;
      if (DV % 16 == 0 || 16 * c + 16 <= DV) {
        vstore16(value, c, to);
      } else {
        float t[16];
        vstore16(value, 0, t);
        for (int i = 16 * c; i < DV; i++) to[i] = t[i - 16 * c];
      }
    }
  }
}
