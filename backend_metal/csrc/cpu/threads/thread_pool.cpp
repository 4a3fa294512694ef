#include "cpu/threads/thread_pool.h"

#include <pthread.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <stdexcept>
#include <string>

#ifdef __linux__
#include <sched.h>
#endif

namespace pomona::cpu {

namespace {

// A model runs a loop every few ten microseconds; waking a sleeping thread takes about as long.
constexpr auto kSpin = std::chrono::microseconds(50);

void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

int available_cores() {
#ifdef __linux__
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof(set), &set) == 0) {
    return std::max(1, CPU_COUNT(&set));
  }
#endif
  return std::max(1u, std::thread::hardware_concurrency());
}

int default_num_threads() {
  const char* text = std::getenv("POMONA_CPU_THREADS");
  int asked = text ? std::atoi(text) : 0;
  return asked > 0 ? asked : available_cores();
}

// Never destroyed: MLX's stream threads may outlive static objects.
std::atomic<ThreadPool*> shared_pool{nullptr};

} // namespace

ThreadPool& ThreadPool::shared() {
  static const bool created = [] {
    shared_pool = new ThreadPool(default_num_threads());
    // Threads do not survive a fork; the child starts anew.
    pthread_atfork(nullptr, nullptr, [] {
      shared_pool = new ThreadPool(shared_pool.load()->num_threads());
    });
    return true;
  }();
  (void)created;
  return *shared_pool;
}

// Threads start with the first loop.
ThreadPool::ThreadPool(int num_threads) : num_threads_(num_threads) {}

ThreadPool::~ThreadPool() {
  stop();
}

void ThreadPool::resize(int num_threads) {
  if (num_threads < 1) {
    throw std::invalid_argument(
        "num_threads must be at least 1, not " + std::to_string(num_threads));
  }
  std::lock_guard turn(caller_);
  stop();
  num_threads_ = num_threads;
}

void ThreadPool::stop() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
    generation_.fetch_add(1, std::memory_order_release);
  }
  wake_.notify_all();
  for (auto& worker : workers_) {
    worker.join();
  }
  workers_.clear();
  stopping_ = false;
}

// Indices are handed out one by one, so a worker that the machine took away delays only the index
// that it holds. A worker joins a loop under the mutex and only while it is open; the caller closes
// it and waits for those who joined, so no worker ever sees a loop that has returned.
void ThreadPool::run(std::ptrdiff_t count, Body body, const void* context) {
  if (count <= 1 || num_threads() == 1) {
    for (std::ptrdiff_t i = 0; i < count; i++) {
      body(context, i);
    }
    return;
  }
  std::lock_guard turn(caller_);
  const int threads = num_threads();
  while (static_cast<int>(workers_.size()) < threads - 1) {
    workers_.emplace_back([this, seen = generation_.load()] { work(seen); });
  }
  const Loop loop{body, context, count};
  {
    std::lock_guard lock(mutex_);
    loop_ = loop;
    seats_ = std::min<std::ptrdiff_t>(threads, count) - 1;
    next_.store(0, std::memory_order_relaxed);
    generation_.fetch_add(1, std::memory_order_release);
  }
  wake_.notify_all();
  take_turns(loop);
  {
    std::lock_guard lock(mutex_);
    seats_ = 0;
  }
  for (int spins = 0; active_.load(std::memory_order_acquire) != 0; ++spins) {
    spins < 1000 ? relax() : std::this_thread::yield();
  }
}

void ThreadPool::take_turns(const Loop& loop) {
  for (;;) {
    const auto i = next_.fetch_add(1, std::memory_order_relaxed);
    if (i >= loop.count) {
      return;
    }
    loop.body(loop.context, i);
  }
}

void ThreadPool::work(uint64_t seen) {
  for (;;) {
    wait_for_change(seen);
    Loop loop;
    {
      std::unique_lock lock(mutex_);
      wake_.wait(lock, [&] { return generation_.load(std::memory_order_relaxed) != seen; });
      seen = generation_.load(std::memory_order_relaxed);
      if (stopping_) {
        return;
      }
      if (seats_ == 0) {
        continue;
      }
      --seats_;
      active_.fetch_add(1, std::memory_order_relaxed);
      loop = loop_;
    }
    take_turns(loop);
    active_.fetch_sub(1, std::memory_order_release);
  }
}

void ThreadPool::wait_for_change(uint64_t seen) const {
  const auto deadline = std::chrono::steady_clock::now() + kSpin;
  while (generation_.load(std::memory_order_acquire) == seen &&
         std::chrono::steady_clock::now() < deadline) {
    relax();
  }
}

} // namespace pomona::cpu
