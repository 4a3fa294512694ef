#include "cpu/arrays/task_batch.h"

namespace pomona {

namespace {

thread_local TaskBatch* current_batch = nullptr;

} // namespace

TaskBatch::TaskBatch(mx::cpu::CommandEncoder& encoder)
    : encoder_(encoder), outer_(std::exchange(current_batch, this)) {}

TaskBatch::~TaskBatch() {
  current_batch = outer_;
}

TaskBatch* TaskBatch::current() {
  return current_batch;
}

void TaskBatch::submit() {
  if (tasks_.empty()) {
    return;
  }
  encoder_.dispatch([tasks = std::exchange(tasks_, {})]() {
    for (const auto& task : tasks) {
      task();
    }
  });
}

} // namespace pomona
