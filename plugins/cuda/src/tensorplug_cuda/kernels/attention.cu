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
