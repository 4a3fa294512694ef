"""Compiles kernels for NVIDIA GPUs, by the compiler that MLX brings, on a machine without one."""

from __future__ import annotations

import ctypes
import re
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from tests.cuda.on_cpu.extension import KERNELS, SHIPPED, emulated_shaders, operators

ELEMENT_BYTES = {"bfloat": 2, "half": 2, "float": 4}


class CompileError(Exception):
    """The compiler's log."""


@dataclass(frozen=True)
class Resources:
    """Of one thread, as the assembler reports them."""

    registers: int
    spilled_bytes: int


def compile_attention(
    function: str,
    element: str,
    head_dims: tuple[int, int],
    architecture: str,
    *,
    options: bool = True,
) -> Resources:
    """An instantiation of a kernel of attention, with all options or none."""
    threads = 128
    if function in ("decode", "prefill", "attend_alike"):
        threads = operators().attention_threads(
            *head_dims, ELEMENT_BYTES[element], function != "prefill"
        )
    elif function == "warpgroup_prefill":
        threads = operators().warpgroup_threads(*head_dims)
    elif function == "prefill_reduce":
        threads = 512
    is_reduction = function.endswith("_reduce")
    file = "reduce" if is_reduction else function
    sizes = (head_dims[1], 0) if is_reduction else head_dims
    if function == "decode_reduce":
        sizes = (head_dims[1], operators().decode_keys(*head_dims, ELEMENT_BYTES[element]))
    return compile_kernel(
        file, function, element, "Attention", threads, architecture, options, sizes=sizes
    )


def compile_kernel(
    file: str,
    function: str,
    element: str,
    family: str,
    threads: int,
    architecture: str,
    options: bool,
    *,
    sizes: tuple[int, int] = (0, 0),
) -> Resources:
    operators().set_shader_folder(str(SHIPPED))
    try:
        text = operators().kernel_source(
            f"{file}.cu", function, element, sizes, family, threads, options
        )
    finally:
        operators().set_shader_folder(str(emulated_shaders()))
    return _resources(compile_text(text, architecture))


def compile_text(text: str, architecture: str) -> str:
    """The compiler's log; raises ``CompileError`` with it."""
    library = _nvrtc()
    names = ("metal_stdlib", "cstdint")
    headers = [(SHIPPED / KERNELS / name).read_text() for name in names]
    program = ctypes.c_void_p()
    result = library.nvrtcCreateProgram(
        ctypes.byref(program), text.encode(), b"pomona.cu", 2, _strings(headers), _strings(names)
    )
    assert result == 0
    options = (
        f"--gpu-architecture={architecture}",
        "--std=c++17",
        "--device-as-default-execution-space",
        "--ptxas-options=-v",
    )
    try:
        result = library.nvrtcCompileProgram(program, len(options), _strings(options))
        size = ctypes.c_size_t()
        library.nvrtcGetProgramLogSize(program, ctypes.byref(size))
        log = ctypes.create_string_buffer(size.value)
        library.nvrtcGetProgramLog(program, log)
    finally:
        library.nvrtcDestroyProgram(ctypes.byref(program))
    if result:
        raise CompileError(log.value.decode())
    return log.value.decode()


def _resources(log: str) -> Resources:
    registers = re.search(r"Used (\d+) registers", log)
    spills = re.search(r"(\d+) bytes spill stores, (\d+) bytes spill loads", log)
    assert registers is not None, log
    assert spills is not None, log
    # Products that wait for each other, or registers that are not handed around.
    assert "Performance Loss" not in log, log
    return Resources(int(registers[1]), int(spills[1]) + int(spills[2]))


@cache
def _nvrtc() -> ctypes.CDLL:
    spec = find_spec("nvidia")
    assert spec is not None
    places = [Path(place) for place in spec.submodule_search_locations or ()]
    (library,) = (path for place in places for path in place.glob("cu13/lib/libnvrtc.so.13"))
    return ctypes.CDLL(str(library))


def _strings(texts: tuple[str, ...] | list[str]) -> ctypes.Array[ctypes.c_char_p]:
    return (ctypes.c_char_p * len(texts))(*(text.encode() for text in texts))
