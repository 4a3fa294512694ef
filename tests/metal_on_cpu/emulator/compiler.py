"""From the text of an MSL source to a library of kernels."""

import hashlib
import os
import re
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from . import toolchain
from .errors import CompileError
from .library import Library
from .translate import Translation, translate

Build = Literal["checked", "traced", "thread"]

_BFLOAT_CONVERSION = re.compile(
    r"^(.*): warning: (implicit conversion.*to '(?:bfloat|__bf16)'.*)$", re.M
)


def typecheck(source: str, *, name: str = "source.metal", includes: Sequence[Path] = ()) -> None:
    """Checks every instantiation of `source` without generating code.

    Raises:
        CompileError: what is wrong, and where.
        ToolMissingError: clang is not installed.
    """
    translation = translate(preprocess(source, name, includes))
    _compile(translation, [*toolchain.TYPE_CHECK, "-"])


def compile_source(
    source: str,
    *,
    name: str = "source.metal",
    includes: Sequence[Path] = (),
    sanitizer: Literal[None, "thread"] = None,
) -> Library:
    """Compiles MSL to a library of kernels, or takes it from the cache.

    Args:
        source: MSL text; `#include <metal_stdlib>` and its like are known.
        name: what diagnostics call the source.
        includes: folders for `#include`.
        sanitizer: "thread" builds for ThreadSanitizer; such a library runs only in a process
            that has the sanitizer's runtime loaded (see `races.race_report`).

    Raises:
        CompileError: the source is not valid MSL.
        ToolMissingError: clang is not installed.
    """
    text = preprocess(source, name, includes)
    translation = translate(text)
    build: Build = "thread" if sanitizer == "thread" else "checked"
    path = build_library(translation, build)
    return Library(path, translation, build)


def preprocess(source: str, name: str, includes: Sequence[Path]) -> str:
    """`source` with its includes and macros expanded, lines marked by `#line`."""
    folders = [f"-I{folder}" for folder in includes]
    text, _ = toolchain.run(
        [toolchain.clang(), *toolchain.PREPROCESS, *folders, "-"],
        f'#line 1 "{name}"\n{source}\n',
    )
    text = re.sub(r'^# (\d+) ("[^"]*").*$', r"#line \1 \2", text, flags=re.M)
    return re.sub(r"^#pragma METAL.*$", "", text, flags=re.M)


def build_library(translation: Translation, build: Build) -> Path:
    """The library's file in the cache, compiled if it is not there."""
    flags = {
        "checked": toolchain.CHECKED_KERNEL,
        "traced": toolchain.TRACED_KERNEL,
        "thread": toolchain.THREAD_SANITIZED_KERNEL,
    }[build]
    key = _hash(translation.code, translation.registry, *flags, _tooling_hash())
    path = toolchain.cache_folder() / f"{key}.so"
    if path.exists():
        return path
    with tempfile.TemporaryDirectory(dir=toolchain.cache_folder()) as folder:
        kernels = Path(folder) / "kernels.o"
        registry = Path(folder) / "registry.cpp"
        library = Path(folder) / "library.so"
        _compile(translation, [*flags, "-c", "-", "-o", str(kernels)])
        registry.write_text(translation.registry)
        sanitize = ["-fsanitize=thread", "-shared-libsan"] if build == "thread" else []
        toolchain.run(
            [
                *(toolchain.clangxx(), *toolchain.RUNTIME_FLAGS, f"-I{toolchain.RUNTIME}"),
                *("-shared", "-pthread", str(registry), str(kernels)),
                *(str(runtime_objects(build)), "-o", str(library), "-lm", "-ldl", *sanitize),
            ]
        )
        library.rename(path)
    return path


def runtime_objects(build: Build) -> Path:
    """The runtime as one object file."""
    defines = ["-DMETAL_EMULATOR_TSAN"] if build == "thread" else []
    path = toolchain.cache_folder() / f"runtime-{_hash(*defines, _tooling_hash())}.o"
    if path.exists():
        return path
    with tempfile.TemporaryDirectory(dir=toolchain.cache_folder()) as folder:
        objects = []
        for source in sorted(toolchain.RUNTIME.glob("*.cpp")):
            target = str(Path(folder) / f"{source.stem}.o")
            objects.append(target)
            flags = [*toolchain.RUNTIME_FLAGS, *defines]
            toolchain.run([toolchain.clangxx(), *flags, "-c", str(source), "-o", target])
        whole = Path(folder) / "runtime.o"
        toolchain.run([toolchain.clangxx(), "-r", *objects, "-o", str(whole)])
        whole.rename(path)
    return path


def _compile(translation: Translation, arguments: list[str]) -> None:
    _, diagnostics = toolchain.run([toolchain.clang(), *arguments], translation.code)
    conversion = _BFLOAT_CONVERSION.search(diagnostics)
    if conversion:
        raise CompileError(f"{conversion[1]}: error: {conversion[2]} (MSL has none)")


def _tooling_hash() -> str:
    files = [*toolchain.RUNTIME.iterdir(), *(toolchain.SHIM / "msl").iterdir()]
    return _hash(*(path.read_text() for path in sorted(files)))


def _hash(*parts: str) -> str:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part.encode())
        digest.update(os.sep.encode())
    return digest.hexdigest()[:24]
