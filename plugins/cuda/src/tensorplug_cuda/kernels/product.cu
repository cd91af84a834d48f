// Products of matrices of any types and layouts: warps for rows, and tiles of rows that have one expert.

// Element `k` of the row of `w`, or of `w2` of the same type, at `row`.
#if w_block > 1
#define VALUE_AT(row, k, name) decode_w((row) + (long)((k) / w_block) * p.name.nb[0], (k) % w_block)
#else
#define VALUE_AT(row, k, name) load_w((row) + (long)(k) * p.name.nb[0])
#endif
#define W_AT(row, k) VALUE_AT(row, k, w)
#define W2_AT(row, k) VALUE_AT(row, k, w2)

// In products of experts, which rows of y a tile has: numbers[j] counts the slots of all tokens.
#define SLOT(j) (numbers[j] % p.y.ne[1])
#define TOKEN(j) (numbers[j] / p.y.ne[1])
DEVICE void take_numbers(int* numbers, const int* from, int count, int items) {
  for (int i = ITEM_X; i < count; i += items) numbers[i] = from[i];
  LOCAL_BARRIER;
}

//: warp_product
// A warp for each row of w and COLUMNS rows of x, or EXPERTS: for each row of one expert's matrix and
// one row of x. 16 bytes of w at a time where elements lie in order.
#if defined(x_is_f32) && (defined(w_is_f32) || defined(w_is_f16) || defined(w_is_bf16))
#define AT_ONCE (16 / w_bytes)
#define IS_QUAD(pointer, role) ((ulong)(pointer) % 16 == 0 && p.role.nb[0] == role##_bytes)
// The elements of 16 bytes of w.
DEVICE void quad_of(const uchar* w, float* to) {
  const uint4 quad = *(const uint4*)w;
  const uint words[4] = {quad.x, quad.y, quad.z, quad.w};
  UNROLLED for (int i = 0; i < 4; i++) {
#if defined(w_is_f32)
    to[i] = BITS_FLOAT(words[i]);
#else
#if defined(w_is_f16)
    const float2 both = two_halves(words[i]);
#else
    const float2 both = two_brains(words[i]);
#endif
    to[2 * i] = both.x;
    to[2 * i + 1] = both.y;
#endif
  }
}
#endif
KERNEL_HEAD {
  const int lane = ITEM_X % 32, i0 = GROUP_X * (LOCAL_X / 32) + ITEM_X / 32, row = i0;
  if (i0 >= p.w.ne[1]) return;
  PLACE_COLUMNS  // declares first, i2, i3; with EXPERTS expert
  const uchar* w = MATRIX(w);
  float sums[COLUMNS];
  for (int c = 0; c < COLUMNS; c++) sums[c] = 0.0f;
  WITH_GATE(const uchar* w2 = MATRIX(w2); float sums2[COLUMNS];)
  WITH_GATE(for (int c = 0; c < COLUMNS; c++) sums2[c] = 0.0f;)
  int start = 0;
#ifdef AT_ONCE
#define ADD_FOUR(sum, a) sum += (a)[0] * b.x + (a)[1] * b.y + ((a)[2] * b.z + (a)[3] * b.w);
  // Rows of x are alike: the first and the step between two tell of all.
  if (IS_QUAD(w, w) WITH_GATE(&& IS_QUAD(w2, w2)) && IS_QUAD(ROW(x, 0, i2, i3), x) && p.x.nb[1] % 16 == 0) {
    start = p.w.ne[0] / AT_ONCE * AT_ONCE;
    for (int k = AT_ONCE * lane; k < start; k += AT_ONCE * 32) {
      float a[AT_ONCE];
      quad_of(w + (long)k * w_bytes, a);
      WITH_GATE(float a2[AT_ONCE]; quad_of(w2 + (long)k * w_bytes, a2);)
      for (int c = 0; c < COLUMNS; c++) {
        const float4* four = (const float4*)(ROW(x, COLUMN(c), i2, i3) + 4 * (long)k);
        UNROLLED for (int i = 0; i < AT_ONCE / 4; i++) {
          const float4 b = four[i];
          ADD_FOUR(sums[c], a + 4 * i)
          WITH_GATE(ADD_FOUR(sums2[c], a2 + 4 * i))
        }
      }
    }
  }
#endif
  for (int k = start + lane; k < p.w.ne[0]; k += 32) {  // remaining elements, one by one
    const float value = W_AT(w, k);
    WITH_GATE(const float value2 = W2_AT(w2, k);)
    for (int c = 0; c < COLUMNS; c++) {
      const float other = load_x(AT(x, k, COLUMN(c), i2, i3));
      sums[c] += value * other;
      WITH_GATE(sums2[c] += value2 * other;)
    }
  }
  FINISH(32)  // adds up sums of 32 items, stores them
}

//: sorted_by_expert
// A group for each expert, and one for ids that name none: the numbers of its rows of y in order,
// which begin behind those of experts before it, and the tiles of up to WIDTH of them. An expert's
// tiles have places of their own, so no group has to know how many those before it fill: there are
// at least as many as START / WIDTH + the number of experts before.
KERNEL_HEAD {
  LOCAL int before[GROUP_SIZE], mine[GROUP_SIZE];
  const int expert = GROUP_X, experts = p.experts, rows = p.ids.ne[0] * p.ids.ne[1];
  const int each = (rows + GROUP_SIZE - 1) / GROUP_SIZE, first = ITEM_X * each;
  const int last = first + each < rows ? first + each : rows;
  int lower = 0, equal = 0;  // count this item's rows of experts before, and of this one
  for (int row = first; row < last; row++) {
    const int id = *(const int*)AT(ids, row % p.ids.ne[0], row / p.ids.ne[0], 0, 0);
    const int known = id >= 0 && id < experts ? id : experts;
    lower += known < expert;
    equal += known == expert;
  }
  before[ITEM_X] = lower;
  mine[ITEM_X] = equal;
  LOCAL_BARRIER;
  int start = 0, count = 0, place = 0;  // the expert's first row and their number; this item's place
  for (int i = 0; i < GROUP_SIZE; i++) {
    start += before[i];
    if (i == ITEM_X) place = count;
    count += mine[i];
  }
  int* to = (int*)ROW(rows, 0, 0, 0) + start + place;
  for (int row = first; row < last; row++) {  // list the expert's rows in order
    const int id = *(const int*)AT(ids, row % p.ids.ne[0], row / p.ids.ne[0], 0, 0);
    if ((id >= 0 && id < experts ? id : experts) == expert) *to++ = row;
  }
  const int tile = start / WIDTH + expert;  // the expert's tiles; those left over are empty
  const int next = expert < experts ? (start + count) / WIDTH + expert + 1 : p.tiles.ne[1];
  for (int i = ITEM_X; tile + i < next; i += GROUP_SIZE) {
    const int left = count - i * WIDTH;
    *(int4*)ROW(tiles, tile + i, 0, 0) = make_int4(expert, start + i * WIDTH, left > 0 ? left : 0, 0);
  }
}

//: expert_tiles
// A group of 256 items for SIDE rows of w and up to WIDTH rows of x that have one expert; tiles without rows have 0
// `columns`. Each item has 4 * WIDTH / 16 results, for rows `across` + 16 i and columns `down` + 16 j. DEPTH elements
// at a time pass through local memory; neighbours load neighbouring elements of a row.
#define SIDE 64
#define DEPTH 16
#define W_ROW(i) ROW(w, row + (i), expert, 0)
#define X_ROW(j) ROW(x, SLOT(j) % p.x.ne[1], TOKEN(j), 0)
#define Y_ROW(j) ROW(y, SLOT(j), TOKEN(j), 0)
KERNEL_HEAD {
  LOCAL int numbers[WIDTH];
  LOCAL float ws[DEPTH][SIDE + 4], xs[DEPTH][WIDTH + 4];
  const int4 tile = *(const int4*)ROW(tiles, GROUP_Y, 0, 0);
  const int expert = tile.x, columns = tile.z, row = GROUP_X * SIDE;
  if (columns == 0) return;
  take_numbers(numbers, (const int*)ROW(rows, 0, 0, 0) + tile.y, min(columns, WIDTH), 256);
  const int depth = expert < p.w.ne[2] ? p.x.ne[0] : 0;
  const int across = ITEM_X % 16, down = ITEM_X / 16;
  float sums[WIDTH / 16][4];
  for (int j = 0; j < WIDTH / 16; j++)
    for (int i = 0; i < 4; i++) sums[j][i] = 0.0f;
  for (int start = 0; start < depth; start += DEPTH) {
    const int k = start + across, inside = k < depth;
    for (int i = down; i < SIDE; i += 16) {  // DEPTH elements of both sides
      float value = 0.0f;
      if (inside && row + i < p.w.ne[1]) value = W_AT(W_ROW(i), k);
      ws[across][i] = value;
    }
    for (int j = down; j < WIDTH; j += 16) {
      float value = 0.0f;
      if (inside && j < columns) value = load_x(X_ROW(j) + (long)k * p.x.nb[0]);
      xs[across][j] = value;
    }
    LOCAL_BARRIER;
    for (int l = 0; l < DEPTH; l++) {  // their products
      float a[4];
      for (int i = 0; i < 4; i++) a[i] = ws[l][across + 16 * i];
      for (int j = 0; j < WIDTH / 16; j++) {
        const float b = xs[l][down + 16 * j];
        for (int i = 0; i < 4; i++) sums[j][i] += a[i] * b;
      }
    }
    LOCAL_BARRIER;
  }
  for (int j = 0; j < WIDTH / 16; j++)  // store the results that are within y
    for (int i = 0; i < 4; i++)
      if (row + across + 16 * i < p.y.ne[0] && down + 16 * j < columns)
        store_f32(Y_ROW(down + 16 * j) + (long)(row + across + 16 * i) * p.y.nb[0], sums[j][i]);
}
