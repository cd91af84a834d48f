// Softmax of rows: a group of GROUP_SIZE for each, first with scores, then powers, then shares in y.

#if GROUP_SIZE == 1
float total_of(float16 a) {
  const float8 b = a.lo + a.hi;
  const float4 c = b.lo + b.hi;
  return (c.x + c.y) + (c.z + c.w);
}
float largest_of(float16 a) {
  const float8 b = fmax(a.lo, a.hi);
  const float4 c = fmax(b.lo, b.hi);
  return fmax(fmax(c.x, c.y), fmax(c.z, c.w));
}
#endif
#ifdef mask_bytes
#if defined(mask_is_f16)
#define MASK16(i) vload_half16(0, (__global const half*)mask + (i))
#else
#define MASK16(i) vload16(0, (__global const float*)mask + (i))
#endif
#endif

// How steep the mask of a head is. Heads up to the largest power of two take the powers of one base,
// the rest the odd powers of its square root.
float slope_of(int head, float max_bias, int even) {
  if (max_bias == 0.0f) return 1.0f;
  const float power = head < even ? (float)(head + 1) : (head - even) + 0.5f;
  return exp2(-max_bias / even * power);
}

//: soft_max
KERNEL_HEAD {
  GROUP_SCRATCH(scratch);
  __global const uchar* x = ROW(x, GROUP_X, GROUP_Y, GROUP_Z);
  __global uchar* y = ROW(y, GROUP_X, GROUP_Y, GROUP_Z);
  const int n = p.x.ne[0];
  float top = -INFINITY;
  int i = ITEM_X;
#ifdef mask_bytes
  const float slope = slope_of(GROUP_Y, p.max_bias, p.even);
  __global const uchar* mask = ROW(mask, GROUP_X, GROUP_Y % p.mask.ne[2], GROUP_Z % p.mask.ne[3]);
#endif
#if GROUP_SIZE == 1
#ifdef mask_bytes
  const bool packed = p.x.nb[0] == 4 && p.y.nb[0] == 4 && p.mask.nb[0] == mask_bytes;
#else
  const bool packed = p.x.nb[0] == 4 && p.y.nb[0] == 4;
#endif
  __global float* rows = (__global float*)y;
  if (packed) {
    float16 tops = -INFINITY;
    for (; i + 16 <= n; i += 16) {
      float16 score = p.scale * vload16(0, (__global const float*)x + i);
#ifdef mask_bytes
      score += slope * MASK16(i);
#endif
      tops = fmax(tops, score);
      vstore16(score, 0, rows + i);
    }
    top = largest_of(tops);
  }
#endif
  for (; i < n; i += GROUP_SIZE) {
    float score = p.scale * *(__global const float*)(x + i * p.x.nb[0]);
#ifdef mask_bytes
    score += slope * load_mask(mask + i * p.mask.nb[0]);
#endif
    top = fmax(top, score);
    *(__global float*)(y + i * p.y.nb[0]) = score;
  }
  // A maximum without NaN will do: the sum has it.
  top = GROUP_MAX(top, scratch);
  float sum = 0.0f;
#ifdef sinks_bytes
  const float sink = load_sinks(AT(sinks, GROUP_Y, 0, 0, 0));
  top = fmax(top, sink);
  if (ITEM_X == 0) sum = exp(sink - top);
#endif
  i = ITEM_X;
#if GROUP_SIZE == 1
  if (packed) {
    float16 sums = 0.0f;
    for (; i + 16 <= n; i += 16) {
      const float16 power = exp(vload16(0, rows + i) - top);
      sums += power;
      vstore16(power, 0, rows + i);
    }
    sum += total_of(sums);
  }
#endif
  for (; i < n; i += GROUP_SIZE) {
    __global float* at = (__global float*)(y + i * p.y.nb[0]);
    const float power = exp(*at - top);
    sum += power;
    *at = power;
  }
  const float factor = 1.0f / GROUP_SUM(sum, scratch);
  i = ITEM_X;
#if GROUP_SIZE == 1
  if (packed)
    for (; i + 16 <= n; i += 16) vstore16(vload16(0, rows + i) * factor, 0, rows + i);
#endif
  for (; i < n; i += GROUP_SIZE) *(__global float*)(y + i * p.y.nb[0]) *= factor;
}
