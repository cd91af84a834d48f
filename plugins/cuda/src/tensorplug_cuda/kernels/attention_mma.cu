// Attention of many rows by tensor cores. A warp has 16 rows, whose scores and powers stay in its
// registers; SIDES of the WARPS have the same rows, and each a part of the values.

//: mma_attend
// slope * mask, never less than LOWEST where the mask is finite: a row whose mask is the lowest number
// everywhere has the mean of all values.
DEVICE float added(float slope, float mask) {
  const float value = slope * mask;
  return value < LOWEST && mask >= LOWEST ? LOWEST : value;
}

#define SIDES (16 * WARPS / ROWS)
#define WK UP_TO_16(DK)
#define WV UP_TO_16(DV)
// Matrices of 16 values that a warp has.
#define MINE ((WV / 16 + SIDES - 1) / SIDES)
#define LOG2_E 1.44269504f
#define ROWWISE(r) UNROLLED for (int r = 0; r < 2; r++)
#define SCOREWISE(n, i) UNROLLED for (int n = 0; n < AT_ONCE / 8; n++) UNROLLED for (int i = 0; i < 4; i++)
#define VALUEWISE(c) UNROLLED for (int c = 0; c < MINE; c++) if (SIDES == 1 || side * MINE + c < WV / 16)

// Fill `kept` with AT_ONCE positions of `rows` from `from` on, zeros from `stop` and `size` on: with copies of quads as
// they are, for which there are COPIES before and COPIED after, or with quads made of single elements. These are loops
// of their own, so that the first is unrolled and asks nothing. Where items fill whole rows together, the quads of an
// item are the same ones of rows `more` further, which takes less arithmetic.
#define QUADS_OF(size) (UP_TO_16(size) / 8)
#define COPY_TILE(name, rows, kept, from, size) \
  UNROLLED for (uint first_ = 0; first_ < AT_ONCE * QUADS_OF(size); first_ += 32 * WARPS) { \
    const int more = 32 * WARPS % QUADS_OF(size) ? 0 : first_ / QUADS_OF(size); \
    const uint i = first_ + ITEM_X - more * QUADS_OF(size), e = i % QUADS_OF(size) * 8; \
    const int at = from + (int)(i / QUADS_OF(size)); \
    const uchar* quad = rows + at * p.name.nb[1] + 2 * e + more * p.name.nb[1]; \
    if (AT_ONCE * QUADS_OF(size) % (32 * WARPS) == 0 || first_ + ITEM_X < AT_ONCE * QUADS_OF(size)) \
      COPY_QUAD_OR_ZERO(at + more < stop && e < size, &kept[i / QUADS_OF(size) + more][e / 8], quad); \
  }
#define MAKE_TILE(name, ELEMENT, rows, kept, from, size) \
  for (uint i = ITEM_X; i < AT_ONCE * QUADS_OF(size); i += 32 * WARPS) { \
    const int at = from + (int)(i / QUADS_OF(size)), e = i % QUADS_OF(size) * 8; \
    const uchar* row = rows + at * p.name.nb[1]; \
    kept[i / QUADS_OF(size)][e / 8] = at < stop ? EIGHT_OF(ELEMENT, row, e, size) : make_uint4(0, 0, 0, 0); \
  }
#define FETCH(from, turn) \
  if (k_quads) { COPY_TILE(k, keys, ks[turn], from, DK) } else { MAKE_TILE(k, K_ELEMENT, keys, ks[turn], from, DK) } \
  if (v_quads) { COPY_TILE(v, values, vs[turn], from, DV) } else { MAKE_TILE(v, V_ELEMENT, values, vs[turn], from, DV) }

// A span is 32 tiles, about which two words tell.
#define SPAN (32 * AT_ONCE)
#define FIRST_BITS(count) ((uint)(((ulong)1 << (count)) - 1))

#ifdef mask_bytes
// Quads of a row of a mask: their elements, how many of them an item loads at once, their words that hide positions.
#define PER (16 / mask_bytes)
#define LOADS (AT_ONCE / PER < 8 ? AT_ONCE / PER : 8)
#if defined(mask_is_f32)
#define HIDDEN 0xff800000u
#elif defined(mask_is_f16)
#define HIDDEN 0xfc00fc00u
#else
#define HIDDEN 0xff80ff80u
#endif
#define SEEN_IN(quad) ((((quad).x ^ HIDDEN) | ((quad).y ^ HIDDEN) | ((quad).z ^ HIDDEN) | ((quad).w ^ HIDDEN)) != 0)
#define ADDS(quad) (((quad).x | (quad).y | (quad).z | (quad).w) != 0)
#endif

#ifndef TENSORPLUG_EMULATED
// The compiler may use all registers that two groups leave each other. If it is not told, it takes fewer, and each
// product of queries and keys waits for a load right before it.
KERNEL_HEAD __launch_bounds__(32 * WARPS, 2);
#endif

KERNEL_HEAD {
  // Two tiles of keys and of values: one is fetched while the other one is multiplied.
  __shared__ uint4 ks[2][AT_ONCE][PITCH(WK)];
  __shared__ uint4 vs[2][AT_ONCE][PITCH(WV)];
  COPIES  // declares what COPY_QUAD and COPIED use
  GROUP_WORK  // declares batch, kv_head, kv_batch, group, tile, split, rows, start, stop
  const int warp = ITEM_X / 32, lane = ITEM_X % 32;
  const int side = warp % SIDES, own = warp / SIDES * 16, high = lane / 4, low = lane % 4;
  const uchar* keys = ROW(k, 0, kv_head, kv_batch);
  const uchar* values = ROW(v, 0, kv_head, kv_batch);
  const int k_quads = DK % 8 == 0 && HAS_QUADS(k), v_quads = DV % 8 == 0 && HAS_QUADS(v);

  // Bits of the tiles of the span: those that a row sees and that are still to come, and those that are plain: whole,
  // and masks add nothing to any score. The masks of a span are read together, as nothing waits for single ones then.
  uint seen = 0, all_plain = 0;
  int span = start - SPAN;
#ifdef mask_bytes
  __shared__ uint found[2][WARPS];
  // Rows of masks: one for each token, or one for each row where heads have masks of their own.
  const int of_tokens = p.mask.ne[2] == 1, masks = of_tokens ? TOKEN(ROWS - 1) - TOKEN(0) + 1 : ROWS;
  const int mask_quads = IN_ORDER(mask, mask_bytes);
#endif
  const auto look = [&] {
    const int length = min(SPAN, stop - span);
    seen = FIRST_BITS((length + AT_ONCE - 1) / AT_ONCE);
    all_plain = FIRST_BITS(length / AT_ONCE);
#ifdef mask_bytes
    uint some = 0, adds = 0;
    for (int i = warp; i < masks; i += WARPS) {
      const uchar* row = of_tokens ? ROW(mask, TOKEN(0) + i, 0, batch % p.mask.ne[3]) : MASK_ROW(i);
      row += (long)span * mask_bytes;
      const int quads = mask_quads ? length / PER : 0;
      for (int j = 0; j < quads; j += 32 * LOADS) {
        // Items without a quad have the last one.
#define QUAD(u) min(j + 32 * u + lane, quads - 1)
        uint4 quad[LOADS];
        UNROLLED for (int u = 0; u < LOADS; u++) quad[u] = ((const uint4*)row)[QUAD(u)];
        UNROLLED for (int u = 0; u < LOADS; u++) {
          some |= (uint)SEEN_IN(quad[u]) << QUAD(u) * PER / AT_ONCE;
          adds |= (uint)ADDS(quad[u]) << QUAD(u) * PER / AT_ONCE;
        }
      }
      for (int j = quads * PER + lane; j < length; j += 32) {
        const float mask = load_mask(row + j * mask_bytes);
        some |= (uint)(mask != MINUS_INFINITY) << j / AT_ONCE;
        adds |= (uint)(mask != 0.0f) << j / AT_ONCE;
      }
    }
    for (int other = 16; other > 0; other >>= 1) {
      some |= WARP_OTHER(some, other);
      adds |= WARP_OTHER(adds, other);
    }
    LOCAL_BARRIER;
    if (lane == 0) {
      found[0][warp] = some;
      found[1][warp] = adds;
    }
    LOCAL_BARRIER;
    some = adds = 0;
    UNROLLED for (int i = 0; i < WARPS; i++) {
      some |= found[0][i];
      adds |= found[1][i];
    }
    seen &= some;
    all_plain &= ~adds;
#endif
  };
  // Where the next tile that a row sees begins, `stop` after the last, and whether it is plain. For all items together.
  const auto next = [&](int& plain) {
    while (seen == 0) {
      span += SPAN;
      if (span >= stop) return stop;
      look();
    }
    const int i = BITS_SET((seen & -seen) - 1);
    seen &= seen - 1;
    plain = all_plain >> i & 1;
    return span + i * AT_ONCE;
  };

  // The first keys and values are fetched while queries are loaded.
  int plain = 0, first = next(plain);
  if (first < stop) { FETCH(first, 0) }
  // Queries of the two rows of this lane, multiplied by a power of two with which they fit a half, whatever they are.
  uint q[WK / 16][4];
  float unit[2];
  ROWWISE(r) {
    const uchar* row = ROW(q, TOKEN(own + high + 8 * r), HEAD(own + high + 8 * r), batch);
#define Q_ELEMENT(row, e) (load_q((row) + (e) * q_bytes) * fitting)
    // The exponent of the largest one of the row, within those whose power has a normal inverse.
    float most = 0.0f, fitting = 1.0f;
    UNROLLED for (int e = 2 * low; e < WK; e += 8)
      UNROLLED for (int i = 0; i < 2; i++) most = larger(most, fabs(ONE_OF(Q_ELEMENT, row, e + i, DK)));
    most = larger(most, __shfl_xor_sync(WHOLE_WARP, most, 1));
    most = larger(most, __shfl_xor_sync(WHOLE_WARP, most, 2));
    const int exponent = FLOAT_BITS(most) >> 23 & 255u, bounded = min(max(exponent, 1), 253);
    fitting = BITS_FLOAT((uint)(254 - bounded) << 23);
    UNROLLED for (int e = 0; e < WK / 8; e++) q[e / 2][e % 2 * 2 + r] = TWO_OF(Q_ELEMENT, row, 8 * e + 2 * low, DK);
    // The power that takes the multiplication back.
    unit[r] = BITS_FLOAT((uint)bounded << 23) * p.scale;
  }
  // Scores are multiplied by LOG2_E, so that their powers are powers of two.
#ifdef SOFTCAP
#define SCORE(product, r) (p.softcap * LOG2_E * tanh((product) * unit[r]))
#else
  ROWWISE(r) unit[r] *= LOG2_E;
#define SCORE(product, r) ((product) * unit[r])
#endif
  // The results so far of the two rows: values, largest scores, sums of powers.
  float y[2 * MINE][4], top[2], total[2];
  ROWWISE(r) {
    top[r] = LOWEST;
    total[r] = 0.0f;
  }
  UNROLLED for (int c = 0; c < 2 * MINE; c++)
    UNROLLED for (int i = 0; i < 4; i++) y[c][i] = 0.0f;
#ifdef mask_bytes
  const float slope[2] = {SLOPE(own + high) * LOG2_E, SLOPE(own + high + 8) * LOG2_E};
  const uchar* mask[2] = {MASK_ROW(own + high), MASK_ROW(own + high + 8)};
#define ADDED_TO(r, at) added(slope[r], load_mask(mask[r] + (long)(at) * mask_bytes))
#else
#define ADDED_TO(r, at) 0.0f
#endif
  for (int turn = 0; first < stop; turn ^= 1) {
    // All items are done with the tile before; the next one takes its memory.
    int next_plain = 0;
    const int after = next(next_plain);
    COPIED;
    LOCAL_BARRIER;
    if (after < stop) { FETCH(after, turn ^ 1) }
    // Products of queries and keys.
    float scores[AT_ONCE / 8][4];
    SCOREWISE(n, i) scores[n][i] = 0.0f;
    UNROLLED for (int e = 0; e < WK / 16; e++) {
      UNROLLED for (int n = 0; n < AT_ONCE / 8; n += 2) {
        uint b[4];
        four_matrices(b, ROW_OF_COLUMNS(ks[turn], 8 * n, 2 * e));
        multiply(scores[n], q[e], b);
        multiply(scores[n + 1], q[e], b + 2);
      }
    }
    SCOREWISE(n, i) scores[n][i] = SCORE(scores[n][i], i / 2);
    if (!plain) SCOREWISE(n, i) {
      // All loads are of positions that there are, so that none waits for a comparison.
      const int at = first + 8 * n + 2 * low + i % 2;
      const float sum = scores[n][i] + ADDED_TO(i / 2, min(at, stop - 1));
      scores[n][i] = at < stop ? sum : MINUS_INFINITY;
    }
    // The running maximum and sum.
    float shrink[2];
    ROWWISE(r) {
      // A maximum without NaN will do: the sum has it.
      float most = top[r], sum = 0.0f;
      SCOREWISE(n, i) if (i / 2 == r) most = fmax(most, scores[n][i]);
      most = fmax(most, __shfl_xor_sync(WHOLE_WARP, most, 1));
      most = fmax(most, __shfl_xor_sync(WHOLE_WARP, most, 2));
      shrink[r] = power_of_two(top[r] - most);
      top[r] = most;
      SCOREWISE(n, i) if (i / 2 == r) {
        scores[n][i] = power_of_two(scores[n][i] - most);
        sum += scores[n][i];
      }
      total[r] = total[r] * shrink[r] + sum;
    }
    // Results shrink where a maximum has grown, which is seldom after the first tiles.
    if (__any_sync(WHOLE_WARP, shrink[0] != 1.0f || shrink[1] != 1.0f))
      UNROLLED for (int c = 0; c < 2 * MINE; c++)
        UNROLLED for (int i = 0; i < 4; i++) y[c][i] *= shrink[i / 2];
    // Powers times values.
    UNROLLED for (int k = 0; k < AT_ONCE / 16; k++) {
      uint a[4];
      UNROLLED for (int i = 0; i < 4; i++)
        a[i] = pair(scores[2 * k + i / 2][i % 2 * 2], scores[2 * k + i / 2][i % 2 * 2 + 1]);
      VALUEWISE(c) {
        uint b[4];
        four_transposed(b, ROW_OF_B(vs[turn], 16 * k, 2 * (side * MINE + c)));
        multiply(y[2 * c], a, b);
        multiply(y[2 * c + 1], a, b + 2);
      }
    }
    first = after;
    plain = next_plain;
  }
  ROWWISE(r) {
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
