// A graph of arrays that is built once, and then made again for other inputs of the same shapes.
//
// What Python does to build a model's graph takes as long as a small model takes to run; here a node
// costs two allocations. As `mx::compile` does it, but nodes stay as they were built, so that no bit
// changes and no compiler is called; only of shapes that follow one another the last one is made.
#pragma once

#include <mlx/mlx.h>
#include <mlx/primitives.h>

#include <functional>
#include <memory>
#include <vector>

#include "operators/graph_node.h"

namespace pomona {

namespace mx = mlx::core;

class RepeatedGraph {
 public:
  using Arrays = std::vector<mx::array>;

  // `build` is called once, with arrays of the shapes and dtypes of `inputs` that have no data. What
  // it makes of other arrays alone is computed once, and kept. Raises what `build` does.
  RepeatedGraph(const std::function<Arrays(const Arrays&)>& build, const Arrays& inputs);

  // What `build` would return for these, which have the shapes and dtypes of the first ones.
  Arrays operator()(const Arrays& inputs) const;

 private:
  using Value = GraphValue;
  using Node = GraphNode;

  struct Description {
    mx::Shape shape;
    mx::Dtype dtype;
  };

  class Reader;

  std::vector<Description> inputs_;
  std::vector<Node> nodes_; // each behind those that it needs
  size_t num_values_ = 0;
  Arrays kept_;
  std::vector<Value> results_;
};

} // namespace pomona
