#include "run.h"

#include <algorithm>
#include <cstring>
#include <tuple>

#include "emulated_library.h"

namespace pomona::metal_on_cpu {

namespace {

// Whole allocations, where an access outside of them faults; written ones go back in the end.
class GuardedMemory {
 public:
  GuardedMemory(const EmulatedLibrary& library, const Settings& settings)
      : library_(library), settings_(settings) {}
  GuardedMemory(const GuardedMemory&) = delete;
  GuardedMemory& operator=(const GuardedMemory&) = delete;
  ~GuardedMemory() {
    for (auto& [id, copy] : copies_) {
      library_.free(copy.data);
    }
  }

  // Where the kernel finds the binding's first byte.
  char* place(const Binding& binding) {
    const auto& memory = binding.memory;
    if (memory.size > settings_.max_guarded_bytes) {
      return memory.data + binding.offset;
    }
    auto [it, is_new] = copies_.try_emplace(memory.id, Copy{memory});
    Copy& copy = it->second;
    if (is_new) {
      void* data = library_.allocate(memory.size, settings_.guard_at_start);
      copy.data = static_cast<char*>(data);
      std::memcpy(copy.data, memory.data, memory.size);
    }
    copy.is_written |= binding.written;
    return copy.data + binding.offset;
  }

  void write_back() const {
    for (const auto& [id, copy] : copies_) {
      if (copy.is_written) {
        std::memcpy(copy.memory.data, copy.data, copy.memory.size);
      }
    }
  }

 private:
  struct Copy {
    Memory memory;
    char* data = nullptr;
    bool is_written = false;
  };

  const EmulatedLibrary& library_;
  const Settings& settings_;
  std::map<const void*, Copy> copies_;
};

// Of the slots that share an allocation the lowest, whose range holds the others: so that a byte
// that is read through two of them counts once.
bool is_first_of_its_memory(const std::map<int, Binding>& bindings, int slot) {
  const Binding& binding = bindings.at(slot);
  return std::all_of(bindings.begin(), bindings.end(), [&](const auto& entry) {
    const auto& [other_slot, other] = entry;
    bool shares = other_slot != slot && other.memory.id == binding.memory.id;
    return !shares || std::tie(binding.offset, slot) < std::tie(other.offset, other_slot);
  });
}

metal_emulator_buffer bytes_buffer(const Binding& binding) {
  metal_emulator_buffer buffer{};
  buffer.data = const_cast<char*>(binding.bytes.data());
  buffer.size = binding.bytes.size();
  buffer.copy = 1;
  return buffer;
}

} // namespace

void run(const Dispatch& dispatch, const Settings& settings, DispatchRecord& record) {
  const auto& library = *dispatch.pipeline->library->code;
  GuardedMemory memory(library, settings);
  metal_emulator_dispatch request{};
  request.kernel = dispatch.pipeline->kernel.c_str();
  for (int i = 0; i < 3; i++) {
    request.grid[i] = dispatch.grid[i];
    request.threadgroup[i] = dispatch.group[i];
  }
  request.grid_is_threads = dispatch.grid_is_threads;
  for (const auto& [slot, binding] : dispatch.bindings) {
    auto& buffer = request.buffers[slot];
    if (binding.is_bytes()) {
      buffer = bytes_buffer(binding);
      continue;
    }
    buffer.data = memory.place(binding);
    buffer.size = binding.memory.size - binding.offset;
    buffer.track = settings.track_loads && is_first_of_its_memory(dispatch.bindings, slot);
  }
  for (const auto& [index, length] : dispatch.threadgroup_memory) {
    request.threadgroup_memory[index] = length;
  }
  std::vector<metal_emulator_constant_value> constants;
  for (const auto& [index, bits] : dispatch.pipeline->function_constants) {
    // A pipeline may be given constants that its library does not use.
    if (library.find_constant(index)) {
      constants.push_back({index, bits});
    }
  }
  request.constants = constants.data();
  request.num_constants = static_cast<int>(constants.size());
  request.seed = settings.seed;
  request.workers = settings.workers;
  request.guard_at_start = settings.guard_at_start;
  metal_emulator_result result{};
  library.run(request, result);
  memory.write_back();
  record.threadgroup_bytes_used = result.threadgroup_bytes;
  record.barriers = result.threadgroup_barriers;
  for (const auto& [slot, inputs] : record.inputs_of_slot) {
    record.loaded_bytes[slot] = result.loaded[slot];
    record.stored_bytes[slot] = result.stored[slot];
  }
  record.has_run = true;
}

} // namespace pomona::metal_on_cpu
