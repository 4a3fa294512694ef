#include "operators/repeated_graph.h"

#include <algorithm>
#include <array>
#include <limits>
#include <stdexcept>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>

namespace pomona {

namespace {

// Whether it changes nothing but the shape: elements stay in their order.
bool reshapes(const mx::Primitive& primitive) {
  // By name: MLX does not export the classes.
  constexpr std::array<std::string_view, 5> kNames{
      "Reshape", "Flatten", "Unflatten", "ExpandDims", "Squeeze"};
  return std::ranges::find(kNames, primitive.name()) != kNames.end();
}

} // namespace

// Turns arrays into nodes, each when all that it needs is there.
class RepeatedGraph::Reader {
 public:
  Reader(RepeatedGraph& graph, const Arrays& inputs) : graph_(graph) {
    for (const mx::array& input : inputs) {
      values_.emplace(input.id(), Value(graph_.num_values_++));
    }
  }

  Value read(const mx::array& result) {
    // A stack of its own: a graph is deeper than a thread's may be.
    Arrays waiting{result};
    while (!waiting.empty()) {
      const mx::array array = waiting.back();
      const size_t num_waiting = waiting.size();
      if (!values_.contains(array.id())) {
        for (const mx::array& input : array.inputs()) {
          if (!values_.contains(input.id())) {
            waiting.push_back(input);
          }
        }
      }
      if (waiting.size() == num_waiting) {
        waiting.pop_back();
        add(array);
      }
    }
    return value_of(result);
  }

 private:
  // Of arrays that need no input.
  static constexpr Value kFree = -1;
  // Of arrays in `reshaped_`.
  static constexpr Value kReshaped = std::numeric_limits<Value>::max();

  void add(const mx::array& array) {
    if (values_.contains(array.id())) {
      return;
    }
    const Arrays& needed = array.inputs();
    const Arrays made = array.outputs();
    const bool is_free = std::ranges::all_of(
        needed, [this](const mx::array& input) { return values_.at(input.id()) < 0; });
    if (is_free) {
      for (const mx::array& output : made) {
        values_.emplace(output.id(), kFree);
      }
      return;
    }
    if (reshapes(array.primitive())) {
      auto found = reshaped_.find(needed[0].id());
      bool again = found != reshaped_.end();
      reshaped_.emplace(array.id(), again ? found->second : needed[0]);
      values_.emplace(array.id(), kReshaped);
      return;
    }
    Node node{array.primitive_ptr(), {}, {}, {}};
    for (const mx::array& input : needed) {
      node.inputs.push_back(value_of(input));
    }
    for (const mx::array& output : made) {
      node.shapes.push_back(output.shape());
      node.dtypes.push_back(output.dtype());
      values_.emplace(output.id(), Value(graph_.num_values_++));
    }
    graph_.nodes_.push_back(std::move(node));
  }

  Value value_of(const mx::array& array) {
    Value& value = values_.at(array.id());
    if (value == kFree) {
      value = kept_value(graph_.kept_.size());
      graph_.kept_.push_back(array);
    } else if (value == kReshaped) {
      value = reshaped(array, reshaped_.at(array.id()));
    }
    return value;
  }

  // `from` in the shape of `array`, whatever shapes it had in between.
  Value reshaped(const mx::array& array, const mx::array& from) {
    Value value = value_of(from);
    if (array.shape() == from.shape()) {
      return value;
    }
    auto primitive = array.primitive_ptr();
    if (array.inputs()[0].id() != from.id()) {
      primitive = mx::reshape(from, array.shape(), primitive->stream()).primitive_ptr();
    }
    graph_.nodes_.push_back({std::move(primitive), {value}, {array.shape()}, {array.dtype()}});
    return Value(graph_.num_values_++);
  }

  RepeatedGraph& graph_;
  std::unordered_map<std::uintptr_t, Value> values_;
  // What arrays are in another shape of; none of these is one itself. Made when something needs them.
  std::unordered_map<std::uintptr_t, mx::array> reshaped_;
};

RepeatedGraph::RepeatedGraph(
    const std::function<Arrays(const Arrays&)>& build, const Arrays& inputs) {
  Arrays without_data;
  for (const mx::array& input : inputs) {
    inputs_.push_back({input.shape(), input.dtype()});
    without_data.emplace_back(input.shape(), input.dtype(), nullptr, Arrays{});
  }
  const Arrays results = build(without_data);
  Reader reader(*this, without_data);
  for (const mx::array& result : results) {
    results_.push_back(reader.read(result));
  }
}

RepeatedGraph::Arrays RepeatedGraph::operator()(const Arrays& inputs) const {
  if (inputs.size() != inputs_.size()) {
    throw std::invalid_argument(
        "inputs must be " + std::to_string(inputs_.size()) + " arrays, not " +
        std::to_string(inputs.size()));
  }
  for (size_t i = 0; i < inputs.size(); i++) {
    if (inputs[i].shape() != inputs_[i].shape || inputs[i].dtype() != inputs_[i].dtype) {
      throw std::invalid_argument(
          "input " + std::to_string(i) + " has another shape or dtype than the first time");
    }
  }
  Arrays values = inputs;
  values.reserve(num_values_);
  const auto value = [&](Value index) -> const mx::array& {
    return is_kept(index) ? kept_[kept_index(index)] : values[index];
  };
  for (const Node& node : nodes_) {
    Arrays needed;
    needed.reserve(node.inputs.size());
    for (Value index : node.inputs) {
      needed.push_back(value(index));
    }
    if (node.shapes.size() == 1) {
      values.emplace_back(node.shapes[0], node.dtypes[0], node.primitive, std::move(needed));
    } else {
      for (mx::array& output :
           mx::array::make_arrays(node.shapes, node.dtypes, node.primitive, needed)) {
        values.push_back(std::move(output));
      }
    }
  }
  Arrays results;
  for (Value index : results_) {
    results.push_back(value(index));
  }
  return results;
}

} // namespace pomona
