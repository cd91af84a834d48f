// Orders of rows on processors: a row by one item. Keys are those of the shared text.

//: sort_row
// A row by one item: runs of 16 by insertion, then runs of twice the length.
KERNEL_HEAD {
  const int row = GROUP_X, n = p.x.ne[0];
  GLOBAL ulong* from = KEYS(0, ROW_NUMBER(x));
  GLOBAL ulong* to = KEYS(1, ROW_NUMBER(x));
  for (int start = 0; start < n; start += 16)  // insertion sort of runs of 16
    for (int i = start; i < min(start + 16, n); i++) {
      const ulong key =
          key_of(*(GLOBAL const float*)AT(x, i, row, GROUP_Y, GROUP_Z), i, p.descending);
      int at = i;
      for (; at > start && from[at - 1] > key; at--) from[at] = from[at - 1];
      from[at] = key;
    }
  for (int run = 16; run < n; run *= 2) {  // merge pairs of runs
    for (int start = 0; start < n; start += 2 * run) {
      const int middle = min(start + run, n), end = min(start + 2 * run, n);
      int a = start, b = middle;
      for (int i = start; i < end; i++) {
        const bool first = b >= end || (a < middle && from[a] < from[b]);
        to[i] = first ? from[a++] : from[b++];
      }
    }
    GLOBAL ulong* merged = to;
    to = from;
    from = merged;
  }
  for (int i = 0; i < p.y.ne[0]; i++) *(GLOBAL int*)AT(y, i, row, GROUP_Y, GROUP_Z) = (int)from[i];
}

//: top_few
// The largest MOST or fewer of a row by one item, which keeps them in order.
KERNEL_HEAD {
  ulong found[MOST];
  const int k = p.y.ne[0];
  for (int i = 0; i < k; i++) found[i] = ULONG_MAX;
  for (int i = 0; i < p.x.ne[0]; i++) {
    const ulong key = key_of(*(GLOBAL const float*)AT(x, i, GROUP_X, GROUP_Y, GROUP_Z), i, 1);
    if (key >= found[k - 1]) continue;
    int at = k - 1;
    for (; at > 0 && found[at - 1] > key; at--) found[at] = found[at - 1];
    found[at] = key;
  }
  for (int i = 0; i < k; i++)
    *(GLOBAL int*)AT(y, i, GROUP_X, GROUP_Y, GROUP_Z) = (int)found[i];
}
