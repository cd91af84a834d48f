// Orders of rows. An element is sorted as one number: its value in the upper half, so that numbers
// rise in the wanted order with NaN last, and its index in the lower half, so that none are equal.

DEVICE ulong key_of(float x, int index, int descending) {
  // Adding zero makes one of both zeros.
  const uint bits = FLOAT_BITS(x + 0.0f);
  const uint rising = bits & 0x80000000u ? ~bits : bits | 0x80000000u;
  const uint order = x != x ? 0xffffffffu : descending ? ~rising : rising;
  return ((ulong)order << 32) | (uint)index;
}

// How many of `count` rising numbers are smaller than `key`.
DEVICE int smaller(const ulong* numbers, int count, ulong key) {
  int low = 0, high = count;
  while (low < high) {
    const int middle = (low + high) / 2;
    if (numbers[middle] < key) low = middle + 1;
    else high = middle;
  }
  return low;
}

#define ROW_NUMBER(name) ((GROUP_Z * p.name.ne[2] + GROUP_Y) * p.name.ne[1] + row)
#define KEYS(side, row) ((ulong*)ROW(keys, row, side, 0))

//: sort_part
// Up to PART elements of a row, in the memory of a group: to y if they are the whole row.
KERNEL_HEAD {
  __shared__ ulong numbers[PART];
  const int part = GROUP_X % p.parts, row = GROUP_X / p.parts, start = part * PART;
  const int count = PART < p.x.ne[0] - start ? PART : p.x.ne[0] - start;
  int size = 1;
  while (size < count) size *= 2;
  for (int i = ITEM_X; i < size; i += GROUP_SIZE)
    numbers[i] = i < count
        ? key_of(*(const float*)AT(x, start + i, row, GROUP_Y, GROUP_Z), start + i, p.descending)
        : ~(ulong)0;
  LOCAL_BARRIER;
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
      LOCAL_BARRIER;
    }
  if (p.parts > 1) {
    ulong* to = KEYS(0, ROW_NUMBER(x)) + start;
    for (int i = ITEM_X; i < count; i += GROUP_SIZE) to[i] = numbers[i];
  } else {
    for (int i = ITEM_X; i < p.y.ne[0]; i += GROUP_SIZE)
      *(int*)AT(y, i, row, GROUP_Y, GROUP_Z) = (int)numbers[i];
  }
}

//: merge_parts
// Sorted runs of `run` become runs of twice the length: each element finds its own place.
KERNEL_HEAD {
  const uint index = FLAT_INDEX;
  if (index >= p.count) return;
  const int n = p.keys.ne[0], row = index / n, i = index % n;
  const int start = i / (2 * p.run) * 2 * p.run;
  const int middle = start + p.run < n ? start + p.run : n;
  const int end = start + 2 * p.run < n ? start + 2 * p.run : n;
  const ulong* from = KEYS(p.side, row);
  const ulong key = from[i];
  const int place = i < middle ? i + smaller(from + middle, end - middle, key)
                               : i - middle + start + smaller(from + start, middle - start, key);
  if (!p.last) KEYS(1 - p.side, row)[place] = key;
  else if (place < p.y.ne[0]) {
    const int i1 = row % p.y.ne[1], rest = row / p.y.ne[1];
    *(int*)AT(y, place, i1, rest % p.y.ne[2], rest / p.y.ne[2]) = (int)key;
  }
}
