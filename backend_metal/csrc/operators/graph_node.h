// A node of a graph of arrays that is kept apart from any arrays.
#pragma once

#include <mlx/mlx.h>
#include <mlx/primitives.h>

#include <memory>
#include <vector>

namespace pomona {

namespace mx = mlx::core;

// A value is an input of the graph, or an output of a node, in this order; or one of the arrays that
// the graph keeps, as `kept_value` of its index.
using GraphValue = int;

constexpr GraphValue kept_value(size_t index) {
  return -2 - GraphValue(index);
}

constexpr bool is_kept(GraphValue value) {
  return value <= kept_value(0);
}

// Where `kept_value` came from.
constexpr size_t kept_index(GraphValue value) {
  return size_t(-2 - value);
}

struct GraphNode {
  std::shared_ptr<mx::Primitive> primitive;
  std::vector<GraphValue> inputs;
  std::vector<mx::Shape> shapes; // of its outputs
  std::vector<mx::Dtype> dtypes;
};

} // namespace pomona
