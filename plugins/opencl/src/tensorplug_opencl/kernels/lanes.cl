// What kernels of processors share: vectors of 16.

#define EVERY(name, count) _Pragma("unroll") for (int name = 0; name < count; name++)
typedef GLOBAL const uchar* bytes;

// Asks for the lines of a block of weights.
#define FETCH_BLOCK(p) EVERY(line, (BLOCK_BYTES + 63) / 64) { PREFETCH((p) + 64 * line); }

#define NUMBERS_0_TO_15 (uint16)(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15)

// 16 x 16 elements, rows for columns: four perfect shuffles of their 256 places.
DEVICE void turn(float16* a) {
  float16 b[16];
  EVERY(shuffles, 4) {
    EVERY(i, 8) {
      b[2 * i].even = a[i].lo;
      b[2 * i].odd = a[i + 8].lo;
      b[2 * i + 1].even = a[i].hi;
      b[2 * i + 1].odd = a[i + 8].hi;
    }
    EVERY(i, 16) a[i] = b[i];
  }
}
