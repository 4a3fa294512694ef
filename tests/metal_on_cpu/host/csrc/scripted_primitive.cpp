#include "scripted_primitive.h"

#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <map>
#include <optional>
#include <stdexcept>

#include "evaluation.h"
#include "mlx/allocator.h"
#include "mlx/backend/metal/device.h"

namespace nb = nanobind;

namespace pomona::metal_on_cpu {

struct ScriptContext {
  mx::Stream stream;
  const std::vector<mx::array>& inputs;
  std::vector<mx::array>& outputs;
  mx::metal::CommandEncoder& encoder;
  std::optional<mx::metal::CommandEncoder::ConcurrentContext> concurrent;
};

namespace {

class ScriptedPrimitive : public mx::Primitive {
 public:
  ScriptedPrimitive(
      mx::Stream stream, std::vector<ScriptedOutput> outputs, std::vector<Command> commands)
      : mx::Primitive(stream), outputs_(std::move(outputs)), commands_(std::move(commands)) {}

  void eval_cpu(const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) override {
    evaluate(*this, inputs, outputs);
  }

  void eval_gpu(const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) override {
    for (size_t i = 0; i < outputs.size(); i++) {
      if (outputs_[i].shared_input >= 0) {
        outputs[i].copy_shared_buffer(inputs[outputs_[i].shared_input]);
      } else {
        outputs[i].set_data(mx::allocator::malloc(outputs[i].nbytes()));
      }
    }
    ScriptContext context{
        stream(), inputs, outputs, mx::metal::get_command_encoder(stream()), std::nullopt};
    for (const auto& command : commands_) {
      command(context);
    }
  }

  DEFINE_NAME(ScriptedPrimitive)

 private:
  std::vector<ScriptedOutput> outputs_;
  std::vector<Command> commands_;
};

// A value that lives as long as the list of pointers to it.
struct Constant {
  int index;
  MTL::DataType type;
  uint64_t bits;
};

Constant parse_constant(nb::handle index, nb::handle value) {
  Constant constant{nb::cast<int>(index), MTL::DataTypeInt, 0};
  if (nb::isinstance<nb::bool_>(value)) {
    constant.type = MTL::DataTypeBool;
    constant.bits = nb::cast<bool>(value);
  } else if (nb::isinstance<nb::float_>(value)) {
    constant.type = MTL::DataTypeFloat;
    float number = nb::cast<float>(value);
    std::memcpy(&constant.bits, &number, sizeof number);
  } else {
    int number = nb::cast<int>(value);
    std::memcpy(&constant.bits, &number, sizeof number);
  }
  return constant;
}

Command parse_pipeline(nb::tuple arguments) {
  auto library = nb::cast<std::string>(arguments[1]);
  auto source = nb::cast<std::string>(arguments[2]);
  auto kernel = nb::cast<std::string>(arguments[3]);
  auto key = nb::cast<std::string>(arguments[4]);
  std::vector<Constant> constants;
  for (auto [index, value] : nb::cast<nb::dict>(arguments[5])) {
    constants.push_back(parse_constant(index, value));
  }
  return [=](ScriptContext& context) {
    mx::metal::MTLFCList list;
    for (const auto& constant : constants) {
      list.emplace_back(&constant.bits, constant.type, constant.index);
    }
    auto& device = mx::metal::device(mx::Device::gpu);
    auto* code = device.get_library(library, [&] { return source; });
    context.encoder.set_compute_pipeline_state(device.get_kernel(kernel, code, key, list));
  };
}

// Memory that nobody holds on to.
void bind_scratch(ScriptContext& context, int bytes, int slot) {
  mx::array scratch({bytes}, mx::uint8, nullptr, {});
  scratch.set_data(mx::allocator::malloc(bytes));
  context.encoder.set_output_array(scratch, slot);
}

MTL::Size size_of(const std::vector<size_t>& size) {
  return {size.at(0), size.at(1), size.at(2)};
}

Command parse_dispatch(nb::tuple arguments, bool grid_is_threads) {
  auto grid = nb::cast<std::vector<size_t>>(arguments[1]);
  auto group = nb::cast<std::vector<size_t>>(arguments[2]);
  return [=](ScriptContext& context) {
    if (grid_is_threads) {
      context.encoder.dispatch_threads(size_of(grid), size_of(group));
    } else {
      context.encoder.dispatch_threadgroups(size_of(grid), size_of(group));
    }
  };
}

Command parse_binding(const std::string& name, int which, int slot, int64_t offset) {
  if (name == "input") {
    return [=](ScriptContext& c) { c.encoder.set_input_array(c.inputs.at(which), slot, offset); };
  }
  if (name == "output") {
    return [=](ScriptContext& c) { c.encoder.set_output_array(c.outputs.at(which), slot, offset); };
  }
  if (name == "buffer") {
    return [=](ScriptContext& c) {
      auto buffer = c.inputs.at(which).buffer();
      c.encoder.set_buffer(static_cast<const MTL::Buffer*>(buffer.ptr()), slot, offset);
    };
  }
  throw std::invalid_argument("there is no command " + name);
}

} // namespace

Command parse_command(nb::tuple command) {
  auto name = nb::cast<std::string>(command[0]);
  auto number = [&](size_t i) { return nb::cast<int64_t>(command[i]); };
  if (name == "pipeline") {
    return parse_pipeline(command);
  }
  if (name == "dispatch_threadgroups" || name == "dispatch_threads") {
    return parse_dispatch(command, name == "dispatch_threads");
  }
  if (name == "bytes") {
    auto bytes = nb::cast<nb::bytes>(command[1]);
    std::vector<char> values(bytes.c_str(), bytes.c_str() + bytes.size());
    return [values, slot = number(2)](ScriptContext& c) {
      c.encoder.set_vector_bytes(values, slot);
    };
  }
  if (name == "threadgroup_memory") {
    return [length = number(1), index = number(2)](ScriptContext& c) {
      c.encoder.set_threadgroup_memory_length(length, index);
    };
  }
  if (name == "register_output") {
    return [i = number(1)](ScriptContext& c) { c.encoder.register_output_array(c.outputs.at(i)); };
  }
  if (name == "temporary") {
    return [i = number(1)](ScriptContext& c) { c.encoder.add_temporary(c.inputs.at(i)); };
  }
  if (name == "scratch") {
    return [bytes = number(1), slot = number(2)](ScriptContext& c) {
      bind_scratch(c, bytes, slot);
    };
  }
  if (name == "barrier") {
    return [](ScriptContext& c) { c.encoder.barrier(); };
  }
  if (name == "concurrent") {
    return [is_on = number(1)](ScriptContext& c) {
      c.concurrent.reset();
      if (is_on) {
        c.concurrent.emplace(c.encoder);
      }
    };
  }
  return parse_binding(name, number(1), number(2), number(3));
}

std::vector<mx::array> run_script(
    std::vector<mx::array> inputs,
    std::vector<ScriptedOutput> outputs,
    std::vector<Command> commands,
    mx::Stream stream) {
  std::vector<mx::Shape> shapes;
  std::vector<mx::Dtype> dtypes;
  for (const auto& output : outputs) {
    shapes.push_back(output.shape);
    dtypes.push_back(output.dtype);
  }
  auto primitive =
      std::make_shared<ScriptedPrimitive>(stream, std::move(outputs), std::move(commands));
  return mx::array::make_arrays(std::move(shapes), dtypes, primitive, inputs);
}

} // namespace pomona::metal_on_cpu
