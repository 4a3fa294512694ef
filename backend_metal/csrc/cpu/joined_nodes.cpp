#include "cpu/joined_nodes.h"

#include <algorithm>
#include <array>
#include <stdexcept>
#include <string_view>
#include <typeinfo>
#include <utility>

#include "cpu/layers/add_rms_norm.h"
#include "cpu/layers/exponential.h"
#include "cpu/layers/float_heads.h"
#include "cpu/layers/float_rows.h"
#include "cpu/layers/panels.h"
#include "cpu/layers/quantized.h"
#include "cpu/layers/quantized_rows.h"
#include "cpu/arrays/runs.h"
#include "cpu/layers/swiglu.h"
#include "cpu/arrays/task_batch.h"
#include "operators/draw_tokens.h"
#include "operators/primitives.h"
#include "operators/recurrent.h"

namespace pomona {

namespace {

using Arrays = std::vector<mx::array>;

constexpr size_t kMostBytes = size_t(64) << 20;

// By name: MLX does not export the classes.
template <size_t N>
bool is_any_of(const mx::Primitive& primitive, const std::array<std::string_view, N>& names) {
  return std::ranges::find(names, primitive.name()) != names.end();
}

template <typename... Types>
bool is_one_of(const mx::Primitive& primitive) {
  return ((typeid(primitive) == typeid(Types)) || ...);
}

// Whether its eval_cpu hands all its tasks to `dispatch` of cpu/arrays/task_batch.h.
bool joins_batch(const mx::Primitive& primitive) {
  return is_one_of<
      AddRMSNorm,
      CausalConv,
      DrawTokens,
      Exponential,
      FloatHeads,
      FloatRows,
      LinearAttention,
      PagedAttention,
      PanelProduct,
      PanelRows,
      QuantizedProduct,
      QuantizedRows,
      ReshapeAndCache,
      ScatterPagedAttention,
      SwiGLU>(primitive);
}

constexpr std::array<std::string_view, 5> kViews{
    "Split", "Squeeze", "ExpandDims", "Broadcast", "Transpose"};
constexpr std::array<std::string_view, 3> kReshapes{"Reshape", "Flatten", "Unflatten"};

bool is_contiguous(const mx::array& in) {
  return in.flags().row_contiguous || run_length(in) == int64_t(in.size());
}

// `out` as another shape of `in`, whose elements lie one behind another.
void share_reshaped(const mx::array& in, mx::array& out) {
  const auto longest = std::ranges::max(out.shape().begin(), out.shape().end());
  const bool is_column = out.ndim() == 0 || size_t(*longest) == out.size();
  out.copy_shared_buffer(in, out.strides(), {true, true, is_column}, out.size());
}

} // namespace

class JoinedNodes : public mx::Primitive {
 public:
  JoinedNodes(mx::Stream stream, std::shared_ptr<const JoinedPlan> plan)
      : mx::Primitive(stream), plan_(std::move(plan)) {}

  void eval_cpu(const Arrays& inputs, Arrays& outputs) override {
    auto& encoder = mx::cpu::get_command_encoder(stream());
    TaskBatch batch(encoder);
    Arrays values = inputs;
    values.reserve(plan_->num_values_);
    try {
      for (const JoinedPlan::Step& step : plan_->steps_) {
        evaluate(step, values, batch, encoder);
      }
    } catch (...) {
      // Some of it may be under way, with arrays that end here.
      mx::synchronize(stream());
      throw;
    }
    // Nobody else may hold the plan, and what it keeps, when the tasks have their turn.
    batch.add([plan = plan_]() {});
    batch.submit();
    for (size_t i = 0; i < outputs.size(); i++) {
      outputs[i].copy_shared_buffer(values[plan_->results_[i]]);
    }
  }

  void eval_gpu(const Arrays&, Arrays&) override {
    throw std::runtime_error("JoinedNodes has no GPU kernel");
  }

  DEFINE_NAME(JoinedNodes)

 private:
  void evaluate(
      const JoinedPlan::Step& step,
      Arrays& values,
      TaskBatch& batch,
      mx::cpu::CommandEncoder& encoder) const {
    const GraphNode& node = step.node;
    Arrays needed, made;
    needed.reserve(node.inputs.size());
    for (size_t i = 0; i < node.inputs.size(); i++) {
      const GraphValue value = node.inputs[i];
      if (is_kept(value)) {
        needed.push_back(plan_->kept_[kept_index(value)]);
      } else if (step.is_last_use[i]) {
        // Its memory may become an output's.
        needed.push_back(std::move(values[value]));
      } else {
        needed.push_back(values[value]);
      }
    }
    for (size_t i = 0; i < node.shapes.size(); i++) {
      // Some primitives of MLX ask their output for the stream.
      made.emplace_back(node.shapes[i], node.dtypes[i], node.primitive, Arrays{});
    }
    if (step.kind == JoinedPlan::Kind::reshape && is_contiguous(needed[0])) {
      share_reshaped(needed[0], made[0]);
    } else {
      if (step.kind == JoinedPlan::Kind::reshape || step.kind == JoinedPlan::Kind::other) {
        batch.submit();
      }
      node.primitive->eval_cpu(needed, made);
    }
    for (size_t i = 0; i < needed.size(); i++) {
      if (step.is_last_use[i]) {
        keep(std::move(needed[i]), encoder);
      }
    }
    for (size_t i = 0; i < made.size(); i++) {
      values.push_back(std::move(made[i]));
      if (step.is_unused[i]) {
        keep(std::move(values.back()), encoder);
      }
    }
  }

  // Until all tasks have run, if it is the last that holds its memory.
  static void keep(mx::array done, mx::cpu::CommandEncoder& encoder) {
    if (done.data_shared_ptr().use_count() == 1) {
      encoder.add_temporary(std::move(done));
    }
  }

  std::shared_ptr<const JoinedPlan> plan_;
};

std::shared_ptr<const JoinedPlan> JoinedPlan::make(
    const std::vector<GraphNode>& nodes,
    size_t num_inputs,
    const Arrays& kept,
    const std::vector<GraphValue>& results) {
  auto plan = std::make_shared<JoinedPlan>();
  std::vector<bool> is_used(num_inputs);
  size_t num_bytes = 0;
  for (const GraphNode& node : nodes) {
    mx::Primitive& primitive = *node.primitive;
    if (!plan->stream_) {
      plan->stream_ = primitive.stream();
    }
    if (primitive.stream() != *plan->stream_ || primitive.device() != mx::Device::cpu) {
      return nullptr;
    }
    Kind kind = Kind::other;
    if (joins_batch(primitive)) {
      kind = Kind::joins;
    } else if (is_any_of(primitive, kViews)) {
      kind = Kind::view;
    } else if (is_any_of(primitive, kReshapes)) {
      kind = Kind::reshape;
    }
    const size_t first = is_used.size();
    for (size_t i = 0; i < node.shapes.size(); i++) {
      const mx::array output(node.shapes[i], node.dtypes[i], nullptr, {});
      const bool is_result = std::ranges::find(results, GraphValue(first + i)) != results.end();
      // Memory that is written in place is that of results.
      num_bytes += kind == Kind::joins || kind == Kind::other ? (is_result ? 0 : output.nbytes()) : 0;
      is_used.push_back(is_result);
    }
    plan->steps_.push_back(
        {node,
         kind,
         std::vector<bool>(node.inputs.size()),
         std::vector<bool>(node.shapes.size())});
  }
  if (results.empty() || num_bytes > kMostBytes) {
    return nullptr;
  }
  plan->num_values_ = is_used.size();
  size_t last = is_used.size();
  for (auto step = plan->steps_.rbegin(); step != plan->steps_.rend(); ++step) {
    const GraphNode& node = step->node;
    last -= node.shapes.size();
    for (size_t i = 0; i < node.shapes.size(); i++) {
      step->is_unused[i] = !is_used[last + i];
    }
    for (size_t i = node.inputs.size(); i-- > 0;) {
      const GraphValue value = node.inputs[i];
      if (!is_kept(value)) {
        step->is_last_use[i] = !is_used[value];
        is_used[value] = true;
      }
    }
  }
  for (GraphValue result : results) {
    size_t next = num_inputs;
    for (const GraphNode& node : nodes) {
      if (size_t(result) < next + node.shapes.size()) {
        plan->shapes_.push_back(node.shapes[result - next]);
        plan->dtypes_.push_back(node.dtypes[result - next]);
        break;
      }
      next += node.shapes.size();
    }
  }
  plan->results_ = results;
  plan->kept_ = kept;
  mx::eval(plan->kept_);
  return plan;
}

Arrays JoinedPlan::call(const std::shared_ptr<const JoinedPlan>& plan, const Arrays& inputs) {
  return mx::array::make_arrays(
      plan->shapes_,
      plan->dtypes_,
      std::make_shared<JoinedNodes>(*plan->stream_, plan),
      inputs);
}

} // namespace pomona
