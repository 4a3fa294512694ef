"""clang, its flags, and the folder that keeps what it made."""

import shutil
import subprocess
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from .errors import CompileError, ToolMissingError

HERE = Path(__file__).parent
RUNTIME = HERE / "runtime"
SHIM = HERE / "shim"

VERSION = "22"

_TARGET = ["--target=x86_64-linux-gnu", "-march=x86-64-v3", "-fPIC", "-g1"]

PREPROCESS = [
    *("-E", "-x", "c++", "-std=c++20", "-nostdinc", "-Wno-everything"),
    f"-I{SHIM / 'include'}",
    *("-D__METAL__=1", "-D__METAL_VERSION__=310", "-D__HAVE_BFLOAT__=1"),
]

# Denormals and contraction as Apple's compiler has them without fast math; half and bfloat
# round after every operation.
_OPENCL = [
    *("-x", "clcpp", "-cl-std=clc++2021", "-cl-no-stdinc", "-cl-single-precision-constant"),
    *("-Xclang", "-cl-ext=+cl_khr_fp16,-cl_khr_fp64,-__opencl_c_fp64"),
    *("-Xclang", "-fnative-half-type", "-Xclang", "-fnative-half-arguments-and-returns"),
    *("-Xclang", "-fbfloat16-excess-precision=none"),
    *("-Xclang", "-ffloat16-excess-precision=none"),
    *("-fno-math-errno", "-ffp-contract=on", f"-isystem{SHIM / 'msl'}"),
    *("-Wno-everything", "-Wimplicit-float-conversion"),
    "-Wno-implicit-int-float-conversion",
    "-fno-caret-diagnostics",
]

TYPE_CHECK = [*_TARGET, *_OPENCL, "-fsyntax-only"]

# Variables start as a pattern (NaN for floats), and undefined behaviour is a trap. Of the traps a
# higher level makes code that takes it ten times as long, and runs no faster.
CHECKED_KERNEL = [
    *_TARGET,
    *_OPENCL,
    *("-O1", "-ftrivial-auto-var-init=pattern"),
    *("-fsanitize=undefined", "-fsanitize-trap=undefined", "-fno-sanitize=function,vptr"),
    *("-fsanitize-debug-trap-reasons=basic", "-fno-sanitize-merge"),
]
KERNEL = [*_TARGET, *_OPENCL, "-O2", "-ftrivial-auto-var-init=pattern"]
# Loads wider than 16 bytes are not traced.
TRACED_KERNEL = [
    *KERNEL,
    *("-fno-vectorize", "-fno-slp-vectorize", "-mprefer-vector-width=128"),
    "-fsanitize-coverage=func,trace-loads,trace-stores",
]
THREAD_SANITIZED_KERNEL = [*KERNEL, "-fsanitize=thread", "-fno-omit-frame-pointer"]

RUNTIME_FLAGS = [*_TARGET, "-std=c++20", "-O2"]


@cache
def tool(name: str, package: str) -> str:
    """The path of a program of LLVM, `name` with the version appended.

    Raises:
        ToolMissingError: it is not installed.
    """
    path = shutil.which(f"{name}-{VERSION}")
    if path is None:
        raise ToolMissingError(f"{name}-{VERSION} is not installed: apt-get install {package}")
    return path


def clang() -> str:
    return tool("clang", f"clang-{VERSION}")


def clangxx() -> str:
    return tool("clang++", f"clang-{VERSION}")


def cache_folder() -> Path:
    """Where compiled libraries are kept, by the hash of all that went into them."""
    folder = HERE.parents[2] / "build" / "metal_emulator"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def run(command: Sequence[str], source: str | None = None) -> tuple[str, str]:
    """The command's output and diagnostics.

    Raises:
        CompileError: it failed; the message is what it said.
    """
    done = subprocess.run(command, input=source, capture_output=True, text=True, check=False)
    if done.returncode:
        raise CompileError(done.stderr or f"{command[0]} ended with {done.returncode}")
    return done.stdout, done.stderr
