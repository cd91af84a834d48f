// Products of a few rows of `x` on GPUs: the lanes of a team share rows of `w`.
//
// Weights are read PART neighbouring elements at a time; those of block types by `unpack` of bytes.k, as bytes with
// a scale for each 16.

#define EVERY(name, count) _Pragma("unroll") for (int name = 0; name < count; name++)
typedef GLOBAL const uchar* bytes;

#if w_block > 1
#define PART 32
#else
#define PART 4
#endif
#define WORDS (PART / 4)

// The part of the row of `w` at `row` that starts with element `k`.
#if w_block > 1
typedef struct { int codes[8]; float scales[2], offsets[2]; } weights;
DEVICE weights weights_at(bytes block, int part) {
  weights v;
  v.offsets[0] = v.offsets[1] = 0.0f;
  unpack(block, part, v.codes, v.scales, v.offsets);
  if (OFFSETS == 1) v.offsets[1] = v.offsets[0];
  return v;
}
#define WEIGHTS_AT(row, k) weights_at((row) + (long)((k) / w_block) * p.w.nb[0], (k) % w_block / PART)
#define READ_PART(out, row, k) { \
  const weights read_ = WEIGHTS_AT(row, k); \
  EVERY(j, WORDS) \
    out[j] = read_.scales[j / 4] * convert_float4(as_char4(read_.codes[j])) + read_.offsets[j / 4]; \
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
#define DOT4(a, b) dot_4x8packed_ss_int((uint)(a), (b))
#else
#define DOT4(a, b) dot4(as_char4(a), as_char4(b))
DEVICE int dot4(char4 a, char4 b) {
  return (int)a.x * b.x + (int)a.y * b.y + (int)a.z * b.z + (int)a.w * b.w;
}
#endif
#define RECORD 24
typedef weights operand;
#define READ_OPERAND(v, row, k) v = WEIGHTS_AT(row, k)
DEVICE float times(const operand* v, bytes x, int part) {
  float sum = 0.0f;
  EVERY(side, 2) {
    bytes record = x + RECORD * (2 * (long)part + side);
    const uint4 q = vload4(0, (GLOBAL const uint*)record);
    const float2 scales = vload2(0, (GLOBAL const float*)(record + 16));
    const int* codes = v->codes + 4 * side;
    const int dot = DOT4(codes[0], q.x) + DOT4(codes[1], q.y) + DOT4(codes[2], q.z) + DOT4(codes[3], q.w);
    sum += v->scales[side] * scales.x * dot + v->offsets[side] * scales.y;
  }
  return sum;
}
#else
typedef struct { float4 words[WORDS]; } operand;
#define READ_OPERAND(v, row, k) READ_PART(v.words, row, k)
DEVICE float times(const operand* v, bytes x, int part) {
  float4 sum = v->words[0] * vload4((long)part * WORDS, (GLOBAL const float*)x);
  for (int j = 1; j < WORDS; j++) {
    sum += v->words[j] * vload4((long)part * WORDS + j, (GLOBAL const float*)x);
  }
  return (sum.x + sum.y) + (sum.z + sum.w);
}
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
  MATRIX  // declares columns; i2, i3 or expert, start, read by W_ROW, X_ROW, Y_ROW
  if (!IS_EXPERT) {  // no expert: zeros
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
    for (int part = LANE; part < length / PART; part += TEAM_SIZE) {  // lanes take parts in turn
      EVERY(r, ROWS) {
        operand v;
        READ_OPERAND(v, w[r], part * PART);
        EVERY(c, COLS) sums[r][c] += times(&v, x[c], part);
      }
    }
#if w_block == 1
    for (int k = length / PART * PART + LANE; k < length; k += TEAM_SIZE) {  // elements after the last whole part
      EVERY(r, ROWS) {
        EVERY(c, COLS) sums[r][c] += W_AT(w[r], k) * ((GLOBAL const float*)x[c])[k];
      }
    }
#endif
    EVERY(r, ROWS) {
      EVERY(c, COLS) {
        const float sum = TEAM_SUM(sums[r][c]);  // add up the lanes of the team
        if (LANE == 0 && c < columns && row + r < last) ((GLOBAL float*)Y_ROW(c))[row + r] = sum;
      }
    }
  }
}
