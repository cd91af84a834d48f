// Panels of floats, and their products with rows of floats.

#define DEPTH 256
typedef GLOBAL const float* elements;
#define X_FROM(m, k0) (elements)X_ROW(m) + (k0)

// DEPTH elements of 32 rows of `w`.
typedef struct { float16 all[2 * DEPTH]; } panel;

// Elements k0 to k0 + depth of 16 rows, those of `half_`. Rows beyond the last are copies of it,
// whose results are not stored.
DEVICE void fill(LOCAL panel* to, int half_, bytes w, long step, int rows, int k0, int depth) {
  int k = 0;
  // Whole blocks: a part of 16 rows is decoded to vectors of 16 elements, which are turned to vectors of 16 rows.
  for (; k + 32 * PARTS <= depth; k += 32 * PARTS) {
    bytes b = w + (long)((k0 + k) / (32 * PARTS)) * BLOCK_BYTES;
    head h[16];
    for (int r = 0; r < 16; r++) h[r] = begin(b + min(r, rows - 1) * step);
    for (int j = 0; j < PARTS; j++) {
      float16 lo[16], hi[16];
      for (int r = 0; r < 16; r++) part(b + min(r, rows - 1) * step, &h[r], j, &lo[r], &hi[r]);
      turn(lo);
      turn(hi);
      EVERY(i, 16) to->all[2 * (k + 32 * j + i) + half_] = lo[i];
      EVERY(i, 16) to->all[2 * (k + 32 * j + 16 + i) + half_] = hi[i];
    }
  }
  // The end of the rows, element by element.
  for (; k < depth; k++) {
    float rest[16];
    for (int r = 0; r < 16; r++) rest[r] = REST_AT(w + min(r, rows - 1) * step, k0 + k);
    to->all[2 * k + half_] = vload16(0, rest);
  }
}

// Adds element k of row `x` times those of the panel.
#define STEP 1
#define TAKE(panel, k) const float16 left = (panel).all[2 * (k)], right = (panel).all[2 * (k) + 1];
#define ADD(k, x, a, b) a = fma((float16)((x)[k]), left, a); b = fma((float16)((x)[k]), right, b);
