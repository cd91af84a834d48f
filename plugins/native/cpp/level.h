// What one instruction-set level offers. `kernels.cpp` is compiled once for each.
#pragma once

#include "pool.h"
#include "program.h"

// The thread's part in a node.
struct Part {
    Pool &pool;
    int thread, threads; // those that share this node; one where it is computed alone
    char *scratch;       // shared by all threads, as large as `scratch` of the level says
    int index;           // of the node

    bool barrier() { return threads == 1 ? !pool.stopped(thread) : pool.barrier(thread); }
    bool stopped() { return pool.stopped(thread); }
};

struct Level {
    const char *name;
    void (*compute)(const Node &node, Part &part);
    int64_t (*scratch)(const Node &node, int threads); // bytes; -1 where there is no such kernel
};

extern const Level BASELINE;
#if defined(TP_X86)
extern const Level AVX2;
extern const Level AVX512;
#endif
