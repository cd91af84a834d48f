// Tensor cores: matrices of 16-bit floats (bf16 if BRAIN) whose elements the items of a warp share. Two
// elements are a word, eight a quad, and rows of matrices lie in the memory of a group.

#ifdef BRAIN
#define STORE16 store_bf16
#define LOAD16 load_bf16
#define KIND "bf16"
#else
#define STORE16 store_f16
#define LOAD16 load_f16
#define KIND "f16"
#endif
#define UP_TO_16(length) (((length) + 15) / 16 * 16)
// Quads of a row of a multiple of 16 elements: an odd number, so that eight rows are in different banks.
#define PITCH(length) ((length) / 8 + 1)

#ifndef TENSORPLUG_EMULATED
#define LOCAL_ADDRESS(pointer) ((uint)__cvta_generic_to_shared(pointer))
// c += a b for 16 x 16 elements of a and 16 x 8 of b: item `lane` of a warp has rows lane / 4 and
// lane / 4 + 8 of a and c, and column lane / 4 of b; of c it has columns lane % 4 * 2 and the next one.
DEVICE void multiply(float* c, const uint* a, const uint* b) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32." KIND "." KIND ".f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
// Words lane % 4 of rows lane / 4 of four matrices of 8 x 8; item 8 * i + j has row j of matrix i.
DEVICE void four_matrices(uint* to, const uint4* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
      : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3]) : "r"(LOCAL_ADDRESS(row)) : "memory");
}
// The same of the four matrices with rows for columns.
DEVICE void four_transposed(uint* to, const uint4* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
      : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3]) : "r"(LOCAL_ADDRESS(row)) : "memory");
}
DEVICE uint pair(float first, float second) {
  uint both;
  asm("cvt.rn." KIND "x2.f32 %0, %1, %2;" : "=r"(both) : "f"(second), "f"(first));
  return both;
}
// 2 to the power x, within two units of the last place; 0 where that is too small for a normal number.
DEVICE float power_of_two(float x) {
  float power;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(x));
  return power;
}
// The bytes are there for whoever comes to a barrier after all items had COPIED.
DEVICE void copy_quad(uint4* to, const uchar* from) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;"
      :: "r"(LOCAL_ADDRESS(to)), "l"(__cvta_generic_to_global(from)) : "memory");
}
// A quad of zeros instead where it is not `there`; then `from` is not read.
DEVICE void copy_quad_or_zero(int there, uint4* to, const uchar* from) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
      :: "r"(LOCAL_ADDRESS(to)), "l"(__cvta_generic_to_global(from)), "r"(there ? 16 : 0) : "memory");
}
// A kernel with COPY_QUAD has COPIES first, which declares nothing here, and COPIED before the bytes are read.
#define COPIES
#define COPY_QUAD(to, from) copy_quad(to, from)
#define COPY_QUAD_OR_ZERO(there, to, from) copy_quad_or_zero(there, to, from)
#define COPIED asm volatile("cp.async.wait_all;" ::: "memory")
#else
// The emulator has no such cores: items tell each other what they have.
DEVICE float two_products(uint a, uint b) {
  return LOAD16((const uchar*)&a) * LOAD16((const uchar*)&b) + LOAD16((const uchar*)&a + 2) * LOAD16((const uchar*)&b + 2);
}
DEVICE void multiply(float* c, const uint* a, const uint* b) {
  const int lane = ITEM_X % 32, mine = lane / 4 * 4, column = lane % 4 * 8;
  for (int from = 0; from < 4; from++) {
    uint theirs[4];
    for (int i = 0; i < 4; i++) theirs[i] = __shfl_sync(WHOLE_WARP, a[i], mine + from);
    for (int j = 0; j < 2; j++)
      for (int i = 0; i < 2; i++) {
        const uint other = __shfl_sync(WHOLE_WARP, b[i], column + 4 * j + from);
        c[j] += two_products(theirs[2 * i], other);
        c[j + 2] += two_products(theirs[2 * i + 1], other);
      }
  }
}
DEVICE void four_matrices(uint* to, const uint4* row) {
  const int lane = ITEM_X % 32;
  for (int i = 0; i < 4; i++)
    to[i] = ((const uint*)__shfl_sync(WHOLE_WARP, (ulong)row, 8 * i + lane / 4))[lane % 4];
}
DEVICE void four_transposed(uint* to, const uint4* row) {
  const int lane = ITEM_X % 32;
  for (int i = 0; i < 4; i++) {
    const ulong first = __shfl_sync(WHOLE_WARP, (ulong)row, 8 * i + lane % 4 * 2);
    const ulong second = __shfl_sync(WHOLE_WARP, (ulong)row, 8 * i + lane % 4 * 2 + 1);
    to[i] = ((const ushort*)first)[lane / 4] | (uint)((const ushort*)second)[lane / 4] << 16;
  }
}
DEVICE uint pair(float first, float second) {
  uint both;
  STORE16((uchar*)&both, first);
  STORE16((uchar*)&both + 2, second);
  return both;
}
DEVICE float power_of_two(float x) { return exp2(x); }
// A copy is done when it is waited for, which is as late as it may be. COPIES declares copies_, the copies that have
// not been done, and copying_, their number. Zeros are copied from nowhere.
#define COPIES \
  struct { uint4* to; const uchar* from; } copies_[32]; \
  int copying_ = 0;
#define COPY_QUAD(target, source) (copies_[copying_].to = (target), copies_[copying_++].from = (source))
#define COPY_QUAD_OR_ZERO(there, target, source) COPY_QUAD(target, (there) ? (source) : (const uchar*)0)
#define COPIED \
  for (; copying_ > 0; copying_--) { \
    const uchar* from_ = copies_[copying_ - 1].from; \
    *copies_[copying_ - 1].to = from_ ? *(const uint4*)from_ : make_uint4(0, 0, 0, 0); \
  }
#endif

// Where an item finds its part of: 16 x 16 elements of a; 16 columns of b that lie as rows; 16 x 16
// elements of b that lie row by row, for `four_transposed`. Quads are counted from `quad` on.
#define ROW_OF_A(kept, row, quad) &kept[(row) + ITEM_X % 16][(quad) + ITEM_X % 32 / 16]
#define ROW_OF_COLUMNS(kept, column, quad) &kept[(column) + ITEM_X % 8 + ITEM_X % 32 / 16 * 8][(quad) + ITEM_X / 8 % 2]
#define ROW_OF_B(kept, row, quad) ROW_OF_A(kept, row, quad)

// Elements from e on of a row of `size`, zeros beyond the last.
#define ONE_OF(ELEMENT, row, e, size) ((e) < (size) ? ELEMENT(row, e) : 0.0f)
#define TWO_OF(ELEMENT, row, e, size) pair(ONE_OF(ELEMENT, row, e, size), ONE_OF(ELEMENT, row, (e) + 1, size))
#define EIGHT_OF(ELEMENT, row, e, size) \
  make_uint4(TWO_OF(ELEMENT, row, e, size), TWO_OF(ELEMENT, row, (e) + 2, size), \
             TWO_OF(ELEMENT, row, (e) + 4, size), TWO_OF(ELEMENT, row, (e) + 6, size))
