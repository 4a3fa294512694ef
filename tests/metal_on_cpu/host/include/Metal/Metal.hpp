// The few types of metal-cpp that MLX's headers and our dispatch code show, without Metal.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>

namespace NS {

using UInteger = std::uintptr_t;

enum StringEncoding { ASCIIStringEncoding = 1, UTF8StringEncoding = 4 };

class String {
 public:
  static String* string(const char* text, StringEncoding encoding);
  const char* utf8String() const;
};

} // namespace NS

namespace pomona::metal_on_cpu {

class EmulatedLibrary;
struct KernelSignature;

} // namespace pomona::metal_on_cpu

namespace MTL {

// Values as in MTLArgument.h.
enum DataType {
  DataTypeFloat = 3,
  DataTypeHalf = 16,
  DataTypeInt = 29,
  DataTypeUInt = 33,
  DataTypeShort = 37,
  DataTypeUShort = 41,
  DataTypeChar = 45,
  DataTypeUChar = 49,
  DataTypeBool = 53,
  DataTypeLong = 81,
  DataTypeULong = 85,
};

struct Size {
  Size() = default;
  Size(NS::UInteger width, NS::UInteger height, NS::UInteger depth)
      : width(width), height(height), depth(depth) {}
  static Size Make(NS::UInteger width, NS::UInteger height, NS::UInteger depth) {
    return {width, height, depth};
  }

  NS::UInteger width = 0, height = 0, depth = 0;
};

// Never made: a pointer to one is an MLX allocation's address.
class Resource;
class Buffer;
class CommandBuffer;
class CommandQueue;

class Device {
 public:
  NS::UInteger maxThreadgroupMemoryLength() const;
  Size maxThreadsPerThreadgroup() const;
  NS::UInteger recommendedMaxWorkingSetSize() const;
};

struct Library {
  std::string name;
  std::string source;
  pomona::metal_on_cpu::EmulatedLibrary* code = nullptr;
};

class ComputePipelineState {
 public:
  NS::UInteger maxTotalThreadsPerThreadgroup() const;
  NS::UInteger staticThreadgroupMemoryLength() const {
    return static_threadgroup_memory;
  }
  NS::UInteger threadExecutionWidth() const {
    return 32;
  }

  std::string kernel;
  std::string key;
  Library* library = nullptr;
  const pomona::metal_on_cpu::KernelSignature* signature = nullptr;
  std::map<int, std::uint64_t> function_constants; // the value's bytes, by index
  NS::UInteger static_threadgroup_memory = 0;
};

} // namespace MTL
