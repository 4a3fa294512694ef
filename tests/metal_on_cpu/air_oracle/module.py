"""AIR as LLVM IR for this machine.

AIR is LLVM IR with names of its own for what a GPU does (`air.*`), and metadata that says what each
parameter of a kernel is bound to. What changes here: the target; function constants, which the
emulator's registry defines; threadgroup variables, one a worker thread, because a worker runs one
threadgroup at a time; and an entry point that unpacks the emulator's arguments.
"""

from __future__ import annotations

import re
import subprocess
from dataclasses import dataclass

from ..emulator import toolchain
from ..emulator.translate import FunctionConstant, Kernel, Parameter
from ..emulator.translate import kernels as parameter_kinds
from .matrices import define_matrix_operations

THREADGROUP_SPACE = 3
# The emulator's record of an argument: a pointer, then up to four numbers.
ARGUMENT_BYTES = 24
VALUES_AT = 8


@dataclass(frozen=True)
class Module:
    """One kernel; `text` defines it as the emulator's entry point 0."""

    kernel: Kernel
    constants: list[FunctionConstant]
    text: str


def read_module(name: str, bitcode: bytes) -> Module:
    """Raises `ToolMissingError` without LLVM, `ValueError` for what is not a kernel."""
    llvm_dis = toolchain.tool("llvm-dis", f"llvm-{toolchain.VERSION}")
    finished = subprocess.run([llvm_dis, "-o", "-"], input=bitcode, capture_output=True, check=True)
    text = finished.stdout.decode()
    nodes = dict(re.findall(r"^!(\d+) = (?:distinct )?!\{(.*)\}$", text, re.MULTILINE))
    kernel = Kernel(name, tuple(_parameters(text, nodes)), is_template=False)
    constants, symbols = _constants(text, nodes)
    return Module(kernel, constants, _rewrite(text, name, symbols))


def _parameters(text: str, nodes: dict[str, str]) -> list[Parameter]:
    kernel = re.search(r"^!air\.kernel = !\{!(\d+)\}$", text, re.MULTILINE)
    if kernel is None:
        raise ValueError("no kernel in this module")
    # The function, its result, its arguments, and attributes if it has any.
    arguments = nodes[re.findall(r"!(\d+)", nodes[kernel[1]])[1]]
    return [_parameter(nodes[number], nodes) for number in re.findall(r"!(\d+)", arguments)]


def _parameter(node: str, nodes: dict[str, str]) -> Parameter:
    words = re.findall(r'!"([^"]*)"', node)
    if "air.buffer" not in words:
        kinds = parameter_kinds.KINDS
        return Parameter(next(kinds[word[4:]] for word in words if word[4:] in kinds), 0)
    index = _number_after(node, "air.location_index")
    if _number_after(node, "air.address_space") == THREADGROUP_SPACE:
        return Parameter(parameter_kinds.THREADGROUP_MEMORY, index)
    depends = re.search(r'!"air\.function_constant", !(\d+)', node)
    return Parameter(
        parameter_kinds.BUFFER,
        index,
        writable="air.read" not in words,
        reference="air.buffer_size" in words,
        condition=re.findall(r'!"([^"]*)"', nodes[depends[1]])[1] if depends else None,
    )


def _number_after(node: str, word: str) -> int:
    match = re.search(rf'!"{re.escape(word)}", i32 (\d+)', node)
    assert match is not None, node
    return int(match[1])


def _constants(text: str, nodes: dict[str, str]) -> tuple[list[FunctionConstant], dict[str, str]]:
    """Function constants, and their symbols by the names that AIR gives them."""
    listed = re.search(r"^!air\.function_constants = !\{(.*)\}$", text, re.MULTILINE)
    constants, symbols = [], {}
    for number in re.findall(r"!(\d+)", listed[1]) if listed else []:
        match = re.match(r'ptr addrspace\(2\) (@\S+), !"(\w+)", !"(\w+)", i32 (\d+)', nodes[number])
        assert match is not None, nodes[number]
        constant = FunctionConstant(int(match[4]), match[3], match[2])
        constants.append(constant)
        symbols[match[1]] = f"@{constant.symbol}"
    return constants, symbols


def _rewrite(text: str, name: str, symbols: dict[str, str]) -> str:
    text = re.sub(r"^target .*\n", "", text, flags=re.MULTILINE)
    text = re.sub(r"^@llvm\.(global_ctors|compiler\.used|used) = .*\n", "", text, flags=re.M)
    # Left behind by the disassembler, of no type that LLVM still has.
    text = re.sub(r"^declare void @llvm\.lifetime\.\w+\.i64\(i64\).*\n", "", text, flags=re.M)
    text = re.sub(r',? section "air\.\w+"', "", text)
    for old, new in symbols.items():
        escaped = re.escape(old)
        text = re.sub(
            rf"^{escaped} = internal [^\n]*? constant (\w+) undef.*$",
            rf"{new} = external addrspace(2) global \1",
            text,
            flags=re.MULTILINE,
        )
        text = re.sub(rf"{escaped}(?![\w.$])", new, text)
    text = text.replace(
        "= internal unnamed_addr addrspace(3) global",
        "= internal thread_local unnamed_addr addrspace(3) global",
    )
    return define_matrix_operations(text) + _entry_point(text, name)


def _entry_point(text: str, name: str) -> str:
    signature = re.search(rf"^define \w+ void @{re.escape(name)}\((.*?)\) local", text, re.M)
    assert signature is not None
    types = re.findall(r"(?:^|, )(ptr(?: addrspace\(\d\))?|<\d x i\d+>|i\d+)(?= )", signature[1])
    body = ["  %p = inttoptr i64 %arguments to ptr"]
    # What initialises variables from function constants; they are set before each dispatch.
    body += [f"  call void @{init}()" for init in re.findall(r"@(_GLOBAL__sub_I_[\w.]+)\(", text)]
    for i, kind in enumerate(types):
        pointer = kind.startswith("ptr")
        offset = ARGUMENT_BYTES * i + (0 if pointer else VALUES_AT)
        body.append(f"  %p{i} = getelementptr i8, ptr %p, i64 {offset}")
        if pointer:
            body += [f"  %a{i} = load i64, ptr %p{i}", f"  %v{i} = inttoptr i64 %a{i} to {kind}"]
        else:
            body.append(f"  %v{i} = load {kind}, ptr %p{i}, align 4")
    passed = ", ".join(f"{kind} %v{i}" for i, kind in enumerate(types))
    body.append(f"  call void @{name}({passed})")
    return "\n".join(["define void @msl_entry_0(i64 %arguments) {", *body, "  ret void", "}", ""])
