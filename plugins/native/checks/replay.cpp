// Runs recorded programs without Python.
//
//   replay run FILE [THREADS]      at each level that this processor has; results are compared
//   replay threads FILE SECONDS    from two streams, on shared and own pools, stopped at times
//   replay fuzz FILE SECONDS SEED  damaged at random
#include "fuzz.h"
#include "threads.h"

namespace {

std::vector<std::string> usable_levels() {
    std::vector<std::string> names;
    int usable = 0;
    for (int i = 0; const char *name = tpn_level(i, &usable); i++) {
        if (usable) names.push_back(name);
    }
    return names;
}

std::string run_once(const Program &program, int level, Pool *pool) {
    const Memory memory(program.memory.size());
    std::memcpy(memory.data(), program.memory.data(), program.memory.size());
    std::vector<Node> nodes = placed(program.nodes, memory.data());
    const int count = (int)nodes.size();
    const int64_t size = tpn_prepare(level, nodes.data(), count, pool->count());
    if (size < 0) return "node " + std::to_string(-1 - size) + " is refused";
    const Memory scratch((size_t)size);
    Outcome outcome{};
    tpn_run(level, pool, nodes.data(), count, scratch.data(), nullptr, &outcome);
    if (outcome.code != DONE) return "ended with " + std::to_string(outcome.code);
    return problem(program, memory.data());
}

int run_all(const std::vector<Program> &programs, const std::vector<std::string> &levels, int threads) {
    Pool *pool = new_pool(threads);
    int wrong = 0;
    for (size_t level = 0; level < levels.size(); level++) {
        for (size_t i = 0; i < programs.size(); i++) {
            const std::string found = run_once(programs[i], (int)level, pool);
            if (found.empty()) continue;
            wrong++;
            std::fprintf(stderr, "%s: program %zu (op %d): %s\n", levels[level].c_str(), i, programs[i].nodes[0].op,
                         found.c_str());
        }
        std::printf("%s: %zu programs\n", levels[level].c_str(), programs.size());
    }
    tpn_pool_delete(pool);
    return wrong > 0;
}

} // namespace

int main(int count, char **arguments) {
    if (count < 3) return std::fprintf(stderr, "replay run|threads|fuzz FILE [NUMBER [SEED]]\n"), 2;
    const std::string mode = arguments[1];
    const std::vector<Program> programs = read_programs(arguments[2]);
    const std::vector<std::string> levels = usable_levels();
    const double number = count > 3 ? std::atof(arguments[3]) : 2;
    if (mode == "run") return run_all(programs, levels, (int)number);
    if (mode == "threads") return run_threads(programs, (int)levels.size(), number);
    if (mode == "fuzz")
        return run_fuzz(programs, (int)levels.size(), number, count > 4 ? (unsigned)std::atoi(arguments[4]) : 0);
    return 2;
}
