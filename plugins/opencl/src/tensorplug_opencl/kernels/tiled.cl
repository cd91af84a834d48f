// Products of matrices on GPUs: the lanes of a team share rows of `w`, or the items of a group share
// a tile of results.
//
// Weights are read PART neighbouring elements at a time. A type whose elements are small integers
// on a line says so with CODES: element = line.x * code + line.y, with the same line for all of a
// part and four codes, as signed bytes, in each word.

#define EVERY(name, count) _Pragma("unroll") for (int name = 0; name < count; name++)
typedef GLOBAL const uchar* bytes;

#if w_block > 1
#define PART 16
#else
#define PART 4
#endif
#define WORDS (PART / 4)

// 16 bytes at an even address.
#define BYTES16(p) as_uint4(vload8(0, (GLOBAL const ushort*)(p)))
#define UINT(p) as_uint(vload2(0, (GLOBAL const ushort*)(p)))
#define HALF(p) load_f16(p)
#define LOW 0x0f0f0f0fu
// Bits i to i + 15 as bit 4 of 16 bytes.
#define FIFTHS(bits, i) \
  ((((uint4)((bits) >> (i)) >> (uint4)(0, 4, 8, 12) & 15u) * 0x00204081u & 0x01010101u) << 4)

#if defined(w_is_q8_0)
#define CODES 1
DEVICE float2 line_of(bytes b, int i) { return (float2)(HALF(b), 0.0f); }
DEVICE uint4 codes(bytes b, int i) { return BYTES16(b + 2 + i); }
#elif defined(w_is_q4_0)
#define CODES 1
DEVICE float2 line_of(bytes b, int i) { return HALF(b) * (float2)(1.0f, -8.0f); }
DEVICE uint4 codes(bytes b, int i) { return BYTES16(b + 2) >> (uint)(i / 4) & LOW; }
#elif defined(w_is_q4_1)
#define CODES 1
DEVICE float2 line_of(bytes b, int i) { return (float2)(HALF(b), HALF(b + 2)); }
DEVICE uint4 codes(bytes b, int i) { return BYTES16(b + 4) >> (uint)(i / 4) & LOW; }
#elif defined(w_is_q5_0)
#define CODES 1
DEVICE float2 line_of(bytes b, int i) { return HALF(b) * (float2)(1.0f, -16.0f); }
DEVICE uint4 codes(bytes b, int i) {
  return (BYTES16(b + 6) >> (uint)(i / 4) & LOW) | FIFTHS(UINT(b + 2), i);
}
#elif defined(w_is_q5_1)
#define CODES 1
DEVICE float2 line_of(bytes b, int i) { return (float2)(HALF(b), HALF(b + 2)); }
DEVICE uint4 codes(bytes b, int i) {
  return (BYTES16(b + 8) >> (uint)(i / 4) & LOW) | FIFTHS(UINT(b + 4), i);
}
#elif defined(w_is_q4_K) || defined(w_is_q5_K)
#define CODES 1
DEVICE float2 line_of(bytes b, int i) {
  const int group = i / 32;
  return (float2)(HALF(b) * six_bit_scale(b + 4, group), -HALF(b + 2) * six_bit_minimum(b + 4, group));
}
#ifdef w_is_q4_K
DEVICE uint4 codes(bytes b, int i) {
  return BYTES16(b + 16 + i / 64 * 32 + i % 32) >> (uint)(i / 32 % 2 * 4) & LOW;
}
#else
DEVICE uint4 codes(bytes b, int i) {
  const uint4 low = BYTES16(b + 48 + i / 64 * 32 + i % 32) >> (uint)(i / 32 % 2 * 4) & LOW;
  return low | (BYTES16(b + 16 + i % 32) >> (uint)(i / 32) & 0x01010101u) << 4;
}
#endif
#elif defined(w_is_q6_K)
#define CODES 1
DEVICE float2 line_of(bytes b, int i) {
  return HALF(b + 208) * SIGNED_BYTE(b[192 + i / 16]) * (float2)(1.0f, -32.0f);
}
DEVICE uint4 codes(bytes b, int i) {
  const uint4 low = BYTES16(b + i / 128 * 64 + i % 64) >> (uint)(i / 64 % 2 * 4) & LOW;
  const uint4 high = BYTES16(b + 128 + i / 128 * 32 + i % 32) >> (uint)(i / 32 % 4 * 2);
  return low | (high & 0x03030303u) << 4;
}
#elif defined(w_is_q2_K)
#define CODES 1
DEVICE float2 line_of(bytes b, int i) {
  const int both = b[i / 16];
  return (float2)(HALF(b + 80) * (both & 15), -HALF(b + 82) * (both >> 4));
}
DEVICE uint4 codes(bytes b, int i) {
  return BYTES16(b + 16 + i / 128 * 32 + i % 32) >> (uint)(i / 32 % 4 * 2) & 0x03030303u;
}
#elif defined(w_is_q3_K)
#define CODES 1
DEVICE float2 line_of(bytes b, int i) {
  const int g = i / 16;
  const int low = b[96 + g % 8] >> g / 8 * 4 & 15, high = b[104 + g % 4] >> g / 4 * 2 & 3;
  return HALF(b + 108) * ((low | high << 4) - 32) * (float2)(1.0f, -4.0f);
}
DEVICE uint4 codes(bytes b, int i) {
  const uint4 low = BYTES16(b + 32 + i / 128 * 32 + i % 32) >> (uint)(i / 32 % 4 * 2) & 0x03030303u;
  return low | (BYTES16(b + i % 32) >> (uint)(i / 32) & 0x01010101u) << 2;
}
#endif

// The part of the row of `w` at `row` that starts with element `k`.
#if w_block > 1
#define BLOCK_OF(row, k) ((row) + (long)((k) / w_block) * p.w.nb[0])
#endif
#if defined(CODES)
#define READ_PART(out, row, k) unpack(out, BLOCK_OF(row, k), (k) % w_block)
DEVICE void unpack(float4* out, bytes b, int i) {
  const float2 line = line_of(b, i);
  const uint4 q = codes(b, i);
  const uint words[4] = {q.x, q.y, q.z, q.w};
  EVERY(j, 4) out[j] = line.x * convert_float4(as_char4(words[j])) + line.y;
}
#elif w_block > 1
#define READ_PART(out, row, k) unpack(out, BLOCK_OF(row, k), (k) % w_block)
DEVICE void unpack(float4* out, bytes b, int i) {
  EVERY(j, 4) {
    const int at = i + 4 * j;
    out[j] = (float4)(decode_w(b, at), decode_w(b, at + 1), decode_w(b, at + 2), decode_w(b, at + 3));
  }
}
#elif defined(APART)
#define W_AT(row, k) load_w((row) + (long)(k) * p.w.nb[0])
#define READ_PART(out, row, k) \
  out[0] = (float4)(W_AT(row, k), W_AT(row, (k) + 1), W_AT(row, (k) + 2), W_AT(row, (k) + 3))
#else
#define W_AT(row, k) load_w((row) + (long)(k) * p.w.nb[0])
#define READ_PART(out, row, k) out[0] = read4((row) + (long)(k) * w_bytes)
DEVICE float4 read4(bytes p) {
#if defined(w_is_f32)
  return vload4(0, (GLOBAL const float*)p);
#elif defined(w_is_f16)
  return vload_half4(0, (GLOBAL const half*)p);
#else
  return as_float4(convert_uint4(vload4(0, (GLOBAL const ushort*)p)) << 16);
#endif
}
#endif

//: row_product
// Teams of lanes take ROWS rows of `w` at a time, and their lanes parts of them in turn, which they
// multiply with COLS rows of `x`. A team is a sub-group, whatever its size, or else the group.
#ifdef SUBGROUP
#pragma OPENCL EXTENSION cl_khr_subgroups : enable
#define LANE ((int)get_sub_group_local_id())
#define TEAM_SIZE ((int)get_sub_group_size())
#define TEAM ((int)get_sub_group_id())
#define TEAMS ((int)get_num_sub_groups())
#define TEAM_SUM(value) sub_group_reduce_add(value)
#else
#define LANE ITEM_X
#define TEAM_SIZE GROUP_SIZE
#define TEAM 0
#define TEAMS 1
#define TEAM_SUM(value) GROUP_SUM(value, room)
#endif

// With INT8, `x` has records of 16 signed bytes, their scale, and their sum times the scale.
#ifdef INT8
#ifdef DOT
#define DOT4(a, b) dot_4x8packed_ss_int(a, b)
#else
#define DOT4(a, b) dot4(as_char4(a), as_char4(b))
DEVICE int dot4(char4 a, char4 b) {
  return (int)a.x * b.x + (int)a.y * b.y + (int)a.z * b.z + (int)a.w * b.w;
}
#endif
#define RECORD 24
typedef struct { uint4 codes; float2 line; } weights;
DEVICE float times(const weights* v, bytes x, int part) {
  bytes record = x + RECORD * (long)part;
  const uint4 q = vload4(0, (GLOBAL const uint*)record);
  const float2 scales = vload2(0, (GLOBAL const float*)(record + 16));
  const int dot = DOT4(v->codes.x, q.x) + DOT4(v->codes.y, q.y) + DOT4(v->codes.z, q.z)
    + DOT4(v->codes.w, q.w);
  return v->line.x * scales.x * dot + v->line.y * scales.y;
}
#define READ_WEIGHTS(v, row, k) { \
  bytes b = BLOCK_OF(row, k); \
  v.codes = codes(b, (k) % w_block); \
  v.line = line_of(b, (k) % w_block); \
}
#else
typedef struct { float4 words[WORDS]; } weights;
DEVICE float times(const weights* v, bytes x, int part) {
  float4 sum = v->words[0] * vload4((long)part * WORDS, (GLOBAL const float*)x);
  for (int j = 1; j < WORDS; j++) {
    sum += v->words[j] * vload4((long)part * WORDS + j, (GLOBAL const float*)x);
  }
  return (sum.x + sum.y) + (sum.z + sum.w);
}
#define READ_WEIGHTS(v, row, k) READ_PART(v.words, row, k)
#endif

#ifdef REQUIRED_SUBGROUP
__attribute__((intel_reqd_sub_group_size(REQUIRED_SUBGROUP)))
#endif
KERNEL_HEAD {
#ifndef SUBGROUP
  GROUP_SCRATCH(room);
#endif
  const int n = p.w.ne[1], length = p.w.ne[0];
  const int first = GROUP_X * GROUP_ROWS, last = min(first + GROUP_ROWS, n);
  MATRIX
  if (!IS_EXPERT) {
    for (int i = first + ITEM_X; i < last; i += LOCAL_X) ((GLOBAL float*)Y_ROW(0))[i] = 0.0f;
    return;
  }
  bytes x[COLS];
  EVERY(c, COLS) x[c] = X_ROW(min(c, columns - 1));
  for (int row = first + TEAM * ROWS; row < last; row += TEAMS * ROWS) {
    bytes w[ROWS];
    float sums[ROWS][COLS];
    EVERY(r, ROWS) {
      w[r] = W_ROW(min(row + r, n - 1));
      EVERY(c, COLS) sums[r][c] = 0.0f;
    }
    for (int part = LANE; part < length / PART; part += TEAM_SIZE) {
      EVERY(r, ROWS) {
        weights v;
        READ_WEIGHTS(v, w[r], part * PART);
        EVERY(c, COLS) sums[r][c] += times(&v, x[c], part);
      }
    }
#if w_block == 1
    for (int k = length / PART * PART + LANE; k < length; k += TEAM_SIZE) {
      EVERY(r, ROWS) {
        EVERY(c, COLS) sums[r][c] += W_AT(w[r], k) * ((GLOBAL const float*)x[c])[k];
      }
    }
#endif
    EVERY(r, ROWS) {
      EVERY(c, COLS) {
        const float sum = TEAM_SUM(sums[r][c]);
        if (LANE == 0 && c < columns && row + r < last) ((GLOBAL float*)Y_ROW(c))[row + r] = sum;
      }
    }
  }
}

//: tile_product
// A group for each TILE_N x TILE_M results, DEPTH elements deep. Each item has ITEM_N x ITEM_M of
// them, which lie ACROSS and DOWN apart, so that neighbours read and write neighbours.
#define ACROSS (TILE_N / ITEM_N)
#define DOWN (TILE_M / ITEM_M)
#define ITEMS (ACROSS * DOWN)
#define W_STEP (TILE_N + 1)
#define X_STEP (TILE_M + 1)
KERNEL_HEAD {
  LOCAL float ws[DEPTH * W_STEP];
  LOCAL float xs[DEPTH * X_STEP];
  const int n = p.w.ne[1], length = p.w.ne[0], item = ITEM_X;
  MATRIX
  const int n0 = GROUP_X * TILE_N, m0 = GROUP_Y * TILE_M;
  if (m0 >= columns) return;
  const int a = item % ACROSS, b = item / ACROSS;
  float sums[ITEM_M][ITEM_N];
  EVERY(j, ITEM_M) EVERY(i, ITEM_N) sums[j][i] = 0.0f;
  for (int k0 = 0; k0 < length; k0 += DEPTH) {
    LOCAL_BARRIER;
    // Rows beyond the last are copies of it.
#if w_block > 1
    for (int u = item; u < TILE_N * DEPTH / PART; u += ITEMS) {
      const int line = u % TILE_N, k = u / TILE_N * PART;
      float4 four[WORDS];
      READ_PART(four, W_ROW(min(n0 + line, n - 1)), k0 + k);
      EVERY(j, WORDS) {
        ws[(k + 4 * j) * W_STEP + line] = four[j].x;
        ws[(k + 4 * j + 1) * W_STEP + line] = four[j].y;
        ws[(k + 4 * j + 2) * W_STEP + line] = four[j].z;
        ws[(k + 4 * j + 3) * W_STEP + line] = four[j].w;
      }
    }
#else
    for (int u = item; u < TILE_N * DEPTH; u += ITEMS) {
      const int k = u % DEPTH, line = u / DEPTH;
      ws[k * W_STEP + line] = k0 + k < length ? W_AT(W_ROW(min(n0 + line, n - 1)), k0 + k) : 0.0f;
    }
#endif
    for (int u = item; u < TILE_M * DEPTH; u += ITEMS) {
      const int k = u % DEPTH, line = u / DEPTH;
      bytes x = X_ROW(min(m0 + line, columns - 1));
      xs[k * X_STEP + line] = k0 + k < length ? load_x(x + (long)(k0 + k) * p.x.nb[0]) : 0.0f;
    }
    LOCAL_BARRIER;
    for (int k = 0; k < DEPTH; k++) {
      float left[ITEM_N];
      EVERY(i, ITEM_N) left[i] = ws[k * W_STEP + a + i * ACROSS];
      EVERY(j, ITEM_M) {
        const float right = xs[k * X_STEP + b + j * DOWN];
        EVERY(i, ITEM_N) sums[j][i] += left[i] * right;
      }
    }
  }
  EVERY(j, ITEM_M) {
    const int m = m0 + b + j * DOWN;
    if (m < columns) {
      GLOBAL float* y = (GLOBAL float*)Y_ROW(m);
      EVERY(i, ITEM_N) {
        const int at = n0 + a + i * ACROSS;
        if (at < n) y[at] = sums[j][i];
      }
    }
  }
}
