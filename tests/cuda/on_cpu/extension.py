"""Builds ``_cuda_on_cpu`` and the libraries of kernels, once for each state of their sources."""

from __future__ import annotations

import fcntl
import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib.metadata import version
from pathlib import Path
from types import ModuleType

# First: it brings the library that the extension is linked to.
import mlx.core as mx

HERE = Path(__file__).resolve().parent
REPOSITORY = HERE.parents[2]
SHIPPED = REPOSITORY / "backend_metal"
KERNELS = "cuda/kernels"
"""A folder of ``SHIPPED``, and of what stands in for that."""
FIBERS = REPOSITORY / "tests" / "metal_on_cpu" / "emulator" / "runtime"
BUILD = REPOSITORY / "build" / "cuda_on_cpu"
COMPILER = ["g++", "-std=c++20", "-O1", "-march=x86-64-v3", "-fPIC", "-shared"]
COMPILER += ["-ffp-contract=off", "-Wall", "-Werror", "-Wno-unknown-pragmas", "-Wno-unused"]


class CudaKernelError(Exception):
    """What a kernel did that a GPU does not define."""


@cache
def operators() -> ModuleType:
    """The operators, as ``backend_metal.native`` has them."""
    spec = importlib.util.spec_from_file_location("_cuda_on_cpu", _extension())
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.set_shader_folder(str(emulated_shaders()))
    module.set_compiler(_compile_kernel)
    return module


@contextmanager
def execution(
    *,
    backwards: bool = False,
    num_cores: int = 4,
    warpgroups: bool = False,
    memory_kb: int = 227,
) -> Iterator[None]:
    """How what is launched within it runs; raises ``CudaKernelError`` at the end if that failed.

    ``warpgroups``: as on a GPU whose warpgroups multiply; ``memory_kb``: that a block may share.
    """
    module = operators()
    module.take_failures()
    module.configure(backwards, num_cores, warpgroups, memory_kb)
    try:
        yield
        mx.synchronize(mx.default_stream(mx.cpu))
        if failures := module.take_failures():
            raise CudaKernelError(failures[0])
    finally:
        module.configure(False, 4, False, 227)


def _extension() -> Path:
    sources = [HERE / "CMakeLists.txt"]
    for folder in (HERE, SHIPPED / "cuda", SHIPPED / "csrc", SHIPPED / "shaders"):
        sources += [path for path in folder.rglob("*") if path.suffix in (".h", ".cpp")]
    library = BUILD / f"_cuda_on_cpu-{_hash(sources)}.so"
    with _locked(BUILD / "lock"):
        if not library.exists():
            path = {"PATH": os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))}
            python = f"-DPython_EXECUTABLE={sys.executable}"
            jobs = str(os.cpu_count()) if os.environ.get("CI") else "1"
            for command in (
                ["cmake", "-S", str(HERE), "-B", str(BUILD), python],
                ["cmake", "--build", str(BUILD), "--parallel", jobs],
            ):
                _run(command, os.environ | path)
            (built,) = BUILD.glob("_cuda_on_cpu.*.so")
            shutil.copy(built, library)
    return library


@cache
def emulated_shaders() -> Path:
    """The shipped kernels and shaders, but for what kernels ask of the hardware."""
    intrinsics = sorted((HERE / "emulator" / "kernels").glob("*.h"))
    folders = ("shaders", KERNELS)
    sources = [
        path for folder in folders for path in (SHIPPED / folder).rglob("*") if path.is_file()
    ]
    folder = BUILD / f"shaders-{_hash([*sources, *intrinsics])}"
    with _locked(BUILD / "lock"):
        if not folder.exists():
            # Whole or not at all: other processes read it.
            partial = folder.with_suffix(".partial")
            shutil.rmtree(partial, ignore_errors=True)
            for copied in folders:
                shutil.copytree(SHIPPED / copied, partial / copied)
            for header in intrinsics:
                shutil.copy(header, partial / KERNELS)
            # The standard library has the other header in angle brackets.
            (partial / "angle").mkdir()
            shutil.copy(SHIPPED / KERNELS / "metal_stdlib", partial / "angle")
            partial.rename(folder)
    return folder


def _compile_kernel(text: str) -> str:
    runtime = [*sorted((HERE / "emulator").glob("*.cpp")), FIBERS / "fiber.cpp"]
    text = "#include <block.h>\n" + text
    headers = sorted((HERE / "emulator").rglob("*.*"))
    name = f"kernel-{_hash([*runtime, *headers], text)}"
    library = BUILD / "kernels" / f"{name}.so"
    with _locked(BUILD / f"{name}.lock"):
        if not library.exists():
            library.parent.mkdir(exist_ok=True)
            source = library.with_suffix(".cpp")
            source.write_text(text)
            includes = [
                f"-I{folder}"
                for folder in (HERE / "emulator", FIBERS, emulated_shaders() / "angle")
            ]
            partial = library.with_suffix(".partial")
            inputs = [str(path) for path in (source, *runtime)]
            _run([*COMPILER, *includes, "-o", str(partial), *inputs], os.environ)
            partial.rename(library)
    return str(library)


def _hash(paths: list[Path], text: str = "") -> str:
    digest = hashlib.sha256(repr((sys.executable, version("mlx"), COMPILER, text)).encode())
    for path in sorted(paths):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def _run(command: list[str], environment: os._Environ[str] | dict[str, str]) -> None:
    result = subprocess.run(command, capture_output=True, text=True, env=environment)
    if result.returncode:
        raise RuntimeError(f"{' '.join(command)} failed:\n{result.stdout}\n{result.stderr}")


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
