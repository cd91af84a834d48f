// What products of matrices do before they multiply.

//: expert_lists
// Which pairs (i, t) of `ids`, as i + t * ne[1] of `y`, each expert serves: where its list starts,
// for each expert and for the end, then the lists. The item after the last expert clears the rows
// of `y` whose id names none.
KERNEL_HEAD {
  const int expert = FLAT_INDEX;
  if (expert > p.experts) return;
  const int used = p.ids.ne[0], tokens = p.ids.ne[1];
  GLOBAL int* lists = (GLOBAL int*)(lists_base + p.lists.off);
  int start = 0;  // pairs of the experts before this one
  for (int t = 0; t < tokens; t++) {
    for (int i = 0; i < used; i++) {
      const int id = *(GLOBAL const int*)AT(ids, i, t, 0, 0);
      start += id >= 0 && id < expert;
    }
  }
  lists[expert] = start;
  int next = p.experts + 1 + start;  // the list of this expert's pairs
  for (int t = 0; t < tokens; t++) {
    for (int i = 0; i < used; i++) {
      const int id = *(GLOBAL const int*)AT(ids, i, t, 0, 0);
      if (expert < p.experts) {
        if (id == expert) lists[next++] = i + t * used;
      } else if (id < 0 || id >= p.experts) {  // the last item clears rows without an expert
        GLOBAL float* y = (GLOBAL float*)ROW(y, i, t, 0);
        for (int k = 0; k < p.y.ne[0]; k++) y[k] = 0.0f;
      }
    }
  }
}

//: quantise
// Records of 16 signed bytes, their scale, and their sum times the scale. What is not finite makes
// the scale NaN.
KERNEL_HEAD {
  const uint flat = FLAT_INDEX;
  if (flat >= p.count) return;
  const uint parts = (uint)p.x.ne[0] / 16u;
  UNFLATTEN_ROW(x, flat / parts, i1, i2, i3)
  GLOBAL const uchar* x = AT(x, 16 * (long)(flat % parts), i1, i2, i3);
  float values[16], largest = 0.0f, odd = 0.0f;  // odd: NaN where a value is not finite
  for (int i = 0; i < 16; i++) {
    values[i] = load_x(x + i * p.x.nb[0]);
    largest = fmax(largest, fabs(values[i]));
    odd += values[i] * 0.0f;
  }
  // Numbers so small that their inverse is none count as 0.
  const float inverse = largest > 1e-30f ? 127.0f / largest : 0.0f;
  GLOBAL uchar* record = y_base + p.y.off + 24 * (long)flat;
  int sum = 0;  // round to bytes, and add them up
  for (int i = 0; i < 16; i++) {
    const float scaled = values[i] * inverse;
    const int code = NEAREST(as_int, scaled);
    ((GLOBAL char*)record)[i] = (char)code;
    sum += code;
  }
  const float scale = largest / 127.0f + odd;
  store_f32(record + 16, scale);
  store_f32(record + 20, scale * sum);
}
