// Products of matrices, one item for each result: any types, any layouts.

#define UNFLATTEN_Y \
  const uint flat = FLAT_INDEX; \
  if (flat >= p.count) return; \
  const int i0 = (int)(flat % (uint)p.y.ne[0]); \
  const uint row_ = flat / (uint)p.y.ne[0]; \
  const int i1 = (int)(row_ % (uint)p.y.ne[1]); \
  const uint matrix_ = row_ / (uint)p.y.ne[1]; \
  const int i2 = (int)(matrix_ % (uint)p.y.ne[2]); \
  const int i3 = (int)(matrix_ / (uint)p.y.ne[2]);

// Element `k` of the row of `w` at `row`.
#if w_block > 1
#define W_AT(row, k) decode_w((row) + (long)((k) / w_block) * p.w.nb[0], (k) % w_block)
#else
#define W_AT(row, k) load_w((row) + (long)(k) * p.w.nb[0])
#endif

//: product
KERNEL_HEAD {
  UNFLATTEN_Y
  GLOBAL const uchar* w = ROW(w, i0, i2 / p.repeat2, i3 / p.repeat3);
  GLOBAL const uchar* x = ROW(x, i1, i2, i3);
  float sum = 0.0f;
  for (int k = 0; k < p.x.ne[0]; k++) sum += W_AT(w, k) * load_x(x + (long)k * p.x.nb[0]);
  store_f32(AT(y, i0, i1, i2, i3), sum);
}

//: expert_product
// Rows of tokens whose id names no expert get 0.
KERNEL_HEAD {
  UNFLATTEN_Y
  const int expert = *(GLOBAL const int*)AT(ids, i1, i2, 0, 0);
  float sum = 0.0f;
  if (expert >= 0 && expert < p.w.ne[2]) {
    GLOBAL const uchar* w = ROW(w, i0, expert, 0);
    GLOBAL const uchar* x = ROW(x, i1 % p.x.ne[1], i2, 0);
    for (int k = 0; k < p.x.ne[0]; k++) sum += W_AT(w, k) * load_x(x + (long)k * p.x.nb[0]);
  }
  store_f32(AT(y, i0, i1, i2, i3), sum);
}

//: expert_lists
// Which pairs (i, t) of `ids`, as i + t * ne[1] of `y`, each expert serves: where its list starts,
// for each expert and for the end, then the lists. The item after the last expert clears the rows
// of `y` whose id names none.
KERNEL_HEAD {
  const int expert = FLAT_INDEX;
  if (expert > p.experts) return;
  const int used = p.ids.ne[0], tokens = p.ids.ne[1];
  GLOBAL int* lists = (GLOBAL int*)(lists_base + p.lists.off);
  int start = 0;
  for (int t = 0; t < tokens; t++) {
    for (int i = 0; i < used; i++) {
      const int id = *(GLOBAL const int*)AT(ids, i, t, 0, 0);
      start += id >= 0 && id < expert;
    }
  }
  lists[expert] = start;
  int next = p.experts + 1 + start;
  for (int t = 0; t < tokens; t++) {
    for (int i = 0; i < used; i++) {
      const int id = *(GLOBAL const int*)AT(ids, i, t, 0, 0);
      if (expert < p.experts) {
        if (id == expert) lists[next++] = i + t * used;
      } else if (id < 0 || id >= p.experts) {
        GLOBAL float* y = (GLOBAL float*)ROW(y, i, t, 0);
        for (int k = 0; k < p.y.ne[0]; k++) y[k] = 0.0f;
      }
    }
  }
}

//: outer_product
KERNEL_HEAD {
  UNFLATTEN_Y
  GLOBAL const uchar* w = ROW(w, 0, i2 / p.repeat2, i3 / p.repeat3);
  GLOBAL const uchar* x = AT(x, i1, 0, i2, i3);
  float sum = 0.0f;
  for (int k = 0; k < p.x.ne[1]; k++) {
    sum += W_AT(w + k * p.w.nb[1], i0) * load_x(x + k * p.x.nb[1]);
  }
  store_f32(AT(y, i0, i1, i2, i3), sum);
}

//: pack
// Rows of f32 without gaps.
KERNEL_HEAD {
  UNFLATTEN_Y
  store_f32(y_base + p.y.off + 4 * (long)flat, load_x(AT(x, i0, i1, i2, i3)));
}

//: quantise
// Records of 16 signed bytes, their scale, and their sum times the scale. What is not finite makes
// the scale NaN.
KERNEL_HEAD {
  const uint flat = FLAT_INDEX;
  if (flat >= p.count) return;
  const uint parts = (uint)p.x.ne[0] / 16u, row = flat / parts, matrix = row / (uint)p.x.ne[1];
  const int i1 = (int)(row % (uint)p.x.ne[1]);
  const int i2 = (int)(matrix % (uint)p.x.ne[2]), i3 = (int)(matrix / (uint)p.x.ne[2]);
  GLOBAL const uchar* x = AT(x, 16 * (long)(flat % parts), i1, i2, i3);
  float values[16], largest = 0.0f, odd = 0.0f;
  for (int i = 0; i < 16; i++) {
    values[i] = load_x(x + i * p.x.nb[0]);
    largest = fmax(largest, fabs(values[i]));
    odd += values[i] * 0.0f;
  }
  // Numbers so small that their inverse is none count as 0.
  const float inverse = largest > 1e-30f ? 127.0f / largest : 0.0f;
  GLOBAL uchar* record = y_base + p.y.off + 24 * (long)flat;
  int sum = 0;
  for (int i = 0; i < 16; i++) {
    const char code = convert_char_sat_rte(values[i] * inverse);
    ((GLOBAL char*)record)[i] = code;
    sum += code;
  }
  const float scale = largest / 127.0f + odd;
  store_f32(record + 16, scale);
  store_f32(record + 20, scale * sum);
}
