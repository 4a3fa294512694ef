#include "parallel.h"

#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <thread>

namespace pomona::blas {
namespace {

// A model calls a GEMM every few ten microseconds; waking a sleeping thread takes about as long.
constexpr auto kSpin = std::chrono::microseconds(50);

void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

int usable_cpus() {
  cpu_set_t cpus;
  if (sched_getaffinity(0, sizeof(cpus), &cpus) != 0) {
    return 1;
  }
  return std::max(1, CPU_COUNT(&cpus));
}

// Indices are handed out one by one, so a worker that the machine took away delays only the index
// that it holds. A worker joins a loop under the mutex and only while it is open; the caller closes
// it and waits for those who joined, so no worker ever sees a loop that has returned.
class Pool {
 public:
  void run(std::ptrdiff_t count, const Loop& loop, int threads) {
    if (threads == 1 || count <= 1 || in_use_.exchange(true, std::memory_order_acquire)) {
      for (std::ptrdiff_t index = 0; index < count; ++index) {
        loop.run(loop.context, index);
      }
      return;
    }
    while (num_workers_ < threads - 1) {
      std::thread(&Pool::work, this).detach();
      ++num_workers_;
    }
    {
      std::lock_guard lock(mutex_);
      loop_ = loop;
      count_ = count;
      seats_ = std::min<std::ptrdiff_t>(threads, count) - 1;
      next_.store(0, std::memory_order_relaxed);
      generation_.fetch_add(1, std::memory_order_release);
    }
    wake_.notify_all();
    drain(loop, count);
    {
      std::lock_guard lock(mutex_);
      seats_ = 0;
    }
    for (int spins = 0; active_.load(std::memory_order_acquire) != 0; ++spins) {
      spins < 1000 ? relax() : std::this_thread::yield();
    }
    in_use_.store(false, std::memory_order_release);
  }

 private:
  void drain(const Loop& loop, std::ptrdiff_t count) {
    for (;;) {
      const auto index = next_.fetch_add(1, std::memory_order_relaxed);
      if (index >= count) {
        return;
      }
      loop.run(loop.context, index);
    }
  }

  void work() {
    std::uint64_t seen = 0;
    for (;;) {
      wait_for_change(seen);
      Loop loop;
      std::ptrdiff_t count;
      {
        std::unique_lock lock(mutex_);
        wake_.wait(lock, [&] { return generation_.load(std::memory_order_relaxed) != seen; });
        seen = generation_.load(std::memory_order_relaxed);
        if (seats_ == 0) {
          continue;
        }
        --seats_;
        active_.fetch_add(1, std::memory_order_relaxed);
        loop = loop_;
        count = count_;
      }
      drain(loop, count);
      active_.fetch_sub(1, std::memory_order_release);
    }
  }

  void wait_for_change(std::uint64_t seen) {
    const auto deadline = std::chrono::steady_clock::now() + kSpin;
    while (generation_.load(std::memory_order_acquire) == seen &&
           std::chrono::steady_clock::now() < deadline) {
      relax();
    }
  }

  std::atomic<bool> in_use_{false};
  int num_workers_ = 0;

  std::mutex mutex_;
  std::condition_variable wake_;
  Loop loop_{};
  std::ptrdiff_t count_ = 0;
  std::ptrdiff_t seats_ = 0;

  std::atomic<std::uint64_t> generation_{0};
  std::atomic<std::ptrdiff_t> next_{0};
  std::atomic<int> active_{0};
};

// Never destroyed: workers outlive static destructors.
std::atomic<Pool*> pool{nullptr};
std::atomic<int> thread_count{0};

Pool& current_pool() {
  static const bool created = [] {
    pool = new Pool;
    // Threads do not survive a fork; the child starts anew.
    pthread_atfork(nullptr, nullptr, [] { pool = new Pool; });
    return true;
  }();
  (void)created;
  return *pool;
}

} // namespace

void parallel_for(std::ptrdiff_t count, const Loop& loop) {
  current_pool().run(count, loop, num_threads());
}

int num_threads() {
  const int count = thread_count.load(std::memory_order_relaxed);
  return count > 0 ? count : usable_cpus();
}

void set_num_threads(int count) {
  thread_count = std::max(1, count);
}

} // namespace pomona::blas
