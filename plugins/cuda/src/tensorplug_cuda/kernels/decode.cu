// Weights of blocks become 16-bit floats in order, once for a product that reads them several times.

//: decoded
// An item decodes a part of 32 elements, which are four quads. Items exchange quads in local memory, so that
// neighbours store neighbouring ones.
#define PARTS (w_block / 32)
// Where quad `i` of an item's part is kept: eight items write, and read, different banks.
#define KEPT(item, i) kept[4 * (item) + ((i) ^ (item) / 2 % 4)]
KERNEL_HEAD {
  LOCAL uint4 kept[4 * GROUP_SIZE];
  const uint first = GROUP_X * GROUP_SIZE, part = first + ITEM_X;
  if (part < p.count) {
    const uint parts = p.w.ne[0] / 32, row = part / parts, at = part % parts;
    UNFLATTEN_ROW(w, row, i1, i2, i3)
    float v[32];
    unpack_floats(ROW(w, i1, i2, i3) + (long)(at / PARTS) * w_bytes, at % PARTS, v);
    UNROLLED for (int i = 0; i < 4; i++) {
      const float* e = v + 8 * i;
      KEPT(ITEM_X, i) = make_uint4(pair(e[0], e[1]), pair(e[2], e[3]), pair(e[4], e[5]), pair(e[6], e[7]));
    }
  }
  LOCAL_BARRIER;
  uint4* to = (uint4*)(y_base + p.y.off) + 4 * (long)first;
  UNROLLED for (int i = 0; i < 4; i++) {
    const int quad = i * GROUP_SIZE + ITEM_X, item = quad / 4;
    if (first + item < p.count) to[quad] = KEPT(item, quad % 4);
  }
}
