// Nodes after each other in one pass: an item for each element of the result.

#define UNFLATTEN_Y \
  const uint flat = FLAT_INDEX; \
  if (flat >= p.count) return; \
  const int i0 = (int)(flat % (uint)p.y.ne[0]); \
  const uint row_ = flat / (uint)p.y.ne[0]; \
  const int i1 = (int)(row_ % (uint)p.y.ne[1]); \
  const uint matrix_ = row_ / (uint)p.y.ne[1]; \
  const int i2 = (int)(matrix_ % (uint)p.y.ne[2]), i3 = (int)(matrix_ / (uint)p.y.ne[2]);
// Sources come round where the result is larger.
#define SOURCE(name) \
  (*(GLOBAL const float*)AT(name, i0 % p.name.ne[0], i1 % p.name.ne[1], i2 % p.name.ne[2], i3 % p.name.ne[3]))
#define RESULT (*(GLOBAL float*)AT(y, i0, i1, i2, i3))

//: chain
// a + b1 + ... + bCOUNT, or their product where FACTORS is defined.
#ifdef FACTORS
#define WITH(name) value *= SOURCE(name);
#else
#define WITH(name) value += SOURCE(name);
#endif
KERNEL_HEAD {
  UNFLATTEN_Y
  float value = SOURCE(a);
  WITH(b1)
  WITH(b2)
#if COUNT > 2
  WITH(b3)
#endif
#if COUNT > 3
  WITH(b4)
#endif
#if COUNT > 4
  WITH(b5)
#endif
#if COUNT > 5
  WITH(b6)
#endif
#if COUNT > 6
  WITH(b7)
#endif
#if COUNT > 7
  WITH(b8)
#endif
  RESULT = value;
}

//: snake
// x + sin(a * x) ** 2 * inv_b
KERNEL_HEAD {
  UNFLATTEN_Y
  const float x = SOURCE(x), wave = sin(x * SOURCE(a));
  RESULT = x + wave * wave * SOURCE(inv_b);
}
