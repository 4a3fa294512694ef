#include "cpu/thread_pool.h"

#include <algorithm>
#include <cstdlib>
#include <stdexcept>
#include <string>

#ifdef __linux__
#include <sched.h>
#endif

namespace pomona::cpu {

namespace {

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

} // namespace

ThreadPool& ThreadPool::shared() {
  // Never destroyed: MLX's stream threads may outlive static objects.
  static auto* pool = new ThreadPool(default_num_threads());
  return *pool;
}

ThreadPool::ThreadPool(int num_threads) {
  start(num_threads);
}

ThreadPool::~ThreadPool() {
  stop();
}

int ThreadPool::num_threads() {
  std::lock_guard turn(caller_);
  return static_cast<int>(threads_.size()) + 1;
}

void ThreadPool::resize(int num_threads) {
  if (num_threads < 1) {
    throw std::invalid_argument(
        "num_threads must be at least 1, not " + std::to_string(num_threads));
  }
  std::lock_guard turn(caller_);
  stop();
  start(num_threads);
}

void ThreadPool::start(int num_threads) {
  stopping_ = false;
  for (int thread = 1; thread < num_threads; thread++) {
    threads_.emplace_back([this, thread] { work(thread); });
  }
}

void ThreadPool::stop() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_all();
  for (auto& thread : threads_) {
    thread.join();
  }
  threads_.clear();
}

void ThreadPool::run(int count, Body body, void* context) {
  std::lock_guard turn(caller_);
  if (count <= 1 || threads_.empty()) {
    for (int i = 0; i < count; i++) {
      body(context, i, 0);
    }
    return;
  }
  std::unique_lock lock(mutex_);
  loop_ = {body, context, count, 0, 0};
  wake_.notify_all();
  take_turns(0, lock);
  done_.wait(lock, [this] { return loop_.running == 0; });
  loop_ = {};
}

void ThreadPool::work(int thread) {
  std::unique_lock lock(mutex_);
  while (true) {
    wake_.wait(lock, [this] { return stopping_ || loop_.next < loop_.count; });
    if (stopping_) {
      return;
    }
    take_turns(thread, lock);
    if (loop_.running == 0) {
      done_.notify_one();
    }
  }
}

// Iterations are long (tens of microseconds), so a lock for each costs nothing.
void ThreadPool::take_turns(int thread, std::unique_lock<std::mutex>& lock) {
  loop_.running++;
  while (loop_.next < loop_.count) {
    int i = loop_.next++;
    lock.unlock();
    loop_.body(loop_.context, i, thread);
    lock.lock();
  }
  loop_.running--;
}

} // namespace pomona::cpu
