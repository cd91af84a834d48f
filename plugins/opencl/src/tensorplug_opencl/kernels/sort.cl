// Orders of rows. An element is sorted as one number: its value in the upper half, so that numbers
// rise in the wanted order with NaN last, and its index in the lower half, so that none are equal.

ulong key_of(float x, int index, int descending) {
  // Adding zero makes one of both zeros.
  const uint bits = as_uint(x + 0.0f);
  const uint rising = bits & 0x80000000u ? ~bits : bits | 0x80000000u;
  const uint order = x != x ? 0xffffffffu : descending ? ~rising : rising;
  return ((ulong)order << 32) | (uint)index;
}

// How many of `count` rising numbers are smaller than `key`.
int smaller(__global const ulong* numbers, int count, ulong key) {
  int low = 0, high = count;
  while (low < high) {
    const int middle = (low + high) / 2;
    if (numbers[middle] < key) low = middle + 1;
    else high = middle;
  }
  return low;
}

#define ROW_NUMBER(name) ((GROUP_Z * p.name.ne[2] + GROUP_Y) * p.name.ne[1] + row)
#define KEYS(side, row) ((__global ulong*)ROW(keys, row, side, 0))

//: sort_part
// Up to PART elements of a row, in the memory of a group: to y if they are the whole row.
KERNEL_HEAD {
  __local ulong numbers[PART];
  const int part = GROUP_X % p.parts, row = GROUP_X / p.parts;
  const int start = part * PART, count = min(PART, p.x.ne[0] - start);
  int size = 1;
  while (size < count) size *= 2;
  for (int i = ITEM_X; i < size; i += GROUP_SIZE)
    numbers[i] = i < count
        ? key_of(*(__global const float*)AT(x, start + i, row, GROUP_Y, GROUP_Z), start + i, p.descending)
        : ULONG_MAX;
  barrier(CLK_LOCAL_MEM_FENCE);
  for (int run = 2; run <= size; run *= 2)
    for (int step = run / 2; step > 0; step /= 2) {
      for (int i = ITEM_X; i < size; i += GROUP_SIZE) {
        const int other = i ^ step;
        if (other > i) {
          const ulong a = numbers[i], b = numbers[other];
          if ((a > b) == ((i & run) == 0)) {
            numbers[i] = b;
            numbers[other] = a;
          }
        }
      }
      barrier(CLK_LOCAL_MEM_FENCE);
    }
  if (p.parts > 1) {
    __global ulong* to = KEYS(0, ROW_NUMBER(x)) + start;
    for (int i = ITEM_X; i < count; i += GROUP_SIZE) to[i] = numbers[i];
  } else {
    for (int i = ITEM_X; i < p.y.ne[0]; i += GROUP_SIZE)
      *(__global int*)AT(y, i, row, GROUP_Y, GROUP_Z) = (int)numbers[i];
  }
}

//: merge_parts
// Sorted runs of `run` become runs of twice the length: each element finds its own place.
KERNEL_HEAD {
  const uint index = FLAT_INDEX;
  if (index >= p.count) return;
  const int n = p.keys.ne[0], row = index / n, i = index % n;
  const int start = i / (2 * p.run) * 2 * p.run;
  const int middle = min(start + p.run, n), end = min(start + 2 * p.run, n);
  __global const ulong* from = KEYS(p.side, row);
  const ulong key = from[i];
  const int place = i < middle ? i + smaller(from + middle, end - middle, key)
                               : i - middle + start + smaller(from + start, middle - start, key);
  if (!p.last) KEYS(1 - p.side, row)[place] = key;
  else if (place < p.y.ne[0]) {
    const int i1 = row % p.y.ne[1], rest = row / p.y.ne[1];
    *(__global int*)AT(y, place, i1, rest % p.y.ne[2], rest / p.y.ne[2]) = (int)key;
  }
}

//: sort_row
// A row by one item: runs of 16 by insertion, then runs of twice the length.
KERNEL_HEAD {
  const int row = GROUP_X, n = p.x.ne[0];
  __global ulong* from = KEYS(0, ROW_NUMBER(x));
  __global ulong* to = KEYS(1, ROW_NUMBER(x));
  for (int start = 0; start < n; start += 16)
    for (int i = start; i < min(start + 16, n); i++) {
      const ulong key =
          key_of(*(__global const float*)AT(x, i, row, GROUP_Y, GROUP_Z), i, p.descending);
      int at = i;
      for (; at > start && from[at - 1] > key; at--) from[at] = from[at - 1];
      from[at] = key;
    }
  for (int run = 16; run < n; run *= 2) {
    for (int start = 0; start < n; start += 2 * run) {
      const int middle = min(start + run, n), end = min(start + 2 * run, n);
      int a = start, b = middle;
      for (int i = start; i < end; i++) {
        const bool first = b >= end || (a < middle && from[a] < from[b]);
        to[i] = first ? from[a++] : from[b++];
      }
    }
    __global ulong* merged = to;
    to = from;
    from = merged;
  }
  for (int i = 0; i < p.y.ne[0]; i++) *(__global int*)AT(y, i, row, GROUP_Y, GROUP_Z) = (int)from[i];
}

//: top_few
// The largest MOST or fewer of a row by one item, which keeps them in order.
KERNEL_HEAD {
  ulong found[MOST];
  const int k = p.y.ne[0];
  for (int i = 0; i < k; i++) found[i] = ULONG_MAX;
  for (int i = 0; i < p.x.ne[0]; i++) {
    const ulong key = key_of(*(__global const float*)AT(x, i, GROUP_X, GROUP_Y, GROUP_Z), i, 1);
    if (key >= found[k - 1]) continue;
    int at = k - 1;
    for (; at > 0 && found[at - 1] > key; at--) found[at] = found[at - 1];
    found[at] = key;
  }
  for (int i = 0; i < k; i++)
    *(__global int*)AT(y, i, GROUP_X, GROUP_Y, GROUP_Z) = (int)found[i];
}
