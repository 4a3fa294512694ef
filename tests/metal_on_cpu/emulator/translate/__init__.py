"""Turns preprocessed MSL into C++ for OpenCL, whose address spaces clang checks.

A kernel's text stays as it is wherever the two languages agree, line numbers included. What they
say differently has a file of its own here: `kernels` (signatures, instantiations),
`address_spaces` (threadgroup variables, qualified members), `rules` (what MSL forbids and clang
does not), `registry` (the tables that the runtime reads).
"""

from dataclasses import dataclass

from . import address_spaces, rules
from .address_spaces import FunctionConstant
from .kernels import Instantiation, Kernel, Parameter, find_kernels, take_instantiations
from .registry import entry_points, registry

__all__ = ["FunctionConstant", "Instantiation", "Kernel", "Parameter", "Translation", "translate"]

# Words that mean something else, or nothing special, in Metal.
# Words that are OpenCL's own, and anyone's in Metal.
_OPENCL_NAMES = (
    *("local", "global", "generic", "pipe"),
    *("atomic_int", "atomic_uint", "atomic_float", "atomic_bool"),
)
_PROLOGUE = """#include <msl.h>
#define device MSL_DEVICE
#define constant const MSL_CONSTANT
#define thread MSL_THREAD
#define threadgroup MSL_THREADGROUP
""" + "".join(f"#define {name} msl_{name}\n" for name in _OPENCL_NAMES)


@dataclass(frozen=True)
class Translation:
    kernels: dict[str, Kernel]
    instantiations: list[Instantiation]
    constants: list[FunctionConstant]
    code: str  # C++ for OpenCL
    registry: str  # C++


def translate(source: str) -> Translation:
    """Translates preprocessed MSL.

    Raises:
        CompileError: the source breaks a rule that clang would not enforce.
    """
    rules.check(source)
    kernels = find_kernels(source)
    source, instantiations = take_instantiations(source, kernels)
    source, constants = address_spaces.take_function_constants(source)
    source = address_spaces.place_threadgroup_variables(source)
    source = address_spaces.strip_attributes(source)
    source = address_spaces.qualify_members(source)
    source = address_spaces.copy_from_constant(source)
    source = address_spaces.relax_const_references(source)
    source = address_spaces.cast_literals(source)
    code = _PROLOGUE + source + '\n#line 1 "entry points"\n' + entry_points(instantiations)
    tables = registry(instantiations, kernels, constants)
    return Translation(kernels, instantiations, constants, code, tables)
