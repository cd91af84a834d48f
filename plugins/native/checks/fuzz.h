// Damaged programs: each is refused, or touches no more than its operands say. For AddressSanitizer.
#pragma once

#include <algorithm>
#include <random>

#include "recorded.h"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#else
#define ASAN_POISON_MEMORY_REGION(data, size) ((void)(data), (void)(size))
#define ASAN_UNPOISON_MEMORY_REGION(data, size) ((void)(data), (void)(size))
#endif

namespace {

constexpr int64_t LARGE = 1 << 20; // elements: more take too long
constexpr int64_t MUCH = 1 << 28;  // bytes of scratch

typedef std::mt19937 Random;

int64_t odd_number(Random &random, int64_t old) {
    switch (random() % 10) {
    case 0: return 0;
    case 1: return -(int64_t)(random() % 1000);
    case 2: return (int64_t)1 << random() % 63;
    case 3: return INT64_MAX - random() % 8;
    case 4: return (int64_t)((uint64_t)old + 1);
    case 5: return (int64_t)((uint64_t)old - 1);
    case 6: return (int64_t)((uint64_t)old * 2);
    case 7: return old / 2;
    default: return random() % 300;
    }
}

void damage_operand(Operand &t, const std::vector<Operand *> &others, int64_t size, Random &random) {
    const Operand &other = *others[random() % others.size()];
    const unsigned d = random() % 4, e = random() % 4;
    switch (random() % 9) {
    case 0: t.type = random() % 4 ? (int32_t)(random() % 44) - 1 : (int32_t)random(); break;
    case 1: t.data = (char *)(intptr_t)(random() % (uint64_t)size / 4 * 4); break;
    case 2: t.nb[d] = odd_number(random, t.nb[d]); break;
    case 3: t.nb[d] = other.nb[e]; break;
    case 4: t.ne[d] = other.ne[e]; break;
    case 5: std::swap(t.ne[d], t.ne[e]), std::swap(t.nb[d], t.nb[e]); break;
    case 6: t = other; break;
    case 7: t.layout = random() % 4 ? IN_PANELS : (int32_t)random(); break;
    default: t.ne[d] = odd_number(random, t.ne[d]);
    }
}

void damage(Node &node, int64_t size, Random &random) {
    std::vector<Operand *> all = {&node.out, &node.also};
    for (Operand &s : node.src) all.push_back(&s);
    // Often in the same way twice: shapes that agree come farther.
    Operand &t = *all[random() % all.size()], &u = *all[random() % all.size()];
    switch (random() % 12) {
    case 0: node.op = random() % 4 ? (int32_t)(random() % OPS) : (int32_t)random(); break;
    case 1: node.i[random() % 8] = (int32_t)odd_number(random, node.i[0]); break;
    case 2: node.f[random() % 8] = random() % 2 ? NAN : (float)odd_number(random, 1); break;
    case 3: {
        const unsigned d = random() % 4;
        t.ne[d] = u.ne[d] = random() % 40;
        break;
    }
    default: damage_operand(t, all, size, random);
    }
}

// Bytes that an operand reaches over, reckoned apart from the library; -1 where it leaves the memory.
int64_t reach(const Operand &t, int64_t size) {
    const int64_t block = TYPE_SIZES[t.type].block, bytes = TYPE_SIZES[t.type].size, start = (intptr_t)t.data;
    double elements = 1, last = block == 1 ? (double)(t.ne[0] - 1) * (double)t.nb[0] + (double)bytes
                                           : (double)(t.ne[0] / block * bytes);
    for (int d = 0; d < 4; d++) elements *= (double)t.ne[d];
    for (int d = 1; d < 4; d++) last += (double)(t.ne[d] - 1) * (double)t.nb[d];
    return elements <= LARGE && start >= 0 && (double)start + last <= (double)size ? (int64_t)last : -1;
}

// Leaves open to access what the operands describe; false where that is not all in memory.
bool open_only(std::vector<Node> nodes, const Memory &memory) {
    const int64_t size = (int64_t)memory.size();
    std::vector<std::pair<int64_t, int64_t>> open;
    for (Node &node : nodes) {
        for (const Operand *t : operands(node)) {
            const int64_t bytes = reach(*t, size);
            if (bytes < 0) return false;
            open.push_back({(intptr_t)t->data, bytes});
        }
    }
    ASAN_POISON_MEMORY_REGION(memory.data(), memory.size());
    for (const auto &[start, bytes] : open) ASAN_UNPOISON_MEMORY_REGION(memory.data() + start, bytes);
    return true;
}

int stop_soon() {
    static thread_local int asked = 0;
    return ++asked % 4 == 0;
}

struct Fates {
    long refused = 0, outside = 0, run = 0;
};

void run_damaged(const Program &program, int level, Pool *pool, Random &random, Fates &fates) {
    const int64_t size = (int64_t)program.memory.size();
    std::vector<Node> damaged = program.nodes;
    for (unsigned i = 0, n = 1 + random() % 4; i < n; i++) damage(damaged[random() % damaged.size()], size, random);
    const Memory memory(program.memory.size());
    std::vector<Node> nodes = placed(damaged, memory.data());
    const int64_t room = tpn_prepare(level, nodes.data(), (int)nodes.size(), pool->count());
    if (room < 0) {
        fates.refused++;
        return;
    }
    std::memcpy(memory.data(), program.memory.data(), program.memory.size());
    for (unsigned i = 0, n = random() % 8; i < n; i++) memory.data()[random() % memory.size()] = (char)random();
    if (room > MUCH || !open_only(damaged, memory)) {
        fates.outside++;
        return;
    }
    const Memory scratch((size_t)room);
    Outcome outcome{};
    tpn_run(level, pool, nodes.data(), (int)nodes.size(), scratch.data(), stop_soon, &outcome);
    ASAN_UNPOISON_MEMORY_REGION(memory.data(), memory.size());
    fates.run++;
}

int run_fuzz(const std::vector<Program> &programs, int levels, double seconds, unsigned seed) {
    Random random(seed);
    Fates fates;
    Pool *pools[] = {new_pool(1), new_pool(3)};
    const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
    while (std::chrono::steady_clock::now() < end) {
        const Program &program = programs[random() % programs.size()];
        run_damaged(program, (int)(random() % (unsigned)levels), pools[random() % 2], random, fates);
    }
    for (Pool *pool : pools) tpn_pool_delete(pool);
    std::printf("%ld refused, %ld outside their memory, %ld run\n", fates.refused, fates.outside, fates.run);
    return fates.refused == 0 || fates.run == 0;
}

} // namespace
