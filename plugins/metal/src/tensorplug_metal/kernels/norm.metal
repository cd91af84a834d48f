// Rows less their mean or not, divided by a statistic of themselves: a group of GROUP_SIZE for each.
// Rows of 16 bytes in order are read four elements at a time; buffers begin at such places.

#define FOURS(role) \
  (p.role.nb[0] == 4 && ((p.role.off | p.role.nb[1] | p.role.nb[2] | p.role.nb[3]) & 15) == 0 && p.role.ne[0] % 4 == 0)
#define ELEMENT(row, step, i) (*(GLOBAL const float*)((row) + (long)(i) * (step)))
#define FOUR(row, i) (((GLOBAL const float4*)(row))[i])

// The sum of an item's share of a row, and of squares of what it has beyond `mean`.
DEVICE float sum_of(GLOBAL const uchar* row, long step, int n, bool fours, int item) {
  if (fours) {
    float4 sum = float4(0.0f);
    for (int i = item; i < n / 4; i += GROUP_SIZE) sum += FOUR(row, i);
    return sum.x + sum.y + (sum.z + sum.w);
  }
  float sum = 0.0f;
  for (int i = item; i < n; i += GROUP_SIZE) sum += ELEMENT(row, step, i);
  return sum;
}
DEVICE float squares_of(GLOBAL const uchar* row, long step, int n, float mean, bool fours, int item) {
  float sum = 0.0f;
  if (fours) {
    for (int i = item; i < n / 4; i += GROUP_SIZE) {
      const float4 d = FOUR(row, i) - float4(mean);
      sum += dot(d, d);
    }
    return sum;
  }
  for (int i = item; i < n; i += GROUP_SIZE) {
    const float d = ELEMENT(row, step, i) - mean;
    sum += d * d;
  }
  return sum;
}
// to = (from - mean) * factor, which may lie over each other.
DEVICE void scaled(GLOBAL uchar* to, long to_step, GLOBAL const uchar* from, long step, int n, float mean, float factor, bool fours, int item) {
  if (fours) {
    for (int i = item; i < n / 4; i += GROUP_SIZE) ((GLOBAL float4*)to)[i] = (FOUR(from, i) - float4(mean)) * factor;
    return;
  }
  for (int i = item; i < n; i += GROUP_SIZE)
    *(GLOBAL float*)(to + (long)i * to_step) = (ELEMENT(from, step, i) - mean) * factor;
}

//: norm
KERNEL_HEAD {
  GROUP_SCRATCH(scratch);
  GLOBAL const uchar* x = ROW(x, GROUP_X, GROUP_Y, GROUP_Z);
  GLOBAL uchar* y = ROW(y, GROUP_X, GROUP_Y, GROUP_Z);
  const int n = p.x.ne[0];
  const bool fours = FOURS(x);
  float mean = 0.0f;
  if (p.centred) mean = GROUP_SUM(sum_of(x, p.x.nb[0], n, fours, ITEM_X), scratch) / n;
  const float squares = GROUP_SUM(squares_of(x, p.x.nb[0], n, mean, fours, ITEM_X), scratch);
  float divisor = sqrt(squares);
  if (p.whole) divisor = divisor < p.eps ? p.eps : divisor;
  else divisor = sqrt(squares / n + p.eps);
  scaled(y, p.y.nb[0], x, p.x.nb[0], n, mean, 1.0f / divisor, fours && FOURS(y), ITEM_X);
}

//: group_norm
// A row here is `together` channels of one image: ne[0] and ne[1] of each.
#define EACH_ROW \
  for (int c = first; c < last; c++) \
    for (int j = 0; j < p.x.ne[1]; j++)
KERNEL_HEAD {
  GROUP_SCRATCH(scratch);
  const int first = GROUP_X * p.together;
  const int last = first + p.together < p.x.ne[2] ? first + p.together : p.x.ne[2];
  const int n = p.x.ne[0];
  const bool fours = FOURS(x);
  const float count = (float)n * p.x.ne[1] * (last - first);
  float sum = 0.0f, squares = 0.0f;
  EACH_ROW sum += sum_of(ROW(x, j, c, GROUP_Y), p.x.nb[0], n, fours, ITEM_X);
  const float mean = GROUP_SUM(sum, scratch) / count;
  EACH_ROW squares += squares_of(ROW(x, j, c, GROUP_Y), p.x.nb[0], n, mean, fours, ITEM_X);
  const float factor = 1.0f / sqrt(GROUP_SUM(squares, scratch) / count + p.eps);
  EACH_ROW scaled(ROW(y, j, c, GROUP_Y), p.y.nb[0], ROW(x, j, c, GROUP_Y), p.x.nb[0], n, mean, factor, fours && FOURS(y), ITEM_X);
}

//: norm_fused
// y = normalised(x) * weight + bias, or of sum = x + other, which is a result too. Rows have no gaps.
// An item reads again only what it wrote itself.
#define REPEATED(name) \
  ((GLOBAL const float*)ROW(name, GROUP_X % p.name.ne[1], GROUP_Y % p.name.ne[2], GROUP_Z % p.name.ne[3]))
#ifdef SCALED
#define WEIGHED(value, i) ((value) * weight[i])
#define WEIGHT_FOURS FOURS(weight)
#else
#define WEIGHED(value, i) (value)
#define WEIGHT_FOURS true
#endif
#ifdef SHIFTED
#define MOVED(value, i) ((value) + bias[i])
#define BIAS_FOURS FOURS(bias)
#else
#define MOVED(value, i) (value)
#define BIAS_FOURS true
#endif
#ifdef ADDED
#define ADDED_FOURS (FOURS(other) && FOURS(sum))
#else
#define ADDED_FOURS true
#endif
KERNEL_HEAD {
  GROUP_SCRATCH(scratch);
  const int n = p.x.ne[0];
  const bool fours = FOURS(x) && FOURS(y) && WEIGHT_FOURS && BIAS_FOURS && ADDED_FOURS;
  // An item has the same elements in every pass: `step` of them in each of its turns.
  const int step = fours ? 4 : 1;
#define EACH(i) \
  for (int turn = ITEM_X * step; turn < n; turn += GROUP_SIZE * step) \
    for (int i = turn; i < turn + step; i++)
  GLOBAL const float* x = (GLOBAL const float*)ROW(x, GROUP_X, GROUP_Y, GROUP_Z);
  GLOBAL float* y = (GLOBAL float*)ROW(y, GROUP_X, GROUP_Y, GROUP_Z);
#ifdef ADDED
  GLOBAL const float* other = REPEATED(other);
  GLOBAL float* sum = (GLOBAL float*)ROW(sum, GROUP_X, GROUP_Y, GROUP_Z);
  EACH(i) sum[i] = x[i] + other[i];
  x = sum;
#endif
#ifdef SCALED
  GLOBAL const float* weight = REPEATED(weight);
#endif
#ifdef SHIFTED
  GLOBAL const float* bias = REPEATED(bias);
#endif
  GLOBAL const uchar* row = (GLOBAL const uchar*)x;
  float mean = 0.0f;
  if (p.centred) mean = GROUP_SUM(sum_of(row, 4, n, fours, ITEM_X), scratch) / n;
  const float factor = 1.0f / sqrt(GROUP_SUM(squares_of(row, 4, n, mean, fours, ITEM_X), scratch) / n + p.eps);
  EACH(i) y[i] = MOVED(WEIGHED((x[i] - mean) * factor, i), i);
}
