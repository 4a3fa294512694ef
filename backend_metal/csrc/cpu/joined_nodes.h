// Nodes of a graph as one primitive of a CPU's stream. MLX looks at every node of a graph several
// times on its way to the stream, and hands it over in two tasks: for one sequence that decodes this
// takes the thread that does it as long as a third of the step, on a core that products want, too.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "operators/graph_node.h"

namespace pomona {

// What nodes of a graph compute, kept apart from any arrays.
class JoinedPlan {
 public:
  // `nodes`: each behind those that it needs. `results`: of these nodes. Null where MLX is to see them
  // one by one: some are of another stream, or what they compute takes much memory, all of which a
  // joined node holds until its end.
  static std::shared_ptr<const JoinedPlan> make(
      const std::vector<GraphNode>& nodes,
      size_t num_inputs,
      const std::vector<mx::array>& kept,
      const std::vector<GraphValue>& results);

  // Arrays for its results, of inputs of the same shapes each time.
  static std::vector<mx::array> call(
      const std::shared_ptr<const JoinedPlan>& plan, const std::vector<mx::array>& inputs);

 private:
  friend class JoinedNodes;

  enum class Kind {
    joins, // whose tasks join a batch
    view, // that has no task
    reshape, // of elements that stay in their order, which is a view where these lie so
    other,
  };

  struct Step {
    GraphNode node;
    Kind kind;
    std::vector<bool> is_last_use; // of each input
    std::vector<bool> is_unused; // of each output
  };

  std::vector<Step> steps_;
  std::vector<mx::array> kept_;
  std::vector<GraphValue> results_;
  std::vector<mx::Shape> shapes_; // of the results
  std::vector<mx::Dtype> dtypes_;
  size_t num_values_ = 0;
  std::optional<mx::Stream> stream_;
};

} // namespace pomona
