// The rows that a product has. MATRIX says which matrices meet in a group (`i2` and `i3`, or `expert` and `start`, where
// its list begins), and how many `columns` (rows of `x`) they have.
// With EXPERTS, row `m` of `x` and `y` is that of a pair (i, t) of `ids`, and `w` that of an expert:
// with `lists` all pairs of an expert, else one pair.
#ifdef EXPERTS
#define W_ROW(n) ROW(w, n, expert, 0)
#define X_ROW(m) ROW(x, PAIR(m) % p.y.ne[1] % p.x.ne[1], PAIR(m) / p.y.ne[1], 0)
#define Y_ROW(m) ROW(y, PAIR(m) % p.y.ne[1], PAIR(m) / p.y.ne[1], 0)
#ifdef lists_bytes
#define LIST(i) *(GLOBAL const int*)AT(lists, i, 0, 0, 0)
#define PAIR(m) LIST(p.w.ne[2] + 1 + start + (m))
#define MATRIX const int expert = GROUP_Z, start = LIST(expert), columns = LIST(expert + 1) - start;
#else
#define PAIR(m) GROUP_Z
#define MATRIX \
  const int expert = *(GLOBAL const int*)AT(ids, PAIR(0) % p.y.ne[1], PAIR(0) / p.y.ne[1], 0, 0), columns = 1;
#endif
#define IS_EXPERT (expert >= 0 && expert < p.w.ne[2])
#else
#define W_ROW(n) ROW(w, n, i2 / p.repeat2, i3 / p.repeat3)
#define X_ROW(m) ROW(x, m, i2, i3)
#define Y_ROW(m) ROW(y, m, i2, i3)
#define MATRIX const int columns = p.x.ne[1], i2 = GROUP_Z % p.x.ne[2], i3 = GROUP_Z / p.x.ne[2];
#define IS_EXPERT 1
#endif
