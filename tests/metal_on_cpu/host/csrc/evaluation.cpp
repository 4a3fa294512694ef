#include "evaluation.h"

#include <deque>
#include <mutex>

#include "mlx/backend/cpu/encoder.h"
#include "mlx/backend/metal/device.h"
#include "refuse.h"
#include "run.h"
#include "settings.h"

namespace pomona::metal_on_cpu {

namespace {

using Arrays = std::vector<mx::array>;

std::mutex launches_mutex;
std::deque<std::shared_ptr<const Launch>> launches;

void remember(std::shared_ptr<const Launch> launch) {
  std::lock_guard lock(launches_mutex);
  launches.push_back(std::move(launch));
  if (launches.size() > kMaxLaunches) {
    launches.pop_front();
  }
}

// MLX keeps the memory of inputs and outputs until the commands have run, and no other.
void check_lifetimes(
    const std::vector<Dispatch>& dispatches, const Arrays& inputs, const Arrays& outputs) {
  BufferSet kept;
  for (const auto* arrays : {&inputs, &outputs}) {
    for (const auto& a : *arrays) {
      if (!a.data_shared_ptr()) {
        refuse("an output was given no memory");
      }
      kept.insert({a.buffer().ptr(), nullptr, 0, a.data_shared_ptr()});
    }
  }
  for (const auto& dispatch : dispatches) {
    for (const auto& [slot, binding] : dispatch.bindings) {
      if (!binding.is_bytes() && !kept.contains(binding.memory)) {
        refuse(dispatch.pipeline->kernel + ": buffer(" + std::to_string(slot) +
               ") is neither an input's nor an output's memory: it may be freed before it is used");
      }
    }
  }
}

DispatchRecord record_of(const Dispatch& dispatch, const Arrays& inputs) {
  DispatchRecord record;
  record.kernel = dispatch.pipeline->kernel;
  record.pipeline_key = dispatch.pipeline->key;
  record.function_constants = dispatch.pipeline->function_constants;
  record.grid = dispatch.grid;
  record.group = dispatch.group;
  record.grid_is_threads = dispatch.grid_is_threads;
  record.barrier_before = dispatch.barrier_before;
  for (const auto& [index, length] : dispatch.threadgroup_memory) {
    record.threadgroup_memory += length;
  }
  for (const auto& [slot, binding] : dispatch.bindings) {
    for (size_t i = 0; i < inputs.size(); i++) {
      if (!binding.is_bytes() && inputs[i].buffer().ptr() == binding.memory.id) {
        record.inputs_of_slot[slot].push_back(static_cast<int>(i));
      }
    }
  }
  return record;
}

// In the order in which they run: the latest that a GPU may choose, or the earliest.
std::vector<size_t> order_of(const std::vector<Dispatch>& dispatches, bool reverse_unordered) {
  std::vector<size_t> order;
  for (size_t first = 0; first < dispatches.size();) {
    size_t last = first + 1;
    while (last < dispatches.size() && !dispatches[last].barrier_before) {
      last++;
    }
    for (size_t i = first; i < last; i++) {
      order.push_back(reverse_unordered ? last - 1 - (i - first) : i);
    }
    first = last;
  }
  return order;
}

} // namespace

void evaluate(mx::Primitive& primitive, const Arrays& inputs, Arrays& outputs) {
  auto& encoder = mx::metal::get_command_encoder(primitive.stream());
  encoder.discard();
  primitive.eval_gpu(inputs, outputs);
  auto launch = std::make_shared<Launch>();
  launch->primitive = primitive.name();
  launch->counted_elements = encoder.counted_elements();
  auto dispatches = encoder.take_dispatches();
  check_lifetimes(dispatches, inputs, outputs);
  for (const auto& dispatch : dispatches) {
    launch->dispatches.push_back(record_of(dispatch, inputs));
  }
  remember(launch);
  mx::cpu::get_command_encoder(primitive.stream())
      .dispatch([dispatches = std::move(dispatches), launch, settings = settings()]() {
        for (size_t i : order_of(dispatches, settings.reverse_unordered)) {
          run(dispatches[i], settings, launch->dispatches[i]);
        }
      });
}

std::vector<std::shared_ptr<const Launch>> take_launches() {
  std::lock_guard lock(launches_mutex);
  std::vector<std::shared_ptr<const Launch>> taken(launches.begin(), launches.end());
  launches.clear();
  return taken;
}

} // namespace pomona::metal_on_cpu
