// Softmax of rows: a group of GROUP_SIZE for each. An item has up to KEPT elements in registers, or,
// where KEPT is 0, leaves scores and then powers in y.

// How steep the mask of a head is. Heads up to the largest power of two take the powers of one base,
// the rest the odd powers of its square root.
DEVICE float slope_of(int head, float max_bias, int even) {
  if (max_bias == 0.0f) return 1.0f;
  const float power = head < even ? (float)(head + 1) : (head - even) + 0.5f;
  return exp2(-max_bias / even * power);
}

#define Y_AT(i) (*(float*)(y + (long)(i) * p.y.nb[0]))
#if KEPT > 0
#define EACH for (int k = 0, i = ITEM_X; k < KEPT; k++, i += GROUP_SIZE) if (i < n)
#define HELD kept[k]
#else
#define EACH for (int i = ITEM_X; i < n; i += GROUP_SIZE)
#define HELD Y_AT(i)
#endif

//: soft_max
KERNEL_HEAD {
  GROUP_SCRATCH(scratch);
  const uchar* x = ROW(x, GROUP_X, GROUP_Y, GROUP_Z);
  uchar* y = ROW(y, GROUP_X, GROUP_Y, GROUP_Z);
  const int n = p.x.ne[0];
#ifdef mask_bytes
  const float slope = slope_of(GROUP_Y, p.max_bias, p.even);
  const uchar* mask = ROW(mask, GROUP_X, GROUP_Y % p.mask.ne[2], GROUP_Z % p.mask.ne[3]);
#endif
#if KEPT > 0
  float kept[KEPT];
#endif
  float top = BITS_FLOAT(0xff800000u);
  EACH {
    float score = p.scale * *(const float*)(x + (long)i * p.x.nb[0]);
#ifdef mask_bytes
    score += slope * load_mask(mask + (long)i * p.mask.nb[0]);
#endif
    top = fmax(top, score);
    HELD = score;
  }
  // A maximum without NaN will do: the sum has it.
  top = GROUP_MAX(top, scratch);
  float sum = 0.0f;
#ifdef sinks_bytes
  const float sink = load_sinks(AT(sinks, GROUP_Y, 0, 0, 0));
  top = fmax(top, sink);
  if (ITEM_X == 0) sum = exp(sink - top);
#endif
  EACH {
    const float power = exp(HELD - top);
    sum += power;
    HELD = power;
  }
  const float factor = 1.0f / GROUP_SUM(sum, scratch);
  EACH Y_AT(i) = HELD * factor;
}
