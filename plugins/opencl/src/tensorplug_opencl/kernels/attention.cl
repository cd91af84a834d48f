// Attention: softmax of scores, times values, position by position with the largest score so far.
// Rows that share keys (tokens of the heads of one group) are numbered token * group + head.
// A row's part of the positions ends as its largest score, its sum of powers and its DV values.

#define LOWEST (-FLT_MAX)

// Element i of a row of keys or values.
#if k_block > 1
#define K_ELEMENT(row, i) decode_k((row) + (i) / k_block * k_bytes, (i) % k_block)
#else
#define K_ELEMENT(row, i) load_k((row) + (i) * p.k.nb[0])
#endif
#if v_block > 1
#define V_ELEMENT(row, i) decode_v((row) + (i) / v_block * v_bytes, (i) % v_block)
#else
#define V_ELEMENT(row, i) load_v((row) + (i) * p.v.nb[0])
#endif

// How steep the mask of a head is. Heads up to the largest power of two take the powers of one base,
// the rest the odd powers of its square root.
float slope_of(int head, float max_bias, int even) {
  if (max_bias == 0.0f) return 1.0f;
  const float power = head < even ? (float)(head + 1) : (head - even) + 0.5f;
  return exp2(-max_bias / even * power);
}

//: attend_row
// One item takes ROWS rows that share keys, and 16 positions at a time, so each key is loaded once.

float total_of(float16 a) {
  const float8 b = a.lo + a.hi;
  const float4 c = b.lo + b.hi;
  return (c.x + c.y) + (c.z + c.w);
}
float largest_of(float16 a) {
  const float8 b = fmax(a.lo, a.hi);
  const float4 c = fmax(b.lo, b.hi);
  return fmax(fmax(c.x, c.y), fmax(c.z, c.w));
}

#define KEYS ((DK + 15) / 16)
#define VALUES ((DV + 15) / 16)
// Sums stay in registers only where the loops over them are unrolled.
#define ROWWISE _Pragma("unroll") for (int r = 0; r < ROWS; r++)
#define KEYWISE _Pragma("unroll") for (int c = 0; c < KEYS; c++)
#define VALUEWISE for (int c = 0; c < VALUES; c++)

// Elements 16 c to 16 c + 15 of a row, zeros beyond its end.
#define PART(role, ROLE, size) \
  float16 role##_part(__global const uchar* row, int c, long step) { \
    float t[16]; \
    for (int i = 0; i < 16; i++) t[i] = (size) % 16 == 0 || 16 * c + i < (size) ? ROLE(row, 16 * c + i) : 0.0f; \
    return vload16(0, t); \
  }
#define FLOATS16(row, c) vload16((c), (__global const float*)(row))
#define HALVES16(row, c) load_halves16((row) + 32 * (c))
#define SHORTS16(row, c) as_float16(convert_uint16(vload16((c), (__global const ushort*)(row))) << 16)

// The types of cached keys and values: 32 elements with a scale before them.
#define BYTES16(row, c) bytes_part((row) + (c) / 2 * 34, (c) % 2)
#define NIBBLES16(row, c) nibbles_part((row) + (c) / 2 * 18, (c) % 2)
float16 bytes_part(__global const uchar* block, int upper) {
  const char16 codes = vload16(upper, (__global const char*)(block + 2));
  return load_f16(block) * convert_float16(codes);
}
float16 nibbles_part(__global const uchar* block, int upper) {
  const uchar16 both = vload16(0, block + 2);
  return load_f16(block) * (convert_float16(upper ? both >> (uchar16)4 : both & (uchar16)15) - 8.0f);
}

#if k_block > 1
#define K_AT(row, i) decode_k((row) + (i) / k_block * k_bytes, (i) % k_block)
#else
#define K_AT(row, i) load_k((row) + (i) * step)
#endif
#if v_block > 1
#define V_AT(row, i) decode_v((row) + (i) / v_block * v_bytes, (i) % v_block)
#else
#define V_AT(row, i) load_v((row) + (i) * step)
#endif
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

// The rows of a head lie apart, where processors do not look ahead.
#define FETCH(at, bytes) for (int l = 0; l < (bytes); l += 64) { PREFETCH((at) + l); }
#define FETCH_AHEAD \
  for (int i = 16; i < min(32, stop - first); i++) { \
    FETCH(ROW(k, first + i, kv_head, kv_batch), DK * k_bytes / k_block) \
    FETCH(ROW(v, first + i - 16, kv_head, kv_batch), DV * v_bytes / v_block) \
  }

KERNEL_HEAD {
  const int kv_head = GROUP_Y, batch = GROUP_Z;
  const int tile = GROUP_X % p.tiles, split = GROUP_X / p.tiles;
  const int group = p.q.ne[2] / p.k.ne[2], kv_batch = batch / (p.q.ne[3] / p.k.ne[3]);
  const int rows = group * p.q.ne[1];
  const int start = split * p.share, stop = min(start + p.share, p.k.ne[1]);
  int token[ROWS], head[ROWS];
  float16 q[ROWS][KEYS], y[ROWS][VALUES], powers[ROWS];
  float top[ROWS], total[ROWS], slope[ROWS];
  ROWWISE {
    // Rows beyond the last compute it again, and are not stored.
    const int row = min(tile * ROWS + r, rows - 1);
    token[r] = row / group;
    head[r] = kv_head * group + row % group;
    top[r] = LOWEST;
    total[r] = 0.0f;
    slope[r] = slope_of(head[r], p.max_bias, p.even);
    __global const uchar* from = ROW(q, token[r], head[r], batch);
    KEYWISE {
      float t[16];
      for (int i = 0; i < 16; i++)
        t[i] = 16 * c + i < DK ? p.scale * load_q(from + (16 * c + i) * p.q.nb[0]) : 0.0f;
      q[r][c] = vload16(0, t);
    }
    VALUEWISE y[r][c] = 0.0f;
  }
  for (int first = start; first < stop; first += 16) {
    const int count = min(16, stop - first);
    float16 added[ROWS];
#ifdef mask_bytes
    float16 seen = -INFINITY;
    ROWWISE {
      __global const uchar* mask = ROW(mask, token[r], head[r] % p.mask.ne[2], batch % p.mask.ne[3]);
      float t[16];
      for (int i = 0; i < 16; i++)
        t[i] = i < count ? load_mask(mask + (first + i) * p.mask.nb[0]) : -INFINITY;
      added[r] = vload16(0, t);
      seen = fmax(seen, added[r]);
      added[r] *= slope[r];
    }
    if (largest_of(seen) == -INFINITY) continue;
#else
    float t[16];
    for (int i = 0; i < 16; i++) t[i] = i < count ? 0.0f : -INFINITY;
    ROWWISE added[r] = vload16(0, t);
#endif
    float scores[ROWS][16];
    for (int i = 0; i < 16; i++)
      ROWWISE scores[r][i] = 0.0f;
    FETCH_AHEAD
    for (int i = 0; i < count; i++) {
      __global const uchar* row = ROW(k, first + i, kv_head, kv_batch);
      float16 sums[ROWS];
      ROWWISE sums[r] = 0.0f;
      KEYWISE {
        const float16 part = K16(row, c);
        ROWWISE sums[r] += q[r][c] * part;
      }
      ROWWISE scores[r][i] = total_of(sums[r]);
    }
    ROWWISE {
      float16 score = vload16(0, scores[r]);
      if (p.softcap != 0.0f) score = p.softcap * tanh(score);
      score += added[r];
      const float larger = fmax(top[r], largest_of(score));
      const float shrink = exp(top[r] - larger);
      powers[r] = exp(score - larger);
      total[r] = total[r] * shrink + total_of(powers[r]);
      if (larger > top[r])
        VALUEWISE y[r][c] *= shrink;
      top[r] = larger;
      vstore16(powers[r], 0, scores[r]);
    }
    __global const uchar* values = ROW(v, first, kv_head, kv_batch);
    VALUEWISE {
      float16 sums[ROWS];
      ROWWISE sums[r] = y[r][c];
      for (int i = 0; i < count; i++) {
        const float16 part = V16(values + i * p.v.nb[1], c);
        ROWWISE sums[r] += scores[r][i] * part;
      }
      ROWWISE y[r][c] = sums[r];
    }
  }
  ROWWISE {
    if (tile * ROWS + r >= rows) return;
    float factor = 1.0f;
    __global float* to;
    if (p.splits > 1) {
      const int row = (batch * p.q.ne[1] + token[r]) * p.q.ne[2] + head[r];
      to = (__global float*)ROW(part, split, row, 0);
      *to++ = top[r];
      *to++ = total[r];
    } else {
      to = (__global float*)ROW(y, head[r], token[r], batch);
#ifdef sinks_bytes
      const float sink = load_sinks(AT(sinks, head[r], 0, 0, 0));
      const float larger = fmax(top[r], sink);
      factor = exp(top[r] - larger);
      total[r] = total[r] * factor + exp(sink - larger);
#endif
      factor = total[r] == 0.0f ? 0.0f : factor / total[r];
    }
    VALUEWISE {
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

//: attend_tile
// A group of 8 ROWS items takes ROWS rows and 32 positions at a time. Item `lane` of a row has its
// scores of positions lane + 8 j, and its values lane + 8 j.

#define WIDTH 32
#define PARTS(size) (((size) + WIDTH - 1) / WIDTH)

KERNEL_HEAD {
  const int kv_head = GROUP_Y, batch = GROUP_Z;
  const int tile = GROUP_X % p.tiles, split = GROUP_X / p.tiles;
  const int group = p.q.ne[2] / p.k.ne[2], kv_batch = batch / (p.q.ne[3] / p.k.ne[3]);
  const int start = split * p.share, stop = min(start + p.share, p.k.ne[1]);
  const int item = ITEM_X, r = item / 8, lane = item % 8;
  const int number = tile * ROWS + r, row = min(number, group * p.q.ne[1] - 1);
  const int token = row / group, head = kv_head * group + row % group;
  __local float q[ROWS][DK];
  __local float kept[WIDTH][WIDTH + 1];
  __local float scores[ROWS][WIDTH + 1];
  __local int visible;
  float y[PARTS(DV) * 4];
  for (int i = 0; i < PARTS(DV) * 4; i++) y[i] = 0.0f;
  float top = LOWEST, total = 0.0f;
  __global const uchar* from = ROW(q, token, head, batch);
  for (int i = lane; i < DK; i += 8) q[r][i] = p.scale * load_q(from + i * p.q.nb[0]);
#ifdef mask_bytes
  const float slope = slope_of(head, p.max_bias, p.even);
  __global const uchar* mask = ROW(mask, token, head % p.mask.ne[2], batch % p.mask.ne[3]);
#endif
  for (int first = start; first < stop; first += WIDTH) {
    float added[4], sums[4];
    barrier(CLK_LOCAL_MEM_FENCE);
    if (item == 0) visible = 0;
    barrier(CLK_LOCAL_MEM_FENCE);
    for (int j = 0; j < 4; j++) {
      const int at = first + lane + 8 * j;
      added[j] = -INFINITY;
#ifdef mask_bytes
      if (at < stop) added[j] = slope * load_mask(mask + at * p.mask.nb[0]);
#else
      if (at < stop) added[j] = 0.0f;
#endif
      if (added[j] != -INFINITY) visible = 1;
      sums[j] = 0.0f;
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    if (!visible) continue;
    for (int d = 0; d < DK; d += WIDTH) {
      barrier(CLK_LOCAL_MEM_FENCE);
      for (int i = item; i < WIDTH * WIDTH; i += 8 * ROWS) {
        const int at = first + i / WIDTH, e = d + i % WIDTH;
        float value = 0.0f;
        if (at < stop && e < DK) {
          __global const uchar* key = ROW(k, at, kv_head, kv_batch);
          value = K_ELEMENT(key, e);
        }
        kept[i / WIDTH][i % WIDTH] = value;
      }
      barrier(CLK_LOCAL_MEM_FENCE);
      const int width = min(WIDTH, DK - d);
      for (int e = 0; e < width; e++) {
        const float x = q[r][d + e];
        for (int j = 0; j < 4; j++) sums[j] += x * kept[lane + 8 * j][e];
      }
    }
    for (int j = 0; j < 4; j++) {
      if (p.softcap != 0.0f) sums[j] = p.softcap * tanh(sums[j]);
      sums[j] += added[j];
      scores[r][lane + 8 * j] = sums[j];
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    float larger = top;
    for (int i = 0; i < WIDTH; i++) larger = fmax(larger, scores[r][i]);
    barrier(CLK_LOCAL_MEM_FENCE);
    for (int j = 0; j < 4; j++) scores[r][lane + 8 * j] = exp(sums[j] - larger);
    barrier(CLK_LOCAL_MEM_FENCE);
    const float shrink = exp(top - larger);
    top = larger;
    total *= shrink;
    for (int i = 0; i < WIDTH; i++) total += scores[r][i];
    for (int i = 0; i < PARTS(DV) * 4; i++) y[i] *= shrink;
#pragma unroll
    for (int c = 0; c < PARTS(DV); c++) {
      barrier(CLK_LOCAL_MEM_FENCE);
      for (int i = item; i < WIDTH * WIDTH; i += 8 * ROWS) {
        const int at = first + i / WIDTH, e = c * WIDTH + i % WIDTH;
        float value = 0.0f;
        if (at < stop && e < DV) {
          __global const uchar* from = ROW(v, at, kv_head, kv_batch);
          value = V_ELEMENT(from, e);
        }
        kept[i / WIDTH][i % WIDTH] = value;
      }
      barrier(CLK_LOCAL_MEM_FENCE);
      for (int i = 0; i < WIDTH; i++) {
        const float power = scores[r][i];
        for (int j = 0; j < 4; j++) y[c * 4 + j] += power * kept[i][lane + 8 * j];
      }
    }
  }
  if (number != row) return;
  float factor = 1.0f;
  __global float* to;
  if (p.splits > 1) {
    to = (__global float*)ROW(part, split, (batch * p.q.ne[1] + token) * p.q.ne[2] + head, 0);
    if (lane == 0) {
      to[0] = top;
      to[1] = total;
    }
    to += 2;
  } else {
    to = (__global float*)ROW(y, head, token, batch);
#ifdef sinks_bytes
    const float sink = load_sinks(AT(sinks, head, 0, 0, 0));
    const float larger = fmax(top, sink);
    factor = exp(top - larger);
    total = total * factor + exp(sink - larger);
#endif
    factor = total == 0.0f ? 0.0f : factor / total;
  }
#pragma unroll
  for (int c = 0; c < PARTS(DV); c++)
    for (int j = 0; j < 4; j++) {
      const int e = c * WIDTH + lane + 8 * j;
      if (e < DV) to[e] = y[c * 4 + j] * factor;
    }
}

//: attend_join
// The parts of a row become its result: a group for each head, token and batch.
KERNEL_HEAD {
  const int row = (GROUP_Z * p.y.ne[2] + GROUP_Y) * p.y.ne[1] + GROUP_X;
  float top = LOWEST, total = 0.0f;
  for (int i = 0; i < p.part.ne[1]; i++)
    top = fmax(top, *(__global const float*)ROW(part, i, row, 0));
#ifdef sinks_bytes
  const float sink = load_sinks(AT(sinks, GROUP_X, 0, 0, 0));
  top = fmax(top, sink);
  total = exp(sink - top);
#endif
  for (int i = 0; i < p.part.ne[1]; i++) {
    __global const float* from = (__global const float*)ROW(part, i, row, 0);
    total += from[1] * exp(from[0] - top);
  }
  const float factor = total == 0.0f ? 0.0f : 1.0f / total;
  __global float* to = (__global float*)ROW(y, GROUP_X, GROUP_Y, GROUP_Z);
  for (int d = ITEM_X; d < p.y.ne[0]; d += GROUP_SIZE) {
    float sum = 0.0f;
    for (int i = 0; i < p.part.ne[1]; i++) {
      __global const float* from = (__global const float*)ROW(part, i, row, 0);
      sum += from[d + 2] * exp(from[0] - top);
    }
    to[d] = sum * factor;
  }
}
