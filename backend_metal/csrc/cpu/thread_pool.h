// Threads that share one loop at a time.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <thread>
#include <vector>

namespace pomona::cpu {

class ThreadPool {
 public:
  // The pool of this process. POMONA_CPU_THREADS sets its size; else every core it may run on.
  static ThreadPool& shared();

  explicit ThreadPool(int num_threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int num_threads();
  // Waits for the loop in progress.
  void resize(int num_threads);

  // Calls body(context, i, thread) once for each i in [0, count), on any thread, lowest first;
  // returns when all are done. `thread` is less than num_threads(). The body must not throw.
  // Callers in different threads take turns.
  using Body = void (*)(void* context, int i, int thread);
  void run(int count, Body body, void* context);

  template <typename F>
  void parallel_for(int count, F&& f) {
    run(count, [](void* c, int i, int thread) { (*static_cast<F*>(c))(i, thread); }, &f);
  }

 private:
  struct Loop {
    Body body;
    void* context;
    int count;
    int next;
    int running;
  };

  void start(int num_threads);
  void stop();
  void work(int thread);
  void take_turns(int thread, std::unique_lock<std::mutex>& lock);

  std::mutex caller_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::condition_variable done_;
  std::vector<std::thread> threads_;
  Loop loop_{};
  bool stopping_ = false;
};

} // namespace pomona::cpu
