"""The tables by which the runtime finds a library's kernels and function constants."""

from collections.abc import Sequence

from .address_spaces import FunctionConstant
from .kernels import BUFFER, Instantiation, Kernel, Parameter

_SIZES = {
    **dict.fromkeys(("bool", "char", "uchar"), 1),
    **dict.fromkeys(("short", "ushort", "half", "bfloat"), 2),
    **dict.fromkeys(("int", "uint", "float", "int32_t", "uint32_t"), 4),
    **dict.fromkeys(("long", "ulong", "int64_t", "uint64_t", "size_t"), 8),
}


def entry_points(instantiations: Sequence[Instantiation]) -> str:
    """Code that belongs behind the kernels: a C function for each instantiation."""
    return "".join(
        f'extern "C" void msl_entry_{i}(ulong arguments) '
        f"{{ msl_enter(&{instantiation.expression}, arguments); }}\n"
        for i, instantiation in enumerate(instantiations)
    )


def registry(
    instantiations: Sequence[Instantiation],
    kernels: dict[str, Kernel],
    constants: Sequence[FunctionConstant],
) -> str:
    """A C++ source of its own that defines the tables and the constants' storage."""
    indices = {constant.name: constant.index for constant in constants}
    lines = ['#include "metal_emulator.h"']
    rows = []
    for i, instantiation in enumerate(instantiations):
        parameters = kernels[instantiation.kernel].parameters
        lines.append(f'extern "C" void msl_entry_{i}(uint64_t);')
        table = ", ".join(_parameter_row(p, indices) for p in parameters) or "{}"
        lines.append(f"static const metal_emulator_parameter parameters_{i}[] = {{{table}}};")
        rows.append(
            f'{{"{instantiation.host_name}", msl_entry_{i}, {len(parameters)}, parameters_{i}}}'
        )
    count = len(rows)
    lines.append(f"static const metal_emulator_kernel kernels[] = {{{', '.join(rows) or '{}'}}};")
    lines.append(f"int metal_emulator_num_kernels() {{ return {count}; }}")
    lines.append(
        "const metal_emulator_kernel* metal_emulator_get_kernel(int i) { return &kernels[i]; }"
    )
    rows = []
    for constant in {c.index: c for c in constants}.values():
        symbol = constant.symbol
        lines.append(f'extern "C" char {symbol}[8], {symbol}_defined;')
        lines.append(f"alignas(8) char {symbol}[8]; char {symbol}_defined;")
        rows.append(
            f'{{{constant.index}, "{constant.name}", "{constant.type}", {symbol}, '
            f"reinterpret_cast<unsigned char*>(&{symbol}_defined), {_SIZES[constant.type]}}}"
        )
    count = len(rows)
    lines.append(
        f"static const metal_emulator_constant constants[] = {{{', '.join(rows) or '{}'}}};"
    )
    lines.append(f"int metal_emulator_num_constants() {{ return {count}; }}")
    lines.append(
        "const metal_emulator_constant* metal_emulator_get_constant(int i) "
        "{ return &constants[i]; }"
    )
    return "\n".join(lines) + "\n"


def _parameter_row(parameter: Parameter, constants: dict[str, int]) -> str:
    required = parameter.kind == BUFFER and parameter.condition is None
    fields = (
        parameter.kind,
        parameter.index,
        int(parameter.writable),
        int(parameter.reference),
        int(required),
        constants.get(parameter.condition or "", -1),
    )
    return "{" + ", ".join(map(str, fields)) + "}"
