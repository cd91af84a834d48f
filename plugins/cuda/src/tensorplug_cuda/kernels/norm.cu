// Rows less their mean or not, divided by a statistic of themselves: a group of GROUP_SIZE for each.

#define ELEMENT(row, step, i) (*(const float*)((row) + (long)(i) * (step)))

// The sum of an item's share of a row, and of squares of what it has beyond `mean`.
DEVICE float sum_of(const uchar* row, long step, int n) {
  float sum = 0.0f;
  for (int i = ITEM_X; i < n; i += GROUP_SIZE) sum += ELEMENT(row, step, i);
  return sum;
}
DEVICE float squares_of(const uchar* row, long step, int n, float mean) {
  float sum = 0.0f;
  for (int i = ITEM_X; i < n; i += GROUP_SIZE) {
    const float d = ELEMENT(row, step, i) - mean;
    sum += d * d;
  }
  return sum;
}
// to = (from - mean) * factor, which may lie over each other.
DEVICE void scaled(uchar* to, long to_step, const uchar* from, long step, int n, float mean, float factor) {
  for (int i = ITEM_X; i < n; i += GROUP_SIZE)
    *(float*)(to + (long)i * to_step) = (ELEMENT(from, step, i) - mean) * factor;
}

//: norm
KERNEL_HEAD {
  GROUP_SCRATCH(scratch);
  const uchar* x = ROW(x, GROUP_X, GROUP_Y, GROUP_Z);
  uchar* y = ROW(y, GROUP_X, GROUP_Y, GROUP_Z);
  const int n = p.x.ne[0];
  float mean = 0.0f;
  if (p.centred) mean = GROUP_SUM(sum_of(x, p.x.nb[0], n), scratch) / n;
  const float squares = GROUP_SUM(squares_of(x, p.x.nb[0], n, mean), scratch);
  float divisor = sqrt(squares);
  if (p.whole) divisor = divisor < p.eps ? p.eps : divisor;
  else divisor = sqrt(squares / n + p.eps);
  scaled(y, p.y.nb[0], x, p.x.nb[0], n, mean, 1.0f / divisor);
}

//: group_norm
// A row here is `together` channels of one image: ne[0] and ne[1] of each.
KERNEL_HEAD {
  GROUP_SCRATCH(scratch);
  const int first = GROUP_X * p.together;
  const int last = first + p.together < p.x.ne[2] ? first + p.together : p.x.ne[2];
  const int n = p.x.ne[0];
  const float count = (float)n * p.x.ne[1] * (last - first);
#define EACH_ROW \
  for (int c = first; c < last; c++) \
    for (int j = 0; j < p.x.ne[1]; j++)
  float sum = 0.0f, squares = 0.0f;
  EACH_ROW sum += sum_of(ROW(x, j, c, GROUP_Y), p.x.nb[0], n);
  const float mean = GROUP_SUM(sum, scratch) / count;
  EACH_ROW squares += squares_of(ROW(x, j, c, GROUP_Y), p.x.nb[0], n, mean);
  const float factor = 1.0f / sqrt(GROUP_SUM(squares, scratch) / count + p.eps);
  EACH_ROW scaled(ROW(y, j, c, GROUP_Y), p.y.nb[0], ROW(x, j, c, GROUP_Y), p.x.nb[0], n, mean, factor);
}

//: norm_fused
// y = normalised(x) * weight + bias, or of sum = x + other, which is a result too. Rows have no gaps.
// An item reads again only what it wrote itself.
KERNEL_HEAD {
  GROUP_SCRATCH(scratch);
  const int n = p.x.ne[0];
  const float* x = (const float*)ROW(x, GROUP_X, GROUP_Y, GROUP_Z);
  float* y = (float*)ROW(y, GROUP_X, GROUP_Y, GROUP_Z);
#define REPEATED(name) \
  ((const float*)ROW(name, GROUP_X % p.name.ne[1], GROUP_Y % p.name.ne[2], GROUP_Z % p.name.ne[3]))
#ifdef ADDED
  const float* other = REPEATED(other);
  float* sum = (float*)ROW(sum, GROUP_X, GROUP_Y, GROUP_Z);
  for (int i = ITEM_X; i < n; i += GROUP_SIZE) sum[i] = x[i] + other[i];
  x = sum;
#endif
#ifdef SCALED
  const float* weight = REPEATED(weight);
#define WEIGHED(value) ((value) * weight[i])
#else
#define WEIGHED(value) (value)
#endif
#ifdef SHIFTED
  const float* bias = REPEATED(bias);
#define MOVED(value) ((value) + bias[i])
#else
#define MOVED(value) (value)
#endif
  const uchar* row = (const uchar*)x;
  float mean = 0.0f;
  if (p.centred) mean = GROUP_SUM(sum_of(row, 4, n), scratch) / n;
  const float factor = 1.0f / sqrt(GROUP_SUM(squares_of(row, 4, n, mean), scratch) / n + p.eps);
  for (int i = ITEM_X; i < n; i += GROUP_SIZE) y[i] = MOVED(WEIGHED((x[i] - mean) * factor));
}
