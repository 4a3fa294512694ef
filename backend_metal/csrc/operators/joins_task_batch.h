#pragma once

namespace pomona {

// Mixed into primitives whose eval_cpu hands all its tasks to `dispatch` of cpu/task_batch.h.
struct JoinsTaskBatch {
  virtual ~JoinsTaskBatch() = default;
};

} // namespace pomona
