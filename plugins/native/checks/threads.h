// Streams that share a pool, pools that come and go, runs that are stopped: for ThreadSanitizer.
#pragma once

#include <random>

#include "recorded.h"

namespace {

thread_local int asked = 0, patience = 0;

// Stops a run when it has been asked so often.
int poll() { return patience > 0 && ++asked >= patience; }

struct Counts {
    int done = 0, aborted = 0, bad_rows = 0, wrong = 0;
};

// Makes an id of a table name no row, if the program has one; false where it has none.
bool spoil(const std::vector<Node> &nodes) {
    for (const Node &node : nodes) {
        const bool second = node.op == GET_ROWS || node.op == SET_ROWS;
        const bool third = node.op == MUL_MAT_ID || node.op == ADD_ROWS || node.op == MATVEC;
        const Operand *ids = second ? &node.src[1] : third ? &node.src[2] : node.op == ROPE ? &node.src[3] : nullptr;
        if (ids == nullptr || ids->type == NO_TYPE) continue;
        std::memset(ids->data, 0x7f, ids->type == I64 ? 8 : 4); // large; -1 would be NO_ROW, which is allowed
        return true;
    }
    return false;
}

void stream(const std::vector<Program> &programs, int levels, Pool *shared, double seconds, unsigned seed,
            Counts &counts) {
    std::mt19937 random(seed);
    const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
    Pool *own = new_pool(2);
    while (std::chrono::steady_clock::now() < end) {
        if (random() % 50 == 0) tpn_pool_delete(own), own = new_pool(1 + (int)(random() % 4));
        const Program &program = programs[random() % programs.size()];
        Pool *pool = random() % 2 ? shared : own;
        const int level = (int)(random() % (unsigned)levels), count = (int)program.nodes.size();
        const Memory memory(program.memory.size());
        std::memcpy(memory.data(), program.memory.data(), program.memory.size());
        std::vector<Node> nodes = placed(program.nodes, memory.data());
        const int64_t size = tpn_prepare(level, nodes.data(), count, pool->count());
        if (size < 0) {
            counts.wrong++;
            continue;
        }
        const Memory scratch((size_t)size);
        const bool spoilt = random() % 4 == 0 && spoil(nodes);
        asked = 0, patience = random() % 2 ? 1 + (int)(random() % 3) : 0;
        Outcome outcome{};
        tpn_run(level, pool, nodes.data(), count, scratch.data(), poll, &outcome);
        counts.done += outcome.code == DONE, counts.aborted += outcome.code == ABORTED;
        counts.bad_rows += outcome.code == BAD_ROW;
        if (outcome.code == DONE) {
            const std::string found = problem(program, memory.data());
            if (!found.empty() || spoilt) counts.wrong++, std::fprintf(stderr, "%s\n", found.c_str());
        }
    }
    tpn_pool_delete(own);
}

int run_threads(const std::vector<Program> &programs, int levels, double seconds) {
    Pool *shared = new_pool(3);
    Counts counts[2];
    std::thread other([&] { stream(programs, levels, shared, seconds, 1, counts[1]); });
    stream(programs, levels, shared, seconds, 0, counts[0]);
    other.join();
    tpn_pool_delete(shared);
    const Counts &a = counts[0], &b = counts[1];
    std::printf("%d done, %d aborted, %d with a bad row, %d wrong\n", a.done + b.done, a.aborted + b.aborted,
                a.bad_rows + b.bad_rows, a.wrong + b.wrong);
    return a.wrong + b.wrong > 0;
}

} // namespace
