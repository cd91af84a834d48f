// 16 bytes of a row at once: where they can be loaded so, and the floats of their words.

// Whether all rows are 16-bit or 32-bit floats in order, of which quads or four can be loaded at once.
#define IN_ORDER(name, bytes) \
  (name##_block == 1 && name##_bytes == bytes && p.name.nb[0] == bytes && \
   (((ulong)name##_base + p.name.off | p.name.nb[1] | p.name.nb[2] | p.name.nb[3]) & 15) == 0)
#define HAS_QUADS(name) IN_ORDER(name, 2)
#define HAS_FOURS(name) IN_ORDER(name, 4)

// The two floats of 16 bits of a word.
DEVICE float2 two_halves(uint word) {
  return make_float2(half_bits_to_float((ushort)(word & 0xffffu)), half_bits_to_float((ushort)(word >> 16)));
}
DEVICE float2 two_brains(uint word) { return make_float2(BITS_FLOAT(word << 16), BITS_FLOAT(word & 0xffff0000u)); }
