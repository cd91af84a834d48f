// The experts of a token and their weights: a warp for each token, KEPT experts for each of its items.

#define EACH(j) _Pragma("unroll") for (int j = 0; j < KEPT; j++)
#define EXPERT(j) (32 * (j) + ITEM_X)
#define MINUS_INFINITY BITS_FLOAT(0xff800000u)

//: route
// Scores of all experts, the `p.ids.ne[0]` experts of the highest ranks, and their weights.
KERNEL_HEAD {
  const int token = GROUP_X, n = p.logits.ne[0];
  float scores[KEPT];
  ulong keys[KEPT];
  float top = MINUS_INFINITY, total = 0.0f;
  // Scores of all experts, as probabilities or by a function of each.
  EACH(j) {
    scores[j] = EXPERT(j) < n ? p.sharpness * load_logits(AT(logits, EXPERT(j), token, 0, 0)) : MINUS_INFINITY;
    top = larger(top, scores[j]);
  }
#if defined(SOFT_MAX)
  top = warp_max(top);
  EACH(j) {
    scores[j] = exp(scores[j] - top);
    total += scores[j];
  }
  total = warp_sum(total);
  EACH(j) scores[j] /= total;
#elif defined(FUNCTION)
  EACH(j) scores[j] = FUNCTION(scores[j]);
#endif
#ifdef ROOTED
  EACH(j) scores[j] = sqrt(scores[j]);
#endif
  // Keys in the order of ranks: a bias counts for the choice and not for the weight.
  EACH(j) {
    float rank = scores[j];
#ifdef bias_bytes
    if (EXPERT(j) < n) rank += load_bias(AT(bias, EXPERT(j), token % p.bias.ne[1], 0, 0));
#endif
    keys[j] = EXPERT(j) < n ? key_of(rank, EXPERT(j), 1) : ~(ulong)0;
  }
  // The item that has the number of a choice keeps its weight.
  float weight = 0.0f;
  for (int choice = 0; choice < p.ids.ne[0]; choice++) {
    ulong best = ~(ulong)0;
    EACH(j) if (keys[j] < best) best = keys[j];
    for (int other = 16; other > 0; other >>= 1) {
      const ulong theirs = __shfl_xor_sync(WHOLE_WARP, best, other);
      if (theirs < best) best = theirs;
    }
    float score = 0.0f;
    EACH(j) if (keys[j] == best) {
      score = scores[j];
      keys[j] = ~(ulong)0;
    }
    const int expert = (int)(uint)best;
    score = __shfl_sync(WHOLE_WARP, score, expert % 32);
    if (ITEM_X == choice) weight = score;
    if (ITEM_X == 0) *(int*)AT(ids, choice, token, 0, 0) = expert;
  }
  // Weights of the chosen experts: a softmax of them only, or shares of their sum.
  const int chosen = ITEM_X < p.ids.ne[0];
#if defined(LATE)
  weight = chosen ? p.late * weight : MINUS_INFINITY;
  weight = exp(weight - warp_max(weight));
  weight /= warp_sum(weight);
#elif defined(SHARES)
  const float sum = warp_sum(chosen ? weight : 0.0f);
  weight /= CLAMPED(sum, p.least, p.most);
#endif
  if (chosen) store_f32(AT(weights, ITEM_X, token, 0, 0), p.scale * weight + p.shift);
}
