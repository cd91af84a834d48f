// Programs that Python has recorded (tests/checked/recording.py): nodes whose addresses are places in the memory
// that follows, and what results must be after a run.
#pragma once

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "../cpp/pool.h"
#include "../cpp/program.h"

extern "C" {
int tpn_abi();
const char *tpn_level(int index, int *usable);
Pool *tpn_pool_new(int threads, const int *processors, int count);
void tpn_pool_delete(Pool *pool);
int64_t tpn_prepare(int level, Node *nodes, int count, int threads);
int tpn_run(int level, Pool *pool, const Node *nodes, int count, char *scratch, Poll poll, Outcome *outcome);
}

// Threads that may run anywhere.
inline Pool *new_pool(int threads) { return tpn_pool_new(threads, nullptr, 0); }

constexpr int64_t ALIGNMENT = 64;

struct Header {
    int64_t abi, nodes, memory, checks;
};

// A result without gaps, and how far it may be from what is wanted: sum of squared differences over squares.
struct Check {
    int64_t place, elements, type;
    double limit;
};

struct Program {
    std::vector<Node> nodes;
    std::vector<char> memory;
    std::vector<Check> checks;
    std::vector<std::vector<double>> wanted;
};

// Memory for one run of a program, aligned as Python's.
class Memory {
  public:
    explicit Memory(size_t size) : size_(size) {
        data_ = static_cast<char *>(std::aligned_alloc(ALIGNMENT, (size + ALIGNMENT) / ALIGNMENT * ALIGNMENT));
    }
    Memory(const Memory &) = delete;
    Memory &operator=(const Memory &) = delete;
    ~Memory() { std::free(data_); }
    char *data() const { return data_; }
    size_t size() const { return size_; }

  private:
    char *data_;
    size_t size_;
};

template <class T> void read_some(std::FILE *file, std::vector<T> &out, int64_t count) {
    out.resize((size_t)count);
    if (std::fread(out.data(), sizeof(T), out.size(), file) != out.size()) {
        std::fprintf(stderr, "replay: the file of programs ends early\n");
        std::exit(2);
    }
}

inline std::vector<Program> read_programs(const char *path) {
    std::FILE *file = std::fopen(path, "rb");
    if (file == nullptr) std::perror(path), std::exit(2);
    std::vector<Program> programs;
    for (Header header; std::fread(&header, sizeof header, 1, file) == 1;) {
        if (header.abi != tpn_abi()) {
            std::fprintf(stderr, "replay: programs of interface %lld\n", (long long)header.abi);
            std::exit(2);
        }
        Program p;
        read_some(file, p.nodes, header.nodes);
        read_some(file, p.memory, header.memory);
        read_some(file, p.checks, header.checks);
        for (const Check &check : p.checks) read_some(file, p.wanted.emplace_back(), check.elements);
        programs.push_back(std::move(p));
    }
    std::fclose(file);
    return programs;
}

// The operands of a node that are there.
inline std::vector<Operand *> operands(Node &node) {
    std::vector<Operand *> found = {&node.out};
    if (node.also.type != NO_TYPE) found.push_back(&node.also);
    for (Operand &s : node.src) {
        if (s.type != NO_TYPE) found.push_back(&s);
    }
    return found;
}

// The nodes with addresses in memory that starts at `base`, where they had places.
inline std::vector<Node> placed(const std::vector<Node> &nodes, char *base) {
    std::vector<Node> out = nodes;
    for (Node &node : out) {
        for (Operand *t : operands(node)) t->data = base + (intptr_t)t->data;
    }
    return out;
}

inline double half_at(const char *p) {
    uint16_t h;
    std::memcpy(&h, p, 2);
    const int exponent = h >> 10 & 31;
    const double sign = h & 0x8000 ? -1 : 1, fraction = (h & 0x3ff) / 1024.0;
    if (exponent == 31) return h & 0x3ff ? NAN : sign * INFINITY;
    return sign * std::ldexp(exponent ? 1 + fraction : fraction, exponent ? exponent - 15 : -14);
}

inline double value_at(int64_t type, const char *memory, int64_t i) {
    if (type == F32) {
        float x;
        std::memcpy(&x, memory + 4 * i, 4);
        return (double)x;
    }
    if (type == F16) return half_at(memory + 2 * i);
    if (type == BF16) {
        const char bytes[4] = {0, 0, memory[2 * i], memory[2 * i + 1]};
        return value_at(F32, bytes, 0);
    }
    int32_t x;
    std::memcpy(&x, memory + 4 * i, 4);
    return x;
}

// What is wrong with the results in `memory`; empty where nothing is.
inline std::string problem(const Program &program, const char *memory) {
    for (size_t c = 0; c < program.checks.size(); c++) {
        const Check &check = program.checks[c];
        double apart = 0, size = 0;
        for (int64_t i = 0; i < check.elements; i++) {
            const double wanted = program.wanted[c][(size_t)i], got = value_at(check.type, memory + check.place, i);
            if (std::isfinite(wanted) && std::isfinite(got)) {
                apart += (got - wanted) * (got - wanted), size += wanted * wanted;
            } else if (!(got == wanted || (std::isnan(got) && std::isnan(wanted)))) {
                return "result " + std::to_string(c) + ": " + std::to_string(got) + " at " + std::to_string(i) +
                       ", wanted " + std::to_string(wanted);
            }
        }
        if (apart > 0 && !(apart <= check.limit * (size > 1e-300 ? size : 1e-300))) {
            return "result " + std::to_string(c) + ": error " + std::to_string(apart / size) + ", allowed " +
                   std::to_string(check.limit);
        }
    }
    return "";
}
