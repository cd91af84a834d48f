// Attention of many rows by tensor cores. A warp has 16 rows, whose scores and powers stay in its
// registers; SIDES warps have the same rows, and each a part of the values.

//: mma_attend
// slope * mask, never less than LOWEST where the mask is finite: a row whose mask is the lowest number
// everywhere has the mean of all values.
DEVICE float added(float slope, float mask) {
  const float value = slope * mask;
  return value < LOWEST && mask >= LOWEST ? LOWEST : value;
}

#define SIDES (64 / ROWS)
#define WK UP_TO_16(DK)
#define WV UP_TO_16(DV)
// Matrices of 16 values that a warp has.
#define MINE ((WV / 16 + SIDES - 1) / SIDES)
#define LOG2_E 1.44269504f
#define SCOREWISE(n) UNROLLED for (int n = 0; n < AT_ONCE / 8; n++)
#define VALUEWISE(c) UNROLLED for (int c = 0; c < MINE; c++) if (SIDES == 1 || side * MINE + c < WV / 16)

// Fills `kept` with AT_ONCE positions from `from` on: quads as they are or made of single elements, zeros from `stop`
// and `size` on. Reads kv_head and kv_batch; COPY_QUAD needs COPIES before and COPIED after it.
#define KEEP(name, ELEMENT, kept, from, size, quads) \
  for (uint i = ITEM_X; i < AT_ONCE * (UP_TO_16(size) / 8); i += 128) { \
    const uint at = from + i / (UP_TO_16(size) / 8), e = i % (UP_TO_16(size) / 8) * 8; \
    uint4* to = &kept[i / (UP_TO_16(size) / 8)][e / 8]; \
    if (at >= stop) { \
      *to = make_uint4(0, 0, 0, 0); \
      continue; \
    } \
    const uchar* row = ROW(name, (int)at, kv_head, kv_batch); \
    if (quads && e + 8 <= size) COPY_QUAD(to, row + 2 * e); \
    else *to = EIGHT_OF(ELEMENT, row, e, size); \
  }

KERNEL_HEAD {
  __shared__ uint4 ks[AT_ONCE][PITCH(WK)];
  __shared__ uint4 vs[AT_ONCE][PITCH(WV)];
  __shared__ float units[ROWS];
#if ROWS > AT_ONCE
  __shared__ uint4 qs[ROWS][PITCH(WK)];
#define QUERIES(e) four_matrices(a, ROW_OF_A(qs, own, (e) / 8));
#else
  // Queries pass through the memory of keys into registers.
#define qs ks
#define QUERIES(e) UNROLLED for (int i = 0; i < 4; i++) a[i] = q[(e) / 16][i];
#endif
  COPIES  // declares what COPY_QUAD and COPIED use
  GROUP_WORK  // declares batch, kv_head, kv_batch, group, tile, split, rows, start, stop
  const int warp = ITEM_X / 32, lane = ITEM_X % 32;
  const int side = warp % SIDES, own = warp / SIDES * 16, high = lane / 4, low = lane % 4;
  const int k_quads = HAS_QUADS(k), v_quads = HAS_QUADS(v);
  // Queries are multiplied by a power of two with which they fit a half, whatever they are.
  for (int i = warp; i < ROWS; i += 4) {
    const uchar* from = ROW(q, TOKEN(i), HEAD(i), batch);
#define Q_ELEMENT(row, e) (load_q((row) + (long)(e) * p.q.nb[0]) * fitting)
    // The exponent of the largest one of the row, within those whose power has a normal inverse.
    float most = 0.0f, fitting = 1.0f;
    for (int e = lane; e < DK; e += 32) most = larger(most, fabs(Q_ELEMENT(from, e)));
    const int exponent = FLOAT_BITS(warp_max(most)) >> 23 & 255u, bounded = min(max(exponent, 1), 253);
    fitting = BITS_FLOAT((uint)(254 - bounded) << 23);
    // `units` has the power that takes the multiplication back.
    if (lane == 0) units[i] = BITS_FLOAT((uint)bounded << 23);
    for (int e = 2 * lane; e < WK; e += 64) ((uint*)qs[i])[e / 2] = TWO_OF(Q_ELEMENT, from, e, DK);
  }
  LOCAL_BARRIER;
#if ROWS <= AT_ONCE
  // Queries go to registers before keys take their memory.
  uint q[WK / 16][4];
  UNROLLED for (int e = 0; e < WK; e += 16) four_matrices(q[e / 16], ROW_OF_A(qs, own, e / 8));
#endif
  // The results so far of the two rows of this lane: values, largest scores, sums of powers.
  float y[2 * MINE][4], top[2], total[2], unit[2];
  UNROLLED for (int r = 0; r < 2; r++) {
    top[r] = LOWEST;
    total[r] = 0.0f;
    unit[r] = units[own + high + 8 * r] * p.scale;
  }
  UNROLLED for (int c = 0; c < 2 * MINE; c++)
    UNROLLED for (int i = 0; i < 4; i++) y[c][i] = 0.0f;
#ifdef mask_bytes
  const float slope[2] = {SLOPE(own + high) * LOG2_E, SLOPE(own + high + 8) * LOG2_E};
  const uchar* mask[2] = {MASK_ROW(own + high), MASK_ROW(own + high + 8)};
  // Rows that follow each other with one mask; the last one may be of a token that they do not reach.
  const int alike = p.mask.ne[2] == 1 ? group : 1;
  const auto visible = [&](int from) {
    int seen = 0;
    for (int i = warp * alike; i < ROWS + alike - 1; i += 4 * alike) {
      const uchar* row = MASK_ROW(i < ROWS ? i : ROWS - 1);
      for (int at = from + lane; at < from + AT_ONCE && at < stop; at += 32)
        seen |= load_mask(row + (long)at * mask_bytes) != MINUS_INFINITY;
      if (__any_sync(WHOLE_WARP, seen)) break;
    }
    return seen;
  };
#define VISIBLE(from) ((from) >= stop || visible(from))
#define EXPECT_MASK(at) \
  if (low == 0 && (at) < stop) \
    UNROLLED for (int r = 0; r < 2; r++) EXPECT(mask[r] + (long)(at) * mask_bytes)
#define ADDED_TO(r, at) added(slope[r], load_mask(mask[r] + (long)(at) * mask_bytes))
#else
#define VISIBLE(from) 1
#define EXPECT_MASK(at)
#define ADDED_TO(r, at) 0.0f
#endif
  // Tiles that no row sees are left out. Keys of the first tile are fetched before the loop, those of the
  // next tile while values are multiplied.
  int first = start;
  while (!__syncthreads_or(VISIBLE(first))) first += AT_ONCE;
  if (first < stop) KEEP(k, K_ELEMENT, ks, first, DK, k_quads)
  while (first < stop) {
    // Keys are there; values are fetched while scores are computed.
    COPIED;
    LOCAL_BARRIER;
    KEEP(v, V_ELEMENT, vs, first, DV, v_quads)
    EXPECT_MASK(first + AT_ONCE);
    // Scores: products of queries and keys.
    float scores[AT_ONCE / 8][4];
    SCOREWISE(n) UNROLLED for (int i = 0; i < 4; i++) scores[n][i] = 0.0f;
    UNROLLED for (int e = 0; e < WK; e += 16) {
      uint a[4];
      QUERIES(e)
      UNROLLED for (int n = 0; n < AT_ONCE / 8; n += 2) {
        uint b[4];
        four_matrices(b, ROW_OF_COLUMNS(ks, 8 * n, e / 8));
        multiply(scores[n], a, b);
        multiply(scores[n + 1], a, b + 2);
      }
    }
    // Scores are multiplied by LOG2_E, so that their powers are powers of two.
    SCOREWISE(n) UNROLLED for (int i = 0; i < 4; i++) {
      const int at = first + 8 * n + 2 * low + i % 2, r = i / 2;
      float score = scores[n][i] * unit[r];
#ifdef SOFTCAP
      score = p.softcap * tanh(score);
#endif
      scores[n][i] = at < stop ? score * LOG2_E + ADDED_TO(r, at) : MINUS_INFINITY;
    }
    // The running maximum and sum; results shrink where the maximum has grown.
    UNROLLED for (int r = 0; r < 2; r++) {
      // A maximum without NaN will do: the sum has it.
      float most = top[r], sum = 0.0f;
      SCOREWISE(n) most = fmax(most, fmax(scores[n][2 * r], scores[n][2 * r + 1]));
      most = fmax(most, __shfl_xor_sync(WHOLE_WARP, most, 1));
      most = fmax(most, __shfl_xor_sync(WHOLE_WARP, most, 2));
      const float shrink = exp2(top[r] - most);
      top[r] = most;
      SCOREWISE(n) UNROLLED for (int i = 2 * r; i < 2 * r + 2; i++) {
        scores[n][i] = exp2(scores[n][i] - most);
        sum += scores[n][i];
      }
      total[r] = total[r] * shrink + sum;
      UNROLLED for (int c = 0; c < 2 * MINE; c++)
        UNROLLED for (int i = 2 * r; i < 2 * r + 2; i++) y[c][i] *= shrink;
    }
    // Values are there; the next keys are fetched.
    first += AT_ONCE;
    COPIED;
    while (!__syncthreads_or(VISIBLE(first))) first += AT_ONCE;
    if (first < stop) KEEP(k, K_ELEMENT, ks, first, DK, k_quads)
    // Powers times values.
    UNROLLED for (int k = 0; k < AT_ONCE / 16; k++) {
      uint a[4];
      UNROLLED for (int i = 0; i < 4; i++)
        a[i] = pair(scores[2 * k + i / 2][i % 2 * 2], scores[2 * k + i / 2][i % 2 * 2 + 1]);
      VALUEWISE(c) {
        uint b[4];
        four_transposed(b, ROW_OF_B(vs, 16 * k, 2 * (side * MINE + c)));
        multiply(y[2 * c], a, b);
        multiply(y[2 * c + 1], a, b + 2);
      }
    }
  }
  UNROLLED for (int r = 0; r < 2; r++) {
    // The maximum without LOG2_E, as `attend_join` expects it.
    const float most = top[r] / LOG2_E;
    float sum = total[r];
    sum += __shfl_xor_sync(WHOLE_WARP, sum, 1);
    sum += __shfl_xor_sync(WHOLE_WARP, sum, 2);
    END_OF_ROW(own + high + 8 * r, most, sum)  // declares to, factor, stored
    if (!stored) continue;
    if (p.splits > 1 && side == 0 && low == 0) {
      to[-2] = most;
      to[-1] = sum;
    }
    VALUEWISE(c) UNROLLED for (int i = 0; i < 4; i++) {
      const int d = 16 * (side * MINE + c) + i / 2 * 8 + 2 * low + i % 2;
      if (d < DV) to[d] = y[2 * c + i / 2][2 * r + i % 2] * factor;
    }
  }
}
