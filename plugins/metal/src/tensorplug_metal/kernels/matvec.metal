// Products with few columns of x, by which weights go through once: a simdgroup takes ROWS rows of w
// and COLUMNS columns of x. With EXPERTS ids name the matrix, and there is one column.
// Rows in order are read 16 bytes at a time, where they begin at multiples of 16 bytes; buffers do.

#define IN_ORDER(role) \
  (p.role.nb[0] == role##_bytes && ((p.role.off | p.role.nb[1] | p.role.nb[2] | p.role.nb[3]) & 15) == 0)

// The place of a simdgroup: `first_row` of w is its first, `last` how many are behind that one. Rows and
// columns beyond the last are computed again, and not stored. few.k says what becomes of sums.
#ifdef EXPERTS
#define MATRIX \
  const int first = GROUP_Y, i2 = GROUP_Z, i3 = 0; \
  const int expert = *(GLOBAL const int*)AT(ids, first, i2, 0, 0); \
  const bool known = expert >= 0 && expert < p.w.ne[2];
#define FIRST_ROW(name) ROW(name, first_row, known ? expert : 0, 0)
#define KNOWN(value) (known ? (value) : NOTHING)
#else
#define MATRIX const int first = GROUP_Y * COLUMNS, i2 = GROUP_Z % p.y.ne[2], i3 = GROUP_Z / p.y.ne[2];
#define FIRST_ROW(name) ROW(name, first_row, i2 / p.repeat2, i3 / p.repeat3)
#define KNOWN(value) (value)
#endif
#define GROUP_WORK \
  const int lane = ITEM_X % 32, first_row = (GROUP_X * (LOCAL_X / 32) + ITEM_X / 32) * ROWS; \
  if (first_row >= p.w.ne[1]) return; \
  const int last = p.w.ne[1] - 1 - first_row; \
  MATRIX \
  GLOBAL const uchar* w = FIRST_ROW(w); \
  WITH_GATE(GLOBAL const uchar* w2 = FIRST_ROW(w2);) \
  float sums[ROWS][COLUMNS]; \
  WITH_GATE(float sums2[ROWS][COLUMNS];) \
  UNROLLED for (int r = 0; r < ROWS; r++) \
    UNROLLED for (int c = 0; c < COLUMNS; c++) { \
      sums[r][c] = 0.0f; \
      WITH_GATE(sums2[r][c] = 0.0f;) \
    }
#define ROW_OF(name, r) (name + (long)((r) < last ? (r) : last) * p.name.nb[1])
#define FINISH \
  UNROLLED for (int r = 0; r < ROWS; r++) \
    UNROLLED for (int c = 0; c < COLUMNS; c++) { \
      const int i0 = first_row + r; \
      const float sum = simd_sum(sums[r][c]); \
      WITH_GATE(const float sum2 = simd_sum(sums2[r][c]);) \
      if (lane == 0 && r <= last && first + c < p.y.ne[1]) store_f32(AT(y, i0, first + c, i2, i3), KNOWN(RESULT(c))); \
    }

//: matvec
// Weights of blocks: a lane takes 32 elements at a time.

// 32 elements of x, and the sums of both halves.
DEVICE void load_part(GLOBAL const uchar* x, long step, bool in_order, PRIVATE float4* v, PRIVATE float* ones) {
  UNROLLED for (int j = 0; j < 8; j++) {
#ifdef x_is_f32
    if (in_order) v[j] = ((GLOBAL const float4*)x)[j];
    else
#endif
    {
      GLOBAL const uchar* from = x + 4 * j * step;
      v[j] = float4(load_x(from), load_x(from + step), load_x(from + 2 * step), load_x(from + 3 * step));
    }
  }
#if OFFSETS > 0
  for (int side = 0; side < 2; side++) {
    const float4 four = v[4 * side] + v[4 * side + 1] + (v[4 * side + 2] + v[4 * side + 3]);
    ones[side] = four.x + four.y + (four.z + four.w);
  }
#endif
}
DEVICE float four_of(float4 v) { return v.x + v.y + (v.z + v.w); }
DEVICE float part_product(PRIVATE const int* q, PRIVATE const float* s, PRIVATE const float* o, PRIVATE const float4* v, PRIVATE const float* ones) {
  float4 low = float4(0.0f), high = float4(0.0f);
  UNROLLED for (int j = 0; j < 4; j++) {
    low += float4(as_type<char4>(q[j])) * v[j];
    high += float4(as_type<char4>(q[j + 4])) * v[j + 4];
  }
  float total = s[0] * four_of(low) + s[1] * four_of(high);
#if OFFSETS == 1
  total += o[0] * (ones[0] + ones[1]);
#elif OFFSETS == 2
  total += o[0] * ones[0] + o[1] * ones[1];
#endif
  return total;
}

KERNEL_HEAD {
  GROUP_WORK  // declares lane, first_row, last, first, i2, i3, w, sums; with a gate w2, sums2; with EXPERTS expert, known
  const bool in_order = IN_ORDER(x);
  const int parts = p.w.ne[0] / 32;
  for (int at = lane; at < parts; at += 32) {  // lanes take parts of 32 elements in turn
    const long block = (long)(at / (w_block / 32)) * w_bytes;
    const int part = at % (w_block / 32);
    float4 v[8];
    float ones[2];  // sums of x, which offsets are multiplied by
#if COLUMNS == 1
    load_part(AT(x, 32 * at, COLUMN(0), i2, i3), p.x.nb[0], in_order, v, ones);
#endif
    UNROLLED for (int r = 0; r < ROWS; r++) {
      int q[8];  // decode the part of row r
      float s[2], o[2];
      unpack(ROW_OF(w, r) + block, part, q, s, o);
#ifdef w2_bytes
      int q2[8];
      float s2[2], o2[2];
      unpack(ROW_OF(w2, r) + block, part, q2, s2, o2);
#endif
      UNROLLED for (int c = 0; c < COLUMNS; c++) {
#if COLUMNS > 1
        load_part(AT(x, 32 * at, COLUMN(c), i2, i3), p.x.nb[0], in_order, v, ones);
#endif
        sums[r][c] += part_product(q, s, o, v, ones);
        WITH_GATE(sums2[r][c] += part_product(q2, s2, o2, v, ones);)
      }
    }
  }
  FINISH  // adds up sums of all lanes, stores them
}

//: row_product
// Weights of plain types (not in blocks), with any strides: four at a time where they and x lie in order.
#if defined(x_is_f32) && (defined(w_is_f32) || defined(w_is_f16) || defined(w_is_bf16))
#define FOURS 1
#ifdef w2_bytes
#define GATE_IN_ORDER IN_ORDER(w2)
#else
#define GATE_IN_ORDER true
#endif
DEVICE float4 load_four(GLOBAL const uchar* w) {
#if defined(w_is_f32)
  return *(GLOBAL const float4*)w;
#elif defined(w_is_f16)
  return float4(*(GLOBAL const half4*)w);
#else
  const ushort4 bits = *(GLOBAL const ushort4*)w;
  return float4(BITS_FLOAT((uint)bits.x << 16), BITS_FLOAT((uint)bits.y << 16), BITS_FLOAT((uint)bits.z << 16),
                BITS_FLOAT((uint)bits.w << 16));
#endif
}
#endif

KERNEL_HEAD {
  GROUP_WORK  // declares lane, first_row, last, first, i2, i3, w, sums; with a gate w2, sums2; with EXPERTS expert, known
  int start = 0;
#ifdef FOURS
  if (IN_ORDER(w) && GATE_IN_ORDER && IN_ORDER(x)) {  // four elements at a time
    start = p.w.ne[0] / 4 * 4;
    for (int k = 4 * lane; k < start; k += 128) {
      float4 v[COLUMNS];
      UNROLLED for (int c = 0; c < COLUMNS; c++) v[c] = *(GLOBAL const float4*)(ROW(x, COLUMN(c), i2, i3) + 4 * (long)k);
      UNROLLED for (int r = 0; r < ROWS; r++) {
        const float4 four = load_four(ROW_OF(w, r) + (long)k * w_bytes);
        UNROLLED for (int c = 0; c < COLUMNS; c++) sums[r][c] += dot(four, v[c]);
#ifdef w2_bytes
        const float4 four2 = load_four(ROW_OF(w2, r) + (long)k * w_bytes);
        UNROLLED for (int c = 0; c < COLUMNS; c++) sums2[r][c] += dot(four2, v[c]);
#endif
      }
    }
  }
#endif
  for (int k = start + lane; k < p.w.ne[0]; k += 32) {  // remaining elements, one by one
    UNROLLED for (int r = 0; r < ROWS; r++) {
      const float value = load_w(ROW_OF(w, r) + (long)k * p.w.nb[0]);
      WITH_GATE(const float value2 = load_w2(ROW_OF(w2, r) + (long)k * p.w2.nb[0]);)
      UNROLLED for (int c = 0; c < COLUMNS; c++) {
        const float from = load_x(AT(x, k, COLUMN(c), i2, i3));
        sums[r][c] += value * from;
        WITH_GATE(sums2[r][c] += value2 * from;)
      }
    }
  }
  FINISH  // adds up sums of all lanes, stores them
}
