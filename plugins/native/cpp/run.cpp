// The functions that Python calls. A plain C interface: one library serves every Python.
#include <algorithm>
#include <cstring>

#include "check.h"
#include "level.h"
#include "panels.h"
#include "processor.h"

#if defined(_WIN32)
#define EXPORT extern "C" __declspec(dllexport)
#else
#define EXPORT extern "C" __attribute__((visibility("default")))
#endif

namespace {

struct Known {
    const Level *level;
    bool (*runs)();
};

// Slowest first.
const Known LEVELS[] = {
    {&BASELINE, [] { return true; }},
#if defined(TP_HAS_AVX2)
    {&AVX2, runs_avx2},
#endif
#if defined(TP_HAS_AVX512)
    {&AVX512, runs_avx512},
#endif
#if defined(TP_HAS_AVX512_BF16)
    {&AVX512_BF16, runs_avx512_bf16},
#endif
#if defined(TP_HAS_AMX)
    {&AMX, runs_amx},
#endif
#if defined(TP_ARM64)
    {&NEON, [] { return true; }},
    {&NEON_DOT, runs_neon_dot},
#endif
};
constexpr int LEVEL_COUNT = sizeof(LEVELS) / sizeof(LEVELS[0]);

// Work that is not worth waking a second thread for, in elements of the result.
constexpr int64_t SMALL = 4096;

bool is_alone(const Node &node) {
    switch (node.op) {
    case MUL_MAT:
    case MUL_MAT_ID:
    case MATVEC: return elements(node.out) * node.src[0].ne[0] < 4 * SMALL;
    // Results are small, or memory of which little is written.
    case SET_ROWS:
    case ROPE:
    case NORM:
    case REDUCE:
    case ORDER: return elements(node.src[0]) < SMALL;
    case ATTENTION: return elements(node.out) * node.src[1].ne[1] < 4 * SMALL;
    default: return elements(node.out) < SMALL;
    }
}

struct Range {
    const char *first, *last;
    bool meets(const Range &other) const { return first < other.last && other.first < last; }
};

Range range(const Operand &t) { return {t.data, t.data + extent(t)}; }

// The memory of a node.
struct Touched {
    Range results[2], sources[SOURCES];
    int writes = 1, reads = 0;

    explicit Touched(const Node &node) {
        results[0] = range(node.out);
        if (node.also.type != NO_TYPE) results[writes++] = range(node.also);
        for (const Operand &s : node.src) {
            if (s.type != NO_TYPE) sources[reads++] = range(s);
        }
    }
};

// What nodes since the last wait read and wrote.
class Open {
  public:
    bool conflicts(const Touched &node) const {
        for (int r = 0; r < node.writes; r++) {
            if (meets(written_, node.results[r]) || meets(read_, node.results[r])) return true;
        }
        for (int s = 0; s < node.reads; s++) {
            if (meets(written_, node.sources[s])) return true;
        }
        return false;
    }
    void add(const Touched &node) {
        written_.insert(written_.end(), node.results, node.results + node.writes);
        read_.insert(read_.end(), node.sources, node.sources + node.reads);
    }
    void clear() { written_.clear(), read_.clear(); }

  private:
    static bool meets(const std::vector<Range> &ranges, const Range &range) {
        return std::any_of(ranges.begin(), ranges.end(), [&](const Range &r) { return r.meets(range); });
    }

    std::vector<Range> written_, read_;
};

struct Run {
    const Level *level;
    const Node *nodes;
    int count;
    std::atomic<int32_t> *taken; // portions by thread and node
    char *scratch;
};

constexpr int64_t LINE = 64;

// Bytes at the front of the scratch where each thread counts the portions that it takes.
int64_t counters_size(int count, int threads) {
    return (count * (int64_t)sizeof(int32_t) + LINE - 1) / LINE * LINE * threads;
}

// While a thread has to wait, it reads ahead into its cache what it will need first of the weights that come next:
// the memory would have nothing to do.
class Ahead {
  public:
    Ahead(const Run &run, int thread, int threads) : run_(run), thread_(thread), threads_(threads) {}

    // To be called before waiting for node i.
    void begin(int i) {
        // What was read for nodes before i has been used.
        if (next_ <= i) next_ = i, at_ = end_ = nullptr, left_ = BUDGET;
    }

    // Reads a little more; false where enough was read.
    bool read() {
        while (at_ >= end_) {
            if (left_ <= 0 || next_ >= run_.count) return false;
            const Node &node = run_.nodes[next_++];
            const Operand &w = node.src[0];
            const bool whole = node.op == MUL_MAT || (node.op == MATVEC && node.src[2].type == NO_TYPE);
            if (!whole || row_count(node.src[1]) != 1) continue;
            const Span rows = share_of(w.ne[1], thread_, threads_, in_panels(w) ? PANEL_ROWS : AT_ONCE);
            at_ = w.data + rows.first * w.nb[1], end_ = w.data + rows.last * w.nb[1];
        }
        for (int64_t i = 0; i < STEP; i += LINE) __builtin_prefetch(at_ + i, 0, 2);
        at_ += STEP, left_ -= STEP;
        if (left_ <= 0) at_ = end_;
        return true;
    }

  private:
    static constexpr int64_t BUDGET = 1 << 16; // bytes: less than half of a second-level cache
    static constexpr int64_t STEP = 1 << 10;   // bytes: a few hundred ns

    const Run &run_;
    const int thread_, threads_;
    int next_ = 0;
    const char *at_ = nullptr, *end_ = nullptr;
    int64_t left_ = BUDGET;
};

void job(void *what, Pool &pool, int thread) {
    const Run &run = *static_cast<Run *>(what);
    const int64_t step = counters_size(run.count, 1) / (int64_t)sizeof(int32_t);
    Ahead ahead(run, thread, pool.count());
    for (int i = 0; i < run.count; i++) {
        const Node &node = run.nodes[i];
        if (node.flags & WAIT) {
            ahead.begin(i);
            if (!pool.barrier(thread, [&] { return ahead.read(); })) return;
        } else if (pool.stopped(thread)) {
            return;
        }
        const bool alone = node.flags & ALONE;
        if (alone && thread != 0) continue;
        Part part{pool, alone ? 0 : thread, alone ? 1 : pool.count(), run.scratch, i, run.taken + i, step};
        run.level->compute(node, part);
    }
}

} // namespace

EXPORT int tpn_abi() { return ABI; }
EXPORT int64_t tpn_node_size() { return sizeof(Node); }

// The name of a level, slowest first, or null; `*usable` says whether this processor runs it.
EXPORT const char *tpn_level(int index, int *usable) {
    if (index < 0 || index >= LEVEL_COUNT) return nullptr;
    *usable = LEVELS[index].runs();
    return LEVELS[index].level->name;
}

// `count` processors for the threads; none where they may run anywhere.
EXPORT Pool *tpn_pool_new(int threads, const int *processors, int count) {
    if (threads < 1 || count < 0) return nullptr;
    return new Pool(threads, std::vector<int>(processors, processors + count));
}
EXPORT void tpn_pool_delete(Pool *pool) { delete pool; }

// `panels` panels of rows of `k` elements that lie without gaps, or those rows again; false for what has no panels.
EXPORT int tpn_pack(int type, const char *rows, int64_t k, int64_t panels, char *out) {
    const PanelForm *form = panel_form(type);
    if (form == nullptr || k < 1 || k % type_size(type)->block || panels < 0) return 0;
    const int64_t blocks = k / type_size(type)->block, size = blocks * form->size() * PANEL_ROWS;
    for (int64_t p = 0; p < panels; p++) pack_panel(*form, rows + p * size, blocks, out + p * size);
    return 1;
}

EXPORT int tpn_unpack(int type, const char *packed, int64_t k, int64_t panels, char *out) {
    const PanelForm *form = panel_form(type);
    if (form == nullptr || k < 1 || k % type_size(type)->block || panels < 0) return 0;
    const int64_t blocks = k / type_size(type)->block, row = blocks * form->size();
    for (int64_t r = 0; r < panels * PANEL_ROWS; r++) {
        unpack_row(*form, packed + r / PANEL_ROWS * PANEL_ROWS * row, r % PANEL_ROWS, blocks, out + r * row);
    }
    return 1;
}

// `rows` of `columns` values as numbers or blocks of a type, without gaps. Importance of each column may be null. False
// where no kernel of this level writes the type, or writes it so.
EXPORT int tpn_encode(int level, int type, const float *values, int64_t rows, int64_t columns, const float *importance,
                      char *out) {
    const TypeSize *size = type_size(type);
    if (level < 0 || level >= LEVEL_COUNT || size == nullptr || rows < 0 || columns < 1 || columns % size->block)
        return 0;
    return LEVELS[level].level->encode(type, values, importance, columns, rows * columns, out);
}

// Marks where threads must wait for each other; addresses must be known. Returns the bytes of scratch that
// the program needs, or -1 - i where no kernel of this level may compute node i (see check.h).
EXPORT int64_t tpn_prepare(int level, Node *nodes, int count, int threads) {
    if (level < 0 || level >= LEVEL_COUNT || count < 0 || threads < 1 || threads > MOST_THREADS) return -1;
    int64_t most = 0;
    Open open;
    bool scratch_used = false, last_alone = true;
    for (int i = 0; i < count; i++) {
        Node &node = nodes[i];
        const int64_t scratch = LEVELS[level].level->scratch(node, threads);
        if (scratch < 0) return -1 - i;
        most = scratch > most ? scratch : most;
        const bool alone = threads == 1 || is_alone(node);
        const Touched touched(node);
        // Nodes that one thread computes, one after the other, need no waiting.
        const bool apart = !open.conflicts(touched) && !(scratch && scratch_used);
        const bool wait = i > 0 && threads > 1 && !(alone && last_alone) && !apart;
        if (wait) open.clear(), scratch_used = false;
        open.add(touched);
        // A node of one thread among nodes that all threads share: nodes that read its result still wait.
        last_alone = (wait || i == 0) ? alone : last_alone && alone;
        scratch_used = scratch_used || scratch > 0;
        node.flags = (wait ? WAIT : 0) | (alone && threads > 1 ? ALONE : 0);
    }
    return counters_size(count, threads) + most;
}

// Runs a prepared program. `poll` may be null.
EXPORT int tpn_run(int level, Pool *pool, const Node *nodes, int count, char *scratch, Poll poll, Outcome *outcome) {
    auto *taken = (std::atomic<int32_t> *)scratch;
    const int64_t counters = counters_size(count, pool->count());
    std::memset(scratch, 0, counters);
    Run run{LEVELS[level].level, nodes, count, taken, scratch + counters};
    *outcome = pool->run(job, &run, poll);
    return outcome->code;
}
