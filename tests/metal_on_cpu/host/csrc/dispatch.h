// What one dispatch needs to run, and what is known once it has run.
#pragma once

#include <Metal/Metal.hpp>
#include <array>
#include <map>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "mlx/array.h"

namespace pomona::metal_on_cpu {

namespace mx = mlx::core;

// An allocation of MLX's. Does not keep it alive, as Metal's unretained references do not.
struct Memory {
  const void* id = nullptr;
  char* data = nullptr;
  size_t size = 0;
  std::weak_ptr<mx::array::Data> owner;
};

// What is bound to one slot: an allocation from `offset` on, or bytes copied at encoding.
struct Binding {
  Memory memory;
  int64_t offset = 0;
  std::vector<char> bytes;
  bool written = false;
  bool is_untracked = false; // bound as a Metal buffer, by which MLX orders nothing

  bool is_bytes() const {
    return memory.id == nullptr;
  }
};

// Allocations that are still the ones inserted, not later ones at their addresses.
class BufferSet {
 public:
  void insert(const Memory& memory);
  void insert(const BufferSet& other);
  bool contains(const Memory& memory) const;
  // Who owns the allocation; null when it is not among them.
  const std::weak_ptr<mx::array::Data>* find(const void* id) const;
  void clear();
  void swap(BufferSet& other);

 private:
  std::unordered_map<const void*, std::weak_ptr<mx::array::Data>> buffers_;
};

struct Dispatch {
  const MTL::ComputePipelineState* pipeline = nullptr;
  std::map<int, Binding> bindings;
  std::map<int, size_t> threadgroup_memory;
  std::array<unsigned, 3> grid{}, group{};
  bool grid_is_threads = false;
  bool barrier_before = false;
};

// One dispatch as a test sees it; the last fields once it has run.
struct DispatchRecord {
  std::string kernel;
  std::string pipeline_key;
  std::map<int, uint64_t> function_constants;
  std::array<unsigned, 3> grid{}, group{};
  bool grid_is_threads = false;
  bool barrier_before = false; // between it and the dispatches encoded earlier
  size_t threadgroup_memory = 0; // bytes of all [[threadgroup(n)]] arguments
  std::map<int, std::vector<int>> inputs_of_slot; // positions among the primitive's inputs

  bool has_run = false;
  uint64_t threadgroup_bytes_used = 0; // the most that one threadgroup held, arguments included
  uint64_t barriers = 0; // threadgroup barriers that threadgroups passed, summed
  std::map<int, uint64_t> loaded_bytes; // by slot: distinct bytes a threadgroup, summed
  std::map<int, uint64_t> stored_bytes; // by slot, each time that they were stored
};

struct Launch {
  std::string primitive;
  size_t counted_elements = 0; // towards the end of MLX's command buffer
  std::vector<DispatchRecord> dispatches;
};

} // namespace pomona::metal_on_cpu
