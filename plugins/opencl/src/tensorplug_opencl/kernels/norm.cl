// Rows less their mean or not, divided by a statistic of themselves: a group of GROUP_SIZE for each.
// Alone in its group an item takes 16 elements at a time.

#if GROUP_SIZE == 1
float total_of(float16 a) {
  const float8 b = a.lo + a.hi;
  const float4 c = b.lo + b.hi;
  return (c.x + c.y) + (c.z + c.w);
}
#endif

// The sum of an item's share of a row.
float sum_of(__global const uchar* row, long step, int n) {
#if GROUP_SIZE == 1
  if (step == 4) {
    __global const float* x = (__global const float*)row;
    float16 sums = 0.0f;
    int i = 0;
    for (; i + 16 <= n; i += 16) sums += vload16(0, x + i);
    float sum = total_of(sums);
    for (; i < n; i++) sum += x[i];
    return sum;
  }
#endif
  float sum = 0.0f;
  for (int i = ITEM_X; i < n; i += GROUP_SIZE) sum += *(__global const float*)(row + i * step);
  return sum;
}

// The sum of squares of an item's share of a row less `mean`.
float squares_of(__global const uchar* row, long step, int n, float mean) {
#if GROUP_SIZE == 1
  if (step == 4) {
    __global const float* x = (__global const float*)row;
    float16 sums = 0.0f;
    int i = 0;
    for (; i + 16 <= n; i += 16) {
      const float16 d = vload16(0, x + i) - mean;
      sums += d * d;
    }
    float sum = total_of(sums);
    for (; i < n; i++) sum += (x[i] - mean) * (x[i] - mean);
    return sum;
  }
#endif
  float sum = 0.0f;
  for (int i = ITEM_X; i < n; i += GROUP_SIZE) {
    const float d = *(__global const float*)(row + i * step) - mean;
    sum += d * d;
  }
  return sum;
}

// to = (from - mean) * factor, which may lie over each other.
void scaled(
    __global uchar* to, long to_step, __global const uchar* from, long step, int n, float mean,
    float factor) {
#if GROUP_SIZE == 1
  if (step == 4 && to_step == 4) {
    __global const float* x = (__global const float*)from;
    __global float* y = (__global float*)to;
    int i = 0;
    for (; i + 16 <= n; i += 16) vstore16((vload16(0, x + i) - mean) * factor, 0, y + i);
    for (; i < n; i++) y[i] = (x[i] - mean) * factor;
    return;
  }
#endif
  for (int i = ITEM_X; i < n; i += GROUP_SIZE) {
    const float x = *(__global const float*)(from + i * step);
    *(__global float*)(to + i * to_step) = (x - mean) * factor;
  }
}

//: norm
KERNEL_HEAD {
  GROUP_SCRATCH(scratch);
  __global const uchar* x = ROW(x, GROUP_X, GROUP_Y, GROUP_Z);
  __global uchar* y = ROW(y, GROUP_X, GROUP_Y, GROUP_Z);
  const int n = p.x.ne[0];
  float mean = 0.0f;
  if (p.centred) mean = GROUP_SUM(sum_of(x, p.x.nb[0], n), scratch) / n;
  const float squares = GROUP_SUM(squares_of(x, p.x.nb[0], n, mean), scratch);
  float divisor;
  if (p.whole) {
    divisor = sqrt(squares);
    divisor = divisor < p.eps ? p.eps : divisor;
  } else {
    divisor = sqrt(squares / n + p.eps);
  }
  scaled(y, p.y.nb[0], x, p.x.nb[0], n, mean, 1.0f / divisor);
}

//: group_norm
// A row here is `together` channels of one image: ne[0] and ne[1] of each.
KERNEL_HEAD {
  GROUP_SCRATCH(scratch);
  const int first = GROUP_X * p.together;
  const int last = min(first + p.together, p.x.ne[2]);
  const int n = p.x.ne[0];
  const float count = (float)n * p.x.ne[1] * (last - first);
  float sum = 0.0f;
  for (int c = first; c < last; c++)
    for (int j = 0; j < p.x.ne[1]; j++) sum += sum_of(ROW(x, j, c, GROUP_Y), p.x.nb[0], n);
  const float mean = GROUP_SUM(sum, scratch) / count;
  float squares = 0.0f;
  for (int c = first; c < last; c++)
    for (int j = 0; j < p.x.ne[1]; j++)
      squares += squares_of(ROW(x, j, c, GROUP_Y), p.x.nb[0], n, mean);
  const float factor = 1.0f / sqrt(GROUP_SUM(squares, scratch) / count + p.eps);
  for (int c = first; c < last; c++)
    for (int j = 0; j < p.x.ne[1]; j++)
      scaled(ROW(y, j, c, GROUP_Y), p.y.nb[0], ROW(x, j, c, GROUP_Y), p.x.nb[0], n, mean, factor);
}

//: norm_fused
// y = normalised(x) * weight + bias, or of sum = x + other, which is a result too. Rows have no gaps.
// An item reads again only what it wrote itself.
KERNEL_HEAD {
  GROUP_SCRATCH(scratch);
  const int n = p.x.ne[0];
  __global const float* x = (__global const float*)ROW(x, GROUP_X, GROUP_Y, GROUP_Z);
  __global float* y = (__global float*)ROW(y, GROUP_X, GROUP_Y, GROUP_Z);
#define REPEATED(name) \
  ((__global const float*)ROW(name, GROUP_X % p.name.ne[1], GROUP_Y % p.name.ne[2], GROUP_Z % p.name.ne[3]))
#ifdef ADDED
  __global const float* other = REPEATED(other);
  __global float* sum = (__global float*)ROW(sum, GROUP_X, GROUP_Y, GROUP_Z);
  int k = ITEM_X;
#if GROUP_SIZE == 1
  for (; k + 16 <= n; k += 16) vstore16(vload16(0, x + k) + vload16(0, other + k), 0, sum + k);
#endif
  for (; k < n; k += GROUP_SIZE) sum[k] = x[k] + other[k];
  x = sum;
#endif
  __global const uchar* row = (__global const uchar*)x;
  float mean = 0.0f;
  if (p.centred) mean = GROUP_SUM(sum_of(row, 4, n), scratch) / n;
  const float factor = 1.0f / sqrt(GROUP_SUM(squares_of(row, 4, n, mean), scratch) / n + p.eps);
  int i = ITEM_X;
#ifdef SCALED
  __global const float* weight = REPEATED(weight);
#define WEIGHED(value, j) ((value) * weight[j])
#define WEIGHED16(value, j) ((value) * vload16(0, weight + (j)))
#else
#define WEIGHED(value, j) (value)
#define WEIGHED16(value, j) (value)
#endif
#ifdef SHIFTED
  __global const float* bias = REPEATED(bias);
#define MOVED(value, j) ((value) + bias[j])
#define MOVED16(value, j) ((value) + vload16(0, bias + (j)))
#else
#define MOVED(value, j) (value)
#define MOVED16(value, j) (value)
#endif
#if GROUP_SIZE == 1
  for (; i + 16 <= n; i += 16) {
    vstore16(MOVED16(WEIGHED16((vload16(0, x + i) - mean) * factor, i), i), 0, y + i);
  }
#endif
  for (; i < n; i += GROUP_SIZE) y[i] = MOVED(WEIGHED((x[i] - mean) * factor, i), i);
}
