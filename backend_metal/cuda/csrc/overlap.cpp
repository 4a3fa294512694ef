#include "cuda/csrc/overlap.h"

#include <map>
#include <string_view>
#include <vector>

#include "cuda/csrc/errors.h"
#include "cuda/csrc/kernel_source.h"
#include "cuda/csrc/kernels.h"

namespace pomona::cuda {

namespace {

bool is_kernel(CUgraphNode node) {
  CUgraphNodeType type;
  check(cuGraphNodeGetType(node, &type), "cuGraphNodeGetType");
  return type == CU_GRAPH_NODE_TYPE_KERNEL;
}

// Others do not wait by themselves.
bool is_own_kernel(CUgraphNode node) {
  if (!is_kernel(node)) {
    return false;
  }
  CUDA_KERNEL_NODE_PARAMS params{};
  check(cuGraphKernelNodeGetParams(node, &params), "cuGraphKernelNodeGetParams");
  const char* name = nullptr;
  if (params.func) {
    check(cuFuncGetName(&name, params.func), "cuFuncGetName");
  }
  return name && std::string_view(name).starts_with(kEntryPrefix);
}

} // namespace

void overlap_kernels(CUgraph graph) {
  if (!has_dependent_launches()) {
    return;
  }
  size_t count = 0;
  check(cuGraphGetEdges(graph, nullptr, nullptr, nullptr, &count), "cuGraphGetEdges");
  std::vector<CUgraphNode> from(count), to(count);
  std::vector<CUgraphEdgeData> edges(count);
  check(cuGraphGetEdges(graph, from.data(), to.data(), edges.data(), &count), "cuGraphGetEdges");
  std::map<CUgraphNode, int> num_before;
  for (auto node : to) {
    num_before[node]++;
  }
  CUgraphEdgeData early{};
  early.from_port = CU_GRAPH_KERNEL_NODE_PORT_PROGRAMMATIC;
  early.type = CU_GRAPH_DEPENDENCY_TYPE_PROGRAMMATIC;
  for (size_t i = 0; i < count; i++) {
    if (num_before[to[i]] != 1 || !is_kernel(from[i]) || !is_own_kernel(to[i])) {
      continue;
    }
    check(
        cuGraphRemoveDependencies(graph, &from[i], &to[i], &edges[i], 1),
        "cuGraphRemoveDependencies");
    check(cuGraphAddDependencies(graph, &from[i], &to[i], &early, 1), "cuGraphAddDependencies");
  }
}

} // namespace pomona::cuda
