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
// WARPS warps take ROWS rows and a share of the positions, TILE in a turn. LANES items, one side of a warp, have AHEAD
// of these together: eight elements of their keys and values each. The softmax and the end of row r are those of warp
// r. A token has many brief launches of this kernel, each of which fetches its code again: the code is kept short.
#define WARPS 8
#define SIDES (32 / LANES)
#define WIDTH (8 * LANES)
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
// Positions of a side in a turn: a warp at the softmax should have 32, where registers hold what the others have.
#if k_block == 256 || v_block == 256  // decoding needs registers too
#define AHEAD 1
#elif defined(K_PAIR) && defined(V_PAIR) && LANES == 32
#define AHEAD 4
#else
#define AHEAD 2
#endif
#define TILE (WARPS * SIDES * AHEAD)

// Scores that a side has before its items add them up, those that an item has afterwards, and items that have the same.
#define SUMS (AHEAD * ROWS)
#define LEFT (SUMS > LANES ? SUMS / LANES : 1)
#define ALIKE (LANES > SUMS ? LANES / SUMS : 1)

// Positions of a turn that a lane has at the softmax. Those beyond the share are masked.
#define EACH ((TILE + 31) / 32)
#define EACHWISE(j) UNROLLED for (int j = 0; j < EACH; j++)
#ifdef mask_bytes
#define MASKED(at) (slope * load_mask(mask + (long)(at) * p.mask.nb[0]))
#else
#define MASKED(at) 0.0f
#endif
#define ADDED_FROM(to, first) EACHWISE(j) { \
    const int in = lane + 32 * j, at = (first) + in; \
    to[j] = warp < ROWS && in < TILE && at < stop ? MASKED(at) : MINUS_INFINITY; \
  }
DEVICE bool is_seen(const float* added) {
  bool found = false;
  EACHWISE(j) found |= added[j] != MINUS_INFINITY;
  return found;
}

// Eight elements of a key or a value, as an item holds them until they are used.
struct eight { float at[8]; };
DEVICE eight floats_of(eight held) { return held; }
#define FLOATS_OF(PAIR, held) { \
    const float2 a = PAIR(held.x), b = PAIR(held.y), c = PAIR(held.z), d = PAIR(held.w); \
    return {a.x, a.y, b.x, b.y, c.x, c.y, d.x, d.y}; \
  }
// b where `second` is 1, a where it is 0. Compilers make branches of the usual form, with much code around them.
DEVICE float chosen(float a, float b, int second) {
  return BITS_FLOAT((FLOAT_BITS(a) & ~(0u - second)) | (FLOAT_BITS(b) & (0u - second)));
}
#define EIGHT_OF(to, row, size, ELEMENT) EIGHTWISE(i) to.at[i] = e + i < (size) ? ELEMENT(row, e + i) : 0.0f;
// Four words from `e` on of a row of `size` elements of 16 bits: in layouts that are rare, by a loop, which is short.
DEVICE uint4 gathered(const uchar* row, long step, int e, int size) {
  ulong low = 0, high = 0;
  ROLLED for (int i = 7; i >= 0; i--) {
    high = high << 16 | low >> 48;
    low = low << 16 | (e + i < size ? *(const ushort*)(row + (e + i) * step) : 0);
  }
  return make_uint4((uint)low, (uint)(low >> 32), (uint)high, (uint)(high >> 32));
}
#ifdef K_PAIR
typedef uint4 part_of_key;
DEVICE eight key_of(uint4 held) FLOATS_OF(K_PAIR, held)
#define K_QUADS (DK % 8 == 0 && HAS_QUADS(k))
#define KEY_AT_ONCE(to, row) if (e < DK) to = *(const uint4*)((row) + 2 * e);
#define KEY_BY_ELEMENTS(to, row) to = gathered(row, p.k.nb[0], e, DK);
#else
typedef eight part_of_key;
#define key_of floats_of
#define K_QUADS true
#define KEY_AT_ONCE(to, row) EIGHT_OF(to, row, DK, K_ELEMENT)
#define KEY_BY_ELEMENTS(to, row) {}
#endif
#ifdef V_PAIR
typedef uint4 part_of_value;
DEVICE eight value_of(uint4 held) FLOATS_OF(V_PAIR, held)
#define V_QUADS (DV % 8 == 0 && HAS_QUADS(v))
#define VALUE_AT_ONCE(to, row) if (e < DV) to = *(const uint4*)((row) + 2 * e);
#define VALUE_BY_ELEMENTS(to, row) to = gathered(row, p.v.nb[0], e, DV);
#else
typedef eight part_of_value;
#define value_of floats_of
#define V_QUADS true
#define VALUE_AT_ONCE(to, row) EIGHT_OF(to, row, DV, V_ELEMENT)
#define VALUE_BY_ELEMENTS(to, row) {}
#endif
// Keys or values of this turn that are in the share.
#define HOLD(held, row, step, PART) { AHEADWISE(u) if (at + u < stop) PART(held[u], row + u * (step)) }

KERNEL_HEAD {
  __shared__ float q[ROWS][WIDTH];
  __shared__ float powers[TILE][ROWS];  // scores before
  __shared__ float shrinks[ROWS];
  __shared__ float ends[WARPS * SIDES][ROWS][WIDTH];
  GROUP_WORK  // declares batch, kv_head, kv_batch, group, tile, split, rows, start, stop
  const int warp = ITEM_X / 32, lane = ITEM_X % 32, e = lane % LANES * 8;
  const int side = warp * SIDES + lane / LANES;
  const bool k_quads = K_QUADS, v_quads = V_QUADS;
  // The row of this warp, and what the mask adds to its scores in the next turn.
  const int number = NUMBER(warp), token = quotient(number, group), head = kv_head * group + number - token * group;
  float added[EACH] = {}, top = LOWEST, total = 0.0f;
#ifdef mask_bytes
  const float slope = slope_of(head, p.max_bias, p.even);
  const uchar* mask = ROW(mask, token, remainder_of(head, p.mask.ne[2]), remainder_of(batch, p.mask.ne[3]));
#endif
  float y[ROWS][8];
  ROWWISE(r) EIGHTWISE(i) y[r][i] = 0.0f;
  for (int first = start; first < stop; first += TILE) {
    // A turn that no row sees is left out. Keys and values of the first one do not wait for its mask.
    float now[EACH];
    EACHWISE(j) now[j] = added[j];
    bool taken = first == start || __syncthreads_or(is_seen(now));
    // All keys and values of the turn are under way before the first is used.
    part_of_key keys[AHEAD] = {};
    part_of_value values[AHEAD] = {};
    if (taken) {
      const int at = first + side * AHEAD;
      const uchar* key = ROW(k, at, kv_head, kv_batch);
      const uchar* value = ROW(v, at, kv_head, kv_batch);
      if (k_quads) HOLD(keys, key, p.k.nb[1], KEY_AT_ONCE) else HOLD(keys, key, p.k.nb[1], KEY_BY_ELEMENTS)
      if (v_quads) HOLD(values, value, p.v.nb[1], VALUE_AT_ONCE) else HOLD(values, value, p.v.nb[1], VALUE_BY_ELEMENTS)
    }
    ADDED_FROM(added, first + TILE)
    if (first == start) {
      ADDED_FROM(now, first)
      if (warp < ROWS) {
        const uchar* query = AT(q, lane, token, head, batch);
        UNROLLED for (int d = lane; d < WIDTH; d += 32, query += 32 * p.q.nb[0])
          q[warp][d] = d < DK ? p.scale * load_q(query) : 0.0f;
      }
      taken = __syncthreads_or(is_seen(now));  // the queries are there, too
    }
    if (!taken) continue;
    // Scores: products of queries and keys. Items add up for each other: a step leaves each of them half of the sums.
    float sums[SUMS];
    AHEADWISE(u) {
      const eight floats = key_of(keys[u]);
      ROWWISE(r) {
        float sum = 0.0f;
        EIGHTWISE(i) sum += q[r][e + i] * floats.at[i];
        sums[u * ROWS + r] = sum;
      }
    }
    int mine = 0, count = SUMS;
    UNROLLED for (int other = LANES / 2; other > 0; other >>= 1) {
      if (count == 1) {
        sums[0] += WARP_OTHER(sums[0], other);
        continue;
      }
      const int upper = lane / other & 1;
      count /= 2;
      mine += upper * count;
      UNROLLED for (int i = 0; i < count; i++) {
        const float given = chosen(sums[i + count], sums[i], upper);
        sums[i] = chosen(sums[i], sums[i + count], upper) + WARP_OTHER(given, other);
      }
    }
    if (lane % ALIKE == 0) UNROLLED for (int i = 0; i < LEFT; i++) (&powers[side * AHEAD][0])[mine + i] = sums[i];
    LOCAL_BARRIER;
    // The running maximum and sum of the row of this warp, and powers in the place of scores.
    if (warp < ROWS) {
      float larger = top;
      EACHWISE(j) {
        if (lane + 32 * j < TILE) now[j] += CAPPED(powers[lane + 32 * j][warp]);
        larger = fmax(larger, now[j]);  // a maximum without NaN will do: the sum has it
      }
      UNROLLED for (int other = 16; other > 0; other >>= 1) larger = fmax(larger, WARP_OTHER(larger, other));
      const float shrink = exp(top - larger);
      top = larger;
      total *= shrink;
      EACHWISE(j) {
        const float power = exp(now[j] - larger);
        total += power;
        if (lane + 32 * j < TILE) powers[lane + 32 * j][warp] = power;
      }
      if (lane == 0) shrinks[warp] = shrink;
    }
    LOCAL_BARRIER;
    // Powers times values; what there was shrinks where the maximum has grown.
    if (first > start) ROWWISE(r) EIGHTWISE(i) y[r][i] *= shrinks[r];
    AHEADWISE(u) {
      const eight floats = value_of(values[u]);
      ROWWISE(r) {
        const float power = powers[side * AHEAD + u][r];
        EIGHTWISE(i) y[r][i] += power * floats.at[i];
      }
    }
  }
  // The sides come together.
  ROWWISE(r) EIGHTWISE(i) ends[side][r][e + i] = y[r][i];
  LOCAL_BARRIER;
  if (warp >= ROWS) return;
  total = warp_sum(total);
  END_OF(warp, token, head, top, total)  // declares to, factor, stored
  if (!stored) return;
  if (p.splits > 1 && lane == 0) {
    to[-2] = top;
    to[-1] = total;
  }
  ROLLED for (int d = lane; d < DV; d += 32) {
    float sum = 0.0f;
    UNROLLED for (int i = 0; i < WARPS * SIDES; i++) sum += ends[i][warp][d];
    to[d] = sum * factor;
  }
}

//: attend_join
// The parts of a row become its result. Each warp has some parts, each lane every 32nd value; then warps come together.
#define WARPS 8
#define VALUES ((DV + 31) / 32)
#define VALUEWISE(c) UNROLLED for (int c = 0; c < VALUES; c++)
#define WARPWISE(i) UNROLLED for (int i = 0; i < WARPS; i++)

KERNEL_HEAD {
  __shared__ float tops[WARPS], totals[WARPS], ends[WARPS][32 * VALUES];
  const int row = (GROUP_Z * p.y.ne[2] + GROUP_Y) * p.y.ne[1] + GROUP_X, warp = ITEM_X / 32, lane = ITEM_X % 32;
  float top = LOWEST, total = 0.0f, y[VALUES];
  VALUEWISE(c) y[c] = 0.0f;
  // One part after the other, as there are few mostly; loads of a part do not wait for each other.
  ROLLED for (int i = warp; i < p.part.ne[1]; i += WARPS) {
    const float* part = (const float*)ROW(part, i, row, 0);
    const float theirs = part[0], sum = part[1];
    float values[VALUES];
    VALUEWISE(c) values[c] = lane + 32 * c < DV ? part[2 + lane + 32 * c] : 0.0f;
    const float larger = fmax(top, theirs), shrink = exp(top - larger), power = exp(theirs - larger);
    top = larger;
    total = total * shrink + sum * power;
    VALUEWISE(c) y[c] = y[c] * shrink + values[c] * power;
  }
  VALUEWISE(c) ends[warp][lane + 32 * c] = y[c];
  if (lane == 0) {
    tops[warp] = top;
    totals[warp] = total;
  }
#ifdef sinks_bytes
  const float sink = load_sinks(AT(sinks, GROUP_X, 0, 0, 0));
#else
  const float sink = LOWEST;
#endif
  LOCAL_BARRIER;
  float largest = sink, factors[WARPS];
  WARPWISE(i) largest = fmax(largest, tops[i]);
#ifdef sinks_bytes
  float all = exp(sink - largest);
#else
  float all = 0.0f;
#endif
  WARPWISE(i) {
    factors[i] = exp(tops[i] - largest);
    all += totals[i] * factors[i];
  }
  const float factor = all == 0.0f ? 0.0f : 1.0f / all;
  float* to = (float*)ROW(y, GROUP_X, GROUP_Y, GROUP_Z);
  ROLLED for (int d = ITEM_X; d < DV; d += 32 * WARPS) {
    float sum = 0.0f;
    WARPWISE(i) sum += ends[i][d] * factors[i];
    to[d] = sum * factor;
  }
}
