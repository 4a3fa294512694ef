// Tasks of several primitives that a stream gets as one: handing each over costs a few microseconds
// of two threads, as much as a small task takes.
#pragma once

#include <mlx/backend/cpu/encoder.h>
#include <mlx/mlx.h>

#include <functional>
#include <utility>
#include <vector>

namespace pomona {

namespace mx = mlx::core;

// While there is one, what this thread dispatches waits for `submit`, which comes before anybody else
// gives the stream a task. What is not submitted when it ends never runs.
class TaskBatch {
 public:
  explicit TaskBatch(mx::cpu::CommandEncoder& encoder);
  ~TaskBatch();
  TaskBatch(const TaskBatch&) = delete;
  TaskBatch& operator=(const TaskBatch&) = delete;

  // This thread's; null: there is none.
  static TaskBatch* current();

  void add(std::function<void()> task) {
    tasks_.push_back(std::move(task));
  }

  // A task that raises is the last of its batch to run.
  void submit();

 private:
  mx::cpu::CommandEncoder& encoder_;
  TaskBatch* outer_;
  std::vector<std::function<void()>> tasks_;
};

// As encoder.dispatch, or later with the batch of this thread.
template <typename F>
void dispatch(mx::cpu::CommandEncoder& encoder, F&& task) {
  if (TaskBatch* batch = TaskBatch::current()) {
    batch->add(std::forward<F>(task));
  } else {
    encoder.dispatch(std::forward<F>(task));
  }
}

} // namespace pomona
