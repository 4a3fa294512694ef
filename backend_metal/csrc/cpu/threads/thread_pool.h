// Threads that share one loop at a time.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <thread>
#include <vector>

namespace pomona::cpu {

class ThreadPool {
 public:
  // The pool of this process, and a new one in a forked child. POMONA_CPU_THREADS sets its size;
  // else every core it may run on.
  static ThreadPool& shared();

  explicit ThreadPool(int num_threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  // Threads that share a loop, the caller's included.
  int num_threads() const {
    return num_threads_.load(std::memory_order_relaxed);
  }
  // Waits for the loop in progress. Raises std::invalid_argument unless it is at least 1.
  void resize(int num_threads);

  // Calls body(context, i) once for each i in [0, count), on any thread, lowest first; returns when
  // all are done. The body must not throw, nor run a loop. Callers in different threads take turns.
  using Body = void (*)(const void* context, std::ptrdiff_t i);
  void run(std::ptrdiff_t count, Body body, const void* context);

  template <typename F>
  void parallel_for(std::ptrdiff_t count, const F& f) {
    run(count, [](const void* c, std::ptrdiff_t i) { (*static_cast<const F*>(c))(i); }, &f);
  }

 private:
  struct Loop {
    Body body;
    const void* context;
    std::ptrdiff_t count;
  };

  void take_turns(const Loop& loop);
  void work(uint64_t seen);
  void wait_for_change(uint64_t seen) const;
  void stop();

  std::atomic<int> num_threads_;
  std::mutex caller_;
  std::vector<std::thread> workers_;

  std::mutex mutex_;
  std::condition_variable wake_;
  Loop loop_{};
  std::ptrdiff_t seats_ = 0; // of workers that may still join the loop
  bool stopping_ = false;

  std::atomic<uint64_t> generation_{0};
  std::atomic<std::ptrdiff_t> next_{0};
  std::atomic<int> active_{0};
};

} // namespace pomona::cpu
