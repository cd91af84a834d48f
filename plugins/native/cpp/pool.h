// Threads that run one job together: the caller's own and `count - 1` more.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "program.h"

// Asked every few milliseconds by the calling thread; anything but 0 stops the run.
using Poll = int (*)();

// Waits in two steps: looks for a while without giving up the processor, then sleeps.
class Gate {
  public:
    // Returns when `value` differs from `old`, or after `patience` has passed asleep.
    void wait(const std::atomic<uint32_t> &value, uint32_t old, std::chrono::milliseconds patience);
    // To be called after `value` has changed.
    void open();

  private:
    std::mutex mutex_;
    std::condition_variable changed_;
    std::atomic<int> sleepers_{0};
};

class Pool {
  public:
    using Job = void (*)(void *what, Pool &pool, int thread);

    // Thread i runs on `processors[i % size]`, the caller's own while it runs a job; anywhere where there are none.
    explicit Pool(int count, std::vector<int> processors = {}) : count_(count), processors_(std::move(processors)) {}
    ~Pool();
    int count() const { return count_; }

    // Calls `job` on every thread and returns when all have ended it. One job at a time.
    Outcome run(Job job, void *what, Poll poll);

    // Waits until every thread of the job is here; false where the job is to end now. `idle` is called meanwhile, as
    // long as it returns true.
    template <class Idle> bool barrier(int thread, Idle idle) {
        if (count_ == 1) return !stopped(thread);
        const uint32_t phase = phase_.load();
        if (arrived_.fetch_add(1) + 1 == count_) {
            arrived_.store(0);
            phase_.fetch_add(1);
            gate_.open();
            return stop_.load(std::memory_order_relaxed) == 0;
        }
        bool more = true;
        while (phase_.load(std::memory_order_acquire) == phase) {
            if (stop_.load(std::memory_order_relaxed)) return false;
            if (more && (more = idle())) continue;
            gate_.wait(phase_, phase, POLL_EVERY);
            ask(thread);
        }
        return stop_.load(std::memory_order_relaxed) == 0;
    }
    bool barrier(int thread) {
        return barrier(thread, [] { return false; });
    }
    // Whether the job is to end now. Kernels ask between portions of work.
    bool stopped(int thread);
    // Ends the job; the first cause stays.
    void stop(Outcome cause);

  private:
    static constexpr std::chrono::milliseconds POLL_EVERY{5};

    void start();
    void work(int thread);
    void ask(int thread);

    const int count_;
    const std::vector<int> processors_;
    std::vector<std::thread> threads_;
    std::mutex turn_;
    Gate gate_;
    std::atomic<uint32_t> jobs_{0}, phase_{0}, ended_{0};
    std::atomic<int> arrived_{0};
    std::atomic<int> stop_{0};
    std::atomic<bool> closing_{false};
    Job job_ = nullptr;
    void *what_ = nullptr;
    Poll poll_ = nullptr;
    std::chrono::steady_clock::time_point next_poll_;
    uint32_t looks_ = 0; // of the calling thread
    Outcome cause_{};
};
