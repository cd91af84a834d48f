// What one instruction-set level offers. `kernels.cpp` is compiled once for each.
#pragma once

#include "pool.h"
#include "program.h"

// The thread's part in a node.
struct Part {
    Pool &pool;
    int thread, threads; // those that share this node; 1 where one thread computes it
    char *scratch;       // shared by all threads, as large as `scratch` of the level says
    int index;           // of the node
    std::atomic<int32_t> *taken; // for each thread, portions of the node taken from its range; 0 at first
    int64_t taken_step;          // from a thread's to the next one's

    bool barrier() { return threads == 1 ? !pool.stopped(thread) : pool.barrier(thread); }
    bool stopped() { return pool.stopped(thread); }
};

struct Span {
    int64_t first, last;
};

// A thread's contiguous share of `total` things, in multiples of `step`.
inline Span share_of(int64_t total, int thread, int threads, int64_t step = 1) {
    const int64_t units = (total + step - 1) / step;
    const int64_t first = units * thread / threads * step, last = units * (thread + 1) / threads * step;
    return {first < total ? first : total, last < total ? last : total};
}

// Rows of weights whose dot products with one row of x share the loads of x.
constexpr int64_t AT_ONCE = 4;

struct Level {
    const char *name;
    void (*compute)(const Node &node, Part &part);
    int64_t (*scratch)(const Node &node, int threads); // bytes; -1 where no kernel takes the node
    // Writes `n` values, whole blocks of them, as numbers or blocks of a type; false where nothing does. Importance,
    // one number for each of `columns`, the same in every row, may be null.
    bool (*encode)(int type, const float *values, const float *importance, int64_t columns, int64_t n, char *out);
};

// Not each of them is compiled.
extern const Level BASELINE, AVX2, AVX512, AVX512_BF16, AMX, NEON, NEON_DOT;
