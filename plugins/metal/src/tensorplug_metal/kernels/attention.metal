// Attention on simdgroups; places and ends of rows are those of the shared text.

//: attend
// Few rows: a simdgroup takes AT_ONCE positions, a lane four elements of every 128; the simdgroups of a
// group take turns at positions, and add up what they found at last.
#define SIMDGROUPS 4
#define AT_ONCE 8
#define KEYS ((DK + 127) / 128)
#define VALUES ((DV + 127) / 128)

#define IN_ORDER(role) \
  (p.role.nb[0] == role##_bytes && \
   ((p.role.off | p.role.nb[1] | p.role.nb[2] | p.role.nb[3]) & (4 * role##_bytes - 1)) == 0)
#define FOUR_f32(row, e) (*(GLOBAL const float4*)((row) + 4 * (e)))
#define FOUR_f16(row, e) float4(*(GLOBAL const half4*)((row) + 2 * (e)))
#define FOUR_q8_0(row, e) eight_bits((row) + (e) / 32 * 34, (e) % 32)
DEVICE float4 eight_bits(GLOBAL const uchar* block, int i) {
  GLOBAL const ushort* codes = (GLOBAL const ushort*)(block + 2 + i);
  return load_f16(block) * float4(as_type<char4>((uint)codes[0] | (uint)codes[1] << 16));
}
#if defined(k_is_f32)
#define K_FOUR FOUR_f32
#define K_READY IN_ORDER(k)
#elif defined(k_is_f16)
#define K_FOUR FOUR_f16
#define K_READY IN_ORDER(k)
#elif defined(k_is_q8_0)
#define K_FOUR FOUR_q8_0
#define K_READY true
#endif
#if defined(v_is_f32)
#define V_FOUR FOUR_f32
#define V_READY IN_ORDER(v)
#elif defined(v_is_f16)
#define V_FOUR FOUR_f16
#define V_READY IN_ORDER(v)
#elif defined(v_is_q8_0)
#define V_FOUR FOUR_q8_0
#define V_READY true
#endif
// Up to four elements one by one, zeros beyond the last.
#define UP_TO_FOUR(ELEMENT, row, e, size) \
  float4((e) < (size) ? ELEMENT(row, (e)) : 0.0f, (e) + 1 < (size) ? ELEMENT(row, (e) + 1) : 0.0f, \
         (e) + 2 < (size) ? ELEMENT(row, (e) + 2) : 0.0f, (e) + 3 < (size) ? ELEMENT(row, (e) + 3) : 0.0f)
#ifdef K_FOUR
#define KEY(row, e) (k_ready && (e) + 4 <= DK ? K_FOUR(row, e) : UP_TO_FOUR(K_ELEMENT, row, e, DK))
#else
#define KEY(row, e) UP_TO_FOUR(K_ELEMENT, row, e, DK)
#endif
#ifdef V_FOUR
#define VALUE(row, e) (v_ready && (e) + 4 <= DV ? V_FOUR(row, e) : UP_TO_FOUR(V_ELEMENT, row, e, DV))
#else
#define VALUE(row, e) UP_TO_FOUR(V_ELEMENT, row, e, DV)
#endif

KERNEL_HEAD {
  LOCAL float tops[SIMDGROUPS][ROWS];
  LOCAL float totals[SIMDGROUPS][ROWS];
  LOCAL float found[SIMDGROUPS][ROWS][DV];
  GROUP_WORK  // declares batch, kv_head, kv_batch, group, tile, split, rows, start, stop
  const int simdgroup = ITEM_X / 32, lane = ITEM_X % 32;
  // Whether the layout lets a lane read four elements at once.
#ifdef K_FOUR
  const bool k_ready = K_READY;
#endif
#ifdef V_FOUR
  const bool v_ready = V_READY;
#endif
  // Queries times the scale, and the results so far: values, largest scores, sums of powers.
  float4 q[ROWS][KEYS], y[ROWS][VALUES];
  float top[ROWS], total[ROWS];
  UNROLLED for (int r = 0; r < ROWS; r++) {
    top[r] = LOWEST;
    total[r] = 0.0f;
    UNROLLED for (int c = 0; c < VALUES; c++) y[r][c] = float4(0.0f);
    GLOBAL const uchar* from = ROW(q, TOKEN(r), HEAD(r), batch);
    UNROLLED for (int c = 0; c < KEYS; c++) {
      const int e = 128 * c + 4 * lane;
#define Q_ELEMENT(row, i) (p.scale * load_q((row) + (i) * p.q.nb[0]))
      q[r][c] = UP_TO_FOUR(Q_ELEMENT, from, e, DK);
    }
  }
  for (int first = start + simdgroup * AT_ONCE; first < stop; first += SIMDGROUPS * AT_ONCE) {
    // Masks, and scores of the positions that a row sees: products of queries and keys.
    float scores[ROWS][AT_ONCE];
    bool visible[AT_ONCE];
    UNROLLED for (int i = 0; i < AT_ONCE; i++) {
      const int at = first + i;
      visible[i] = false;
      UNROLLED for (int r = 0; r < ROWS; r++) {
        scores[r][i] = at < stop ? ADDED(r, at) : MINUS_INFINITY;
        visible[i] = visible[i] || scores[r][i] != MINUS_INFINITY;
      }
      if (!visible[i]) continue;
      GLOBAL const uchar* row = ROW(k, at, kv_head, kv_batch);
      float4 key[KEYS];
      UNROLLED for (int c = 0; c < KEYS; c++) key[c] = KEY(row, 128 * c + 4 * lane);
      UNROLLED for (int r = 0; r < ROWS; r++) {
        float part = 0.0f;
        UNROLLED for (int c = 0; c < KEYS; c++) part += dot(q[r][c], key[c]);
        const float score = simd_sum(part);
        scores[r][i] += CAPPED(score);
      }
    }
    // The running maximum and sum; results shrink where the maximum has grown.
    UNROLLED for (int r = 0; r < ROWS; r++) {
      // A maximum without NaN will do: the sum has it.
      float most = top[r];
      UNROLLED for (int i = 0; i < AT_ONCE; i++) most = fmax(most, scores[r][i]);
      const float shrink = exp(top[r] - most);
      top[r] = most;
      total[r] *= shrink;
      UNROLLED for (int i = 0; i < AT_ONCE; i++) {
        scores[r][i] = exp(scores[r][i] - most);
        total[r] += scores[r][i];
      }
      UNROLLED for (int c = 0; c < VALUES; c++) y[r][c] *= shrink;
    }
    // Powers times values.
    UNROLLED for (int i = 0; i < AT_ONCE; i++) {
      if (!visible[i]) continue;
      GLOBAL const uchar* row = ROW(v, first + i, kv_head, kv_batch);
      UNROLLED for (int c = 0; c < VALUES; c++) {
        const float4 value = VALUE(row, 128 * c + 4 * lane);
        UNROLLED for (int r = 0; r < ROWS; r++) y[r][c] += scores[r][i] * value;
      }
    }
  }
  // The simdgroups' results are added, each shrunk to the largest maximum.
  UNROLLED for (int r = 0; r < ROWS; r++) {
    if (lane == 0) {
      tops[simdgroup][r] = top[r];
      totals[simdgroup][r] = total[r];
    }
    UNROLLED for (int c = 0; c < VALUES; c++)
      for (int i = 0; i < 4; i++)
        if (128 * c + 4 * lane + i < DV) found[simdgroup][r][128 * c + 4 * lane + i] = y[r][c][i];
  }
  LOCAL_BARRIER;
  UNROLLED for (int r = 0; r < ROWS; r++) {
    float most = tops[0][r], sum = 0.0f, shares[SIMDGROUPS];
    for (int s = 1; s < SIMDGROUPS; s++) most = fmax(most, tops[s][r]);
    for (int s = 0; s < SIMDGROUPS; s++) {
      shares[s] = exp(tops[s][r] - most);
      sum += totals[s][r] * shares[s];
    }
    END_OF_ROW(r, most, sum)  // declares to, factor, stored
    if (!stored) continue;
    if (p.splits > 1 && ITEM_X == 0) {
      to[-2] = most;
      to[-1] = sum;
    }
    for (int d = ITEM_X; d < DV; d += 32 * SIMDGROUPS) {
      float value = 0.0f;
      for (int s = 0; s < SIMDGROUPS; s++) value += found[s][r][d] * shares[s];
      to[d] = value * factor;
    }
  }
}

//: attend_tiles
// Many rows: a simdgroup has eight of them, and matrices of 8 * 8 of all their values. A group's
// simdgroups share tiles of 32 positions, DEPTH elements of which are in local memory at a time.
#define SIMDGROUPS (ROWS / 8)
#define DEPTH 32
#define VALUES ((DV + 7) / 8)
#define WIDTH ((DK + 7) / 8 * 8)
#define ROWWISE(r) UNROLLED for (int r = 0; r < 8; r++)

// Fills `kept` with DEPTH elements from `d` on of 32 positions from `first` on, zeros from `stop` and `size` on. Reads
// kv_head and kv_batch, too.
#define KEEP(ELEMENT, name, size) \
  LOCAL_BARRIER; \
  for (int i = ITEM_X; i < 32 * DEPTH; i += 32 * SIMDGROUPS) { \
    const int at = first + i / DEPTH, e = d + i % DEPTH; \
    float value = 0.0f; \
    if (at < stop && e < (size)) value = ELEMENT(ROW(name, at, kv_head, kv_batch), e); \
    kept[i] = value; \
  } \
  LOCAL_BARRIER;

KERNEL_HEAD {
  LOCAL float q[ROWS * WIDTH];
  LOCAL float kept[32 * DEPTH];
  LOCAL float powers[ROWS * 32];
  LOCAL float shrinks[SIMDGROUPS * 64];
  LOCAL int seen[SIMDGROUPS];
  GROUP_WORK  // declares batch, kv_head, kv_batch, group, tile, split, rows, start, stop
  const int simdgroup = ITEM_X / 32, lane = ITEM_X % 32;
  for (int i = ITEM_X; i < ROWS * WIDTH; i += 32 * SIMDGROUPS) {  // queries times the scale
    const int r = i / WIDTH, e = i % WIDTH;
    q[i] = e < DK ? p.scale * load_q(AT(q, e, TOKEN(r), HEAD(r), batch)) : 0.0f;
  }
  // The parts of local memory that only this simdgroup uses.
  const int own = 8 * simdgroup;
  LOCAL_POINTER float* mine = powers + own * 32;
  LOCAL_POINTER float* diagonal = shrinks + 64 * simdgroup;
  for (int i = lane; i < 64; i += 32) diagonal[i] = 0.0f;
  simdgroup_float8x8 y[VALUES];
  UNROLLED for (int c = 0; c < VALUES; c++) y[c] = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
  float top[8], total[8];
  ROWWISE(r) {
    top[r] = LOWEST;
    total[r] = 0.0f;
  }
  for (int first = start; first < stop; first += 32) {
    // What masks add. Positions that no row of the group sees are left out.
    float added[8];
    bool visible = false;
    ROWWISE(r) {
      added[r] = first + lane < stop ? ADDED(own + r, first + lane) : MINUS_INFINITY;
      visible = visible || added[r] != MINUS_INFINITY;
    }
    const bool any = simd_any(visible);
    LOCAL_BARRIER;
    if (lane == 0) seen[simdgroup] = any;
    LOCAL_BARRIER;
    int all = 0;
    for (int s = 0; s < SIMDGROUPS; s++) all |= seen[s];
    if (!all) continue;
    // Scores: products of queries and keys.
    simdgroup_float8x8 scores[4];
    UNROLLED for (int b = 0; b < 4; b++) scores[b] = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
    for (int d = 0; d < WIDTH; d += DEPTH) {
      KEEP(K_ELEMENT, k, DK)
      for (int e = 0; e < DEPTH && d + e < WIDTH; e += 8) {
        simdgroup_float8x8 rows_of_q, keys;
        simdgroup_load(rows_of_q, q + own * WIDTH + d + e, WIDTH);
        UNROLLED for (int b = 0; b < 4; b++) {
          simdgroup_load(keys, kept + 8 * b * DEPTH + e, DEPTH, ulong2(0, 0), true);
          simdgroup_multiply_accumulate(scores[b], rows_of_q, keys, scores[b]);
        }
      }
    }
    UNROLLED for (int b = 0; b < 4; b++) simdgroup_store(scores[b], mine + 8 * b, 32);
    simdgroup_barrier(mem_flags::mem_threadgroup);
    // The running maximum and sum; powers in the place of scores, and by how much results shrink.
    ROWWISE(r) {
      const float score = CAPPED(mine[32 * r + lane]) + added[r];
      // A maximum without NaN will do: the sum has it.
      const float most = fmax(top[r], simd_max(score == score ? score : LOWEST));
      const float shrink = exp(top[r] - most), power = exp(score - most);
      top[r] = most;
      total[r] = total[r] * shrink + power;
      mine[32 * r + lane] = power;
      if (lane == 0) diagonal[9 * r] = shrink;
    }
    simdgroup_barrier(mem_flags::mem_threadgroup);
    // Results shrink by a product with a diagonal matrix; then powers times values.
    simdgroup_float8x8 less, share[4];
    simdgroup_load(less, diagonal, 8);
    UNROLLED for (int b = 0; b < 4; b++) simdgroup_load(share[b], mine + 8 * b, 32);
    UNROLLED for (int c = 0; c < VALUES; c++) simdgroup_multiply(y[c], less, y[c]);
    UNROLLED for (int d = 0; d < DV; d += DEPTH) {
      KEEP(V_ELEMENT, v, DV)
      UNROLLED for (int c = 0; c < DEPTH / 8; c++) {
        UNROLLED for (int b = 0; b < 4; b++) {
          if (d / 8 + c < VALUES) {
            simdgroup_float8x8 values;
            simdgroup_load(values, kept + 8 * b * DEPTH + 8 * c, DEPTH);
            simdgroup_multiply_accumulate(y[d / 8 + c], share[b], values, y[d / 8 + c]);
          }
        }
      }
    }
  }
  // A row after the other, since its end is the same for all of its values.
  simdgroup_barrier(mem_flags::mem_threadgroup);
  UNROLLED for (int c = 0; c < VALUES; c++) {
    simdgroup_store(y[c], mine, 8);
    simdgroup_barrier(mem_flags::mem_threadgroup);
    ROWWISE(r) {
      float sum = simd_sum(total[r]);
      END_OF_ROW(own + r, top[r], sum)  // declares to, factor, stored
      if (stored && p.splits > 1 && lane == 0 && c == 0) {
        to[-2] = top[r];
        to[-1] = sum;
      }
      if (stored && lane < 8 && 8 * c + lane < DV) to[8 * c + lane] = mine[8 * r + lane] * factor;
    }
    simdgroup_barrier(mem_flags::mem_threadgroup);
  }
}
