// A primitive whose eval_gpu makes the calls of a script: so that a test can make any mistake that
// dispatch code can make.
#pragma once

#include <nanobind/nanobind.h>

#include <functional>
#include <string>
#include <vector>

#include "mlx/mlx.h"
#include "mlx/primitives.h"

namespace pomona::metal_on_cpu {

namespace mx = mlx::core;

// See bindings.cpp for the commands.
struct ScriptContext;
using Command = std::function<void(ScriptContext&)>;

// An output is new memory, or shares an input's.
struct ScriptedOutput {
  mx::Shape shape;
  mx::Dtype dtype;
  int shared_input; // -1: none
};

std::vector<mx::array> run_script(
    std::vector<mx::array> inputs,
    std::vector<ScriptedOutput> outputs,
    std::vector<Command> commands,
    mx::Stream stream);

// Raises std::invalid_argument for a command that is not known.
Command parse_command(nanobind::tuple command);

} // namespace pomona::metal_on_cpu
