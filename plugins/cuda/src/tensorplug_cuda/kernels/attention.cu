// Attention on warps, in f32; places and ends of rows are those of the shared text.

//: attend
// WARPS warps take ROWS rows, each warp EACH of them, and a tile of positions, one for each lane. Keys and
// values go through local memory DEPTH elements at a time; a lane has every 32nd value of a result.
#define WARPS 4
#define EACH (ROWS / WARPS)
#define DEPTH 64
#define VALUES ((DV + 31) / 32)
#define ROWWISE(r) _Pragma("unroll") for (int r = 0; r < EACH; r++)
#define VALUEWISE(c) _Pragma("unroll") for (int c = 0; c < VALUES; c++)

// Fills `kept` with DEPTH elements from `d` on of 32 positions from `first` on, zeros from `stop` and `size` on. Reads
// kv_head and kv_batch, too.
#define KEEP(ELEMENT, name, size) \
  LOCAL_BARRIER; \
  for (int i = ITEM_X; i < 32 * DEPTH; i += 32 * WARPS) { \
    const int at = first + i / DEPTH, e = d + i % DEPTH; \
    float value = 0.0f; \
    if (at < stop && e < (size)) value = ELEMENT(ROW(name, at, kv_head, kv_batch), e); \
    kept[i / DEPTH][i % DEPTH] = value; \
  } \
  LOCAL_BARRIER;

KERNEL_HEAD {
  __shared__ float q[ROWS][DK];
  __shared__ float kept[32][DEPTH + 1];
  __shared__ float powers[ROWS][32];
  GROUP_WORK  // declares batch, kv_head, kv_batch, group, tile, split, rows, start, stop
  const int warp = ITEM_X / 32, lane = ITEM_X % 32;
  for (int i = ITEM_X; i < ROWS * DK; i += 32 * WARPS) {  // queries times the scale
    const int r = i / DK, e = i % DK;
    q[r][e] = p.scale * load_q(AT(q, e, TOKEN(r), HEAD(r), batch));
  }
  float y[EACH][VALUES], top[EACH], total[EACH];
  ROWWISE(r) {
    top[r] = LOWEST;
    total[r] = 0.0f;
    VALUEWISE(c) y[r][c] = 0.0f;
  }
  for (int first = start; first < stop; first += 32) {
    // What masks add. Positions that no row sees are left out.
    float scores[EACH], added[EACH];
    int visible = 0;
    ROWWISE(r) {
      scores[r] = 0.0f;
      added[r] = MINUS_INFINITY;
      if (first + lane < stop) {
#ifdef mask_bytes
        const int i = warp * EACH + r;
        added[r] = SLOPE(i) * load_mask(MASK_ROW(i) + (long)(first + lane) * p.mask.nb[0]);
#else
        added[r] = 0.0f;
#endif
      }
      visible |= added[r] != MINUS_INFINITY;
    }
    if (!__syncthreads_or(visible)) continue;
    // Scores: products of queries and keys.
    for (int d = 0; d < DK; d += DEPTH) {
      KEEP(K_ELEMENT, k, DK)
      const int depth = DEPTH < DK - d ? DEPTH : DK - d;
      for (int e = 0; e < depth; e++) {
        const float key = kept[lane][e];
        ROWWISE(r) scores[r] += q[warp * EACH + r][d + e] * key;
      }
    }
    // The running maximum and sum; results shrink where the maximum has grown.
    ROWWISE(r) {
      float score = scores[r];
      if (p.softcap != 0.0f) score = p.softcap * tanh(score);
      score += added[r];
      // A maximum without NaN will do: the sum has it.
      float larger = fmax(top[r], score);
      for (int other = 16; other > 0; other >>= 1)
        larger = fmax(larger, __shfl_xor_sync(WHOLE_WARP, larger, other));
      const float shrink = exp(top[r] - larger), power = exp(score - larger);
      top[r] = larger;
      total[r] = total[r] * shrink + power;
      VALUEWISE(c) y[r][c] *= shrink;
      powers[warp * EACH + r][lane] = power;
    }
    // Powers times values.
    _Pragma("unroll") for (int d = 0; d < DV; d += DEPTH) {
      KEEP(V_ELEMENT, v, DV)
      for (int i = 0; i < 32; i++) {
        ROWWISE(r) {
          const float power = powers[warp * EACH + r][i];
          _Pragma("unroll") for (int c = 0; c < DEPTH / 32; c++)
            if (d / 32 + c < VALUES) y[r][d / 32 + c] += power * kept[i][lane + 32 * c];
        }
      }
    }
  }
  ROWWISE(r) {
    float sum = warp_sum(total[r]);
    END_OF_ROW(warp * EACH + r, top[r], sum)  // declares to, factor, stored
    if (stored) {
      if (p.splits > 1 && lane == 0) {
        to[-2] = top[r];
        to[-1] = sum;
      }
      VALUEWISE(c) if (lane + 32 * c < DV) to[lane + 32 * c] = y[r][c] * factor;
    }
  }
}

//: attend_few
// WARPS warps take ROWS rows and a share of the positions. LANES items, one side of a warp, have a position together: eight
// elements of its key and of its value each. Every side has a largest score, a sum and values of its own until the end.
#define WARPS 4
#define SIDES (32 / LANES)
#define ROWWISE(r) UNROLLED for (int r = 0; r < ROWS; r++)
#define AHEADWISE(u) UNROLLED for (int u = 0; u < AHEAD; u++)
#define EIGHTWISE(i) UNROLLED for (int i = 0; i < 8; i++)

// What makes two floats of a word, where elements have 16 bits.
#if defined(k_is_f16)
#define K_PAIR two_halves
#elif defined(k_is_bf16)
#define K_PAIR two_brains
#endif
#if defined(v_is_f16)
#define V_PAIR two_halves
#elif defined(v_is_bf16)
#define V_PAIR two_brains
#endif
// Positions of a side that are under way at once, as many as registers hold.
#if defined(K_PAIR) && defined(V_PAIR)
#define AHEAD 4
#elif k_block == 256 || v_block == 256  // decoding needs registers too
#define AHEAD 1
#else
#define AHEAD 2
#endif

// Eight elements from `e` on of a row of `size`, zeros beyond the last.
#define EIGHT_ONE_BY_ONE(to, row, size, ELEMENT) EIGHTWISE(i) to[i] = e + i < (size) ? ELEMENT(row, e + i) : 0.0f;
#define EIGHT_AT_ONCE(to, row, size, PAIR) \
  uint4 quad = make_uint4(0, 0, 0, 0); \
  if (e < (size)) quad = *(const uint4*)((row) + 2 * e); \
  const uint words[4] = {quad.x, quad.y, quad.z, quad.w}; \
  UNROLLED for (int i = 0; i < 4; i++) { \
    const float2 both = PAIR(words[i]); \
    to[2 * i] = both.x; \
    to[2 * i + 1] = both.y; \
  }
#ifdef K_PAIR
#define EIGHT_OF_K(to, row) if (k_quads) { EIGHT_AT_ONCE(to, row, DK, K_PAIR) } else { EIGHT_ONE_BY_ONE(to, row, DK, K_ELEMENT) }
#else
#define EIGHT_OF_K(to, row) EIGHT_ONE_BY_ONE(to, row, DK, K_ELEMENT)
#endif
#ifdef V_PAIR
#define EIGHT_OF_V(to, row) if (v_quads) { EIGHT_AT_ONCE(to, row, DV, V_PAIR) } else { EIGHT_ONE_BY_ONE(to, row, DV, V_ELEMENT) }
#else
#define EIGHT_OF_V(to, row) EIGHT_ONE_BY_ONE(to, row, DV, V_ELEMENT)
#endif

KERNEL_HEAD {
  __shared__ float ends[WARPS][ROWS][DV + 2];  // the largest score, the sum and the values of each warp
  GROUP_WORK  // declares batch, kv_head, kv_batch, group, tile, split, rows, start, stop
  const int warp = ITEM_X / 32, side = ITEM_X % 32 / LANES, e = ITEM_X % LANES * 8;
#ifdef K_PAIR
  const int k_quads = DK % 8 == 0 && HAS_QUADS(k);
#endif
#ifdef V_PAIR
  const int v_quads = DV % 8 == 0 && HAS_QUADS(v);
#endif
  float q[ROWS][8], y[ROWS][8], top[ROWS], total[ROWS];
#ifdef mask_bytes
  float slopes[ROWS];
  const uchar* masks[ROWS];
#endif
  ROWWISE(r) {
    EIGHTWISE(i) {
      q[r][i] = e + i < DK ? p.scale * load_q(AT(q, e + i, TOKEN(r), HEAD(r), batch)) : 0.0f;
      y[r][i] = 0.0f;
    }
    top[r] = LOWEST;
    total[r] = 0.0f;
#ifdef mask_bytes
    slopes[r] = SLOPE(r);
    masks[r] = MASK_ROW(r);
#endif
  }
  for (int first = start + warp * SIDES * AHEAD; first < stop; first += WARPS * SIDES * AHEAD) {
    // What masks add. Positions that no row sees are left out.
    float scores[ROWS][AHEAD];
    int visible = 0;
    AHEADWISE(u) ROWWISE(r) {
      const int at = first + u * SIDES + side;
      scores[r][u] = MINUS_INFINITY;
#ifdef mask_bytes
      if (at < stop) scores[r][u] = slopes[r] * load_mask(masks[r] + (long)at * p.mask.nb[0]);
#else
      if (at < stop) scores[r][u] = 0.0f;
#endif
      visible |= scores[r][u] != MINUS_INFINITY;
    }
    if (!__any_sync(WHOLE_WARP, visible)) continue;
    // All keys and values of this turn are under way before the first is used.
    float keys[AHEAD][8], values[AHEAD][8];
    AHEADWISE(u) {
      const int next = first + u * SIDES + side, at = next < stop ? next : stop - 1;
      EIGHT_OF_K(keys[u], ROW(k, at, kv_head, kv_batch))
      EIGHT_OF_V(values[u], ROW(v, at, kv_head, kv_batch))
    }
    // Scores: products of queries and keys.
    AHEADWISE(u) ROWWISE(r) {
      float score = 0.0f;
      EIGHTWISE(i) score += q[r][i] * keys[u][i];
      UNROLLED for (int other = LANES / 2; other > 0; other >>= 1) score += __shfl_xor_sync(WHOLE_WARP, score, other);
      if (p.softcap != 0.0f) score = p.softcap * tanh(score);
      scores[r][u] += score;
    }
    // The running maximum, sum and values; what there was shrinks where the maximum has grown.
    ROWWISE(r) {
      float larger = top[r];
      AHEADWISE(u) larger = fmax(larger, scores[r][u]);  // a maximum without NaN will do: the sum has it
      const float shrink = exp(top[r] - larger);
      top[r] = larger;
      total[r] *= shrink;
      EIGHTWISE(i) y[r][i] *= shrink;
      AHEADWISE(u) {
        const float power = exp(scores[r][u] - larger);
        total[r] += power;
        EIGHTWISE(i) y[r][i] += power * values[u][i];
      }
    }
  }
  // The sides of a warp come together, then the warps.
  ROWWISE(r) {
    UNROLLED for (int other = LANES; other < 32; other <<= 1) {
      const float theirs = __shfl_xor_sync(WHOLE_WARP, top[r], other), larger = fmax(top[r], theirs);
      const float mine = exp(top[r] - larger), factor = exp(theirs - larger);
      top[r] = larger;
      total[r] = total[r] * mine + __shfl_xor_sync(WHOLE_WARP, total[r], other) * factor;
      EIGHTWISE(i) y[r][i] = y[r][i] * mine + __shfl_xor_sync(WHOLE_WARP, y[r][i], other) * factor;
    }
    if (side == 0) {
      EIGHTWISE(i) if (e + i < DV) ends[warp][r][2 + e + i] = y[r][i];
      if (e == 0) {
        ends[warp][r][0] = top[r];
        ends[warp][r][1] = total[r];
      }
    }
  }
  LOCAL_BARRIER;
  for (int at = ITEM_X; at < ROWS * DV; at += 32 * WARPS) {
    const int r = at / DV, d = at % DV;
    float largest = LOWEST, sum = 0.0f, value = 0.0f;
    UNROLLED for (int i = 0; i < WARPS; i++) largest = fmax(largest, ends[i][r][0]);
    UNROLLED for (int i = 0; i < WARPS; i++) {
      const float power = exp(ends[i][r][0] - largest);
      sum += ends[i][r][1] * power;
      value += ends[i][r][2 + d] * power;
    }
    END_OF_ROW(r, largest, sum)  // declares to, factor, stored
    if (!stored) continue;
    if (p.splits > 1 && d == 0) {
      to[-2] = largest;
      to[-1] = sum;
    }
    to[d] = value * factor;
  }
}
