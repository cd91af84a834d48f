#include "pool.h"

#if defined(__x86_64__) || defined(__i386__)
#include <immintrin.h>
#endif
#if defined(__linux__)
#include <pthread.h>
#include <sched.h>
#endif

namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

constexpr int SPINS = 2000; // some 25 microseconds, longer than any wait between small nodes
constexpr int SPINS_BETWEEN_YIELDS = 100;
// Where other programs run, a thread that has gone to sleep may get its processor back only after milliseconds.
constexpr std::chrono::microseconds AWAKE{1000};
constexpr milliseconds LONG{1000};
constexpr uint32_t LOOKS = 8; // of a kernel whether to stop, for one at the clock

inline void pause() {
#if defined(__x86_64__) || defined(__i386__)
    _mm_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
}

// Keeps a thread on one processor until its end; negative ones mean any.
class Pinned {
  public:
    explicit Pinned(int processor) {
#if defined(__linux__)
        if (processor < 0 || pthread_getaffinity_np(pthread_self(), sizeof before_, &before_) != 0) return;
        cpu_set_t set;
        CPU_ZERO(&set);
        CPU_SET(processor, &set);
        is_ = pthread_setaffinity_np(pthread_self(), sizeof set, &set) == 0;
#else
        (void)processor;
#endif
    }
    ~Pinned() {
#if defined(__linux__)
        if (is_) pthread_setaffinity_np(pthread_self(), sizeof before_, &before_);
#endif
    }
    Pinned(const Pinned &) = delete;
    Pinned &operator=(const Pinned &) = delete;

#if defined(__linux__)
  private:
    bool is_ = false;
    cpu_set_t before_;
#endif
};

int processor_of(const std::vector<int> &processors, int thread) {
    return processors.empty() ? -1 : processors[(size_t)thread % processors.size()];
}

} // namespace

void Gate::wait(const std::atomic<uint32_t> &value, uint32_t old, milliseconds patience) {
    for (int i = 0; i < SPINS; i++) {
        if (value.load(std::memory_order_acquire) != old) return;
        pause();
    }
    const auto end = steady_clock::now() + AWAKE;
    do {
        for (int i = 0; i < SPINS_BETWEEN_YIELDS; i++) {
            if (value.load(std::memory_order_acquire) != old) return;
            pause();
        }
        std::this_thread::yield();
    } while (steady_clock::now() < end);
    std::unique_lock<std::mutex> lock(mutex_);
    // Either we see the change, or who made it sees us: both sides are sequentially consistent.
    sleepers_.fetch_add(1);
    changed_.wait_for(lock, patience, [&] { return value.load() != old; });
    sleepers_.fetch_sub(1);
}

void Gate::open() {
    if (sleepers_.load() == 0) return;
    std::lock_guard<std::mutex> lock(mutex_);
    changed_.notify_all();
}

Pool::~Pool() {
    closing_.store(true);
    jobs_.fetch_add(1);
    gate_.open();
    for (auto &thread : threads_) thread.join();
}

void Pool::start() {
    for (int i = (int)threads_.size() + 1; i < count_; i++) {
        threads_.emplace_back([this, i] { work(i); });
    }
}

void Pool::work(int thread) {
    const Pinned pinned(processor_of(processors_, thread));
    uint32_t seen = 0;
    for (;;) {
        while (jobs_.load() == seen) gate_.wait(jobs_, seen, LONG);
        seen++;
        if (closing_.load()) return;
        job_(what_, *this, thread);
        ended_.fetch_add(1);
        gate_.open();
    }
}

Outcome Pool::run(Job job, void *what, Poll poll) {
    std::lock_guard<std::mutex> lock(turn_);
    start();
    const Pinned pinned(processor_of(processors_, 0));
    job_ = job, what_ = what, poll_ = poll;
    cause_ = Outcome{DONE, 0, 0};
    arrived_.store(0), ended_.store(0), stop_.store(0);
    next_poll_ = steady_clock::now() + POLL_EVERY;
    jobs_.fetch_add(1);
    gate_.open();
    job(what, *this, 0);
    const auto others = (uint32_t)(count_ - 1);
    for (uint32_t n; (n = ended_.load()) != others;) {
        gate_.wait(ended_, n, POLL_EVERY);
        ask(0);
    }
    return cause_;
}

bool Pool::stopped(int thread) {
    // Reading the clock takes longer than a tiny node.
    if (thread == 0 && ++looks_ % LOOKS == 0) ask(0);
    return stop_.load(std::memory_order_relaxed) != 0;
}

void Pool::stop(Outcome cause) {
    int none = 0;
    if (!stop_.compare_exchange_strong(none, 1)) return;
    cause_ = cause;
    // Sleepers of a barrier that will never fill wake up by themselves within POLL_EVERY.
}

void Pool::ask(int thread) {
    if (thread != 0 || poll_ == nullptr || stop_.load(std::memory_order_relaxed)) return;
    const auto now = steady_clock::now();
    if (now < next_poll_) return;
    if (poll_() != 0) stop(Outcome{ABORTED, 0, 0});
    next_poll_ = steady_clock::now() + POLL_EVERY;
}
