"""Runs Metal kernels on the CPU, and stops where a GPU would go wrong silently.

`compile_source` takes the text of a `.metal` file. `translate/` rewrites it to clang's C++ for
OpenCL, whose address spaces are Metal's, `shim/` is Metal's standard library, and `runtime/`
executes the result: a fiber for each GPU thread, guard pages around each buffer, NaN in fresh
threadgroup memory, an error that names the thread and the line. Start reading at `compiler.py`.
"""

from .compiler import compile_source, typecheck
from .errors import CompileError, KernelError, ToolMissingError
from .library import DispatchResult, Library

__all__ = [
    "CompileError",
    "DispatchResult",
    "KernelError",
    "Library",
    "ToolMissingError",
    "compile_source",
    "typecheck",
]
