"""A macOS SDK for the linker and the compiler, out of what PyPI has.

No file of it is Apple's SDK. C headers and libSystem's symbols come with ``ziglang``, libc++'s
headers too. Of every other library of the system the SDK knows the symbols that MLX's own binaries
import, and no more: a symbol that MLX does not use cannot be linked, because nothing here could say
that the oldest macOS we support has it.
"""

from __future__ import annotations

import re
from collections import defaultdict
from pathlib import Path

from . import macho
from .mlx_wheels import mlx_for_macos
from .text_stub import text_stub
from .tools import CACHE, one_at_a_time, python_package

HERE = Path(__file__).parent
LIBSYSTEM = "/usr/lib/libSystem.B.dylib"
LIBCXX = "/usr/lib/libc++.1.dylib"
LIBOBJC = "/usr/lib/libobjc.A.dylib"
# Apple's Foundation hands on the Objective-C runtime.
REEXPORTS = {"Foundation": [LIBOBJC]}


def macos_sdk() -> Path:
    """The SDK's folder. What is as it should be is left alone, so that nothing is built twice."""
    sdk = CACHE / "macos-sdk"
    zig = python_package("ziglang") / "lib"
    include = sdk / "usr" / "include"
    with one_at_a_time(sdk):
        _link_all(zig / "libc" / "include" / "any-darwin-any", include)
        _cxx_headers(zig / "libcxx" / "include", include / "c++" / "v1")
        _link_all(zig / "libcxxabi" / "include", include / "c++" / "v1")
        _link_all(HERE / "frameworks", sdk / "System" / "Library" / "Frameworks")
        _libraries(zig, sdk)
    return sdk


def imported_by_mlx() -> dict[str, frozenset[str]]:
    """Symbols that MLX takes from each library of the system, by install name."""
    found: dict[str, set[str]] = defaultdict(set)
    for path in mlx_libraries():
        for library, symbols in macho.read(path).imports.items():
            # C++'s weak symbols, looked up everywhere, are libc++'s.
            weak = {name for name in symbols if name.startswith("__Z")}
            found[library or LIBCXX] |= symbols if library else weak
    return {library: frozenset(symbols) for library, symbols in found.items()}


def mlx_libraries() -> list[Path]:
    """``libmlx`` and the extension module ``mlx.core``."""
    mlx = mlx_for_macos()
    return [mlx / "lib" / "libmlx.dylib", *mlx.glob("core.*.so")]


def _cxx_headers(source: Path, target: Path) -> None:
    # The package's libc++ expects its options on the command line.
    config = "#include <__config_site>\n" + (source / "__config").read_text()
    _write(target / "__config", config)
    _write(target / "__config_site", (HERE / "config_site.h").read_text())
    _link_all(source, target)


def _libraries(zig: Path, sdk: Path) -> None:
    # An SDK of the next macOS, with an architecture that lld does not know.
    system = (zig / "libc" / "darwin" / "libSystem.tbd").read_text()
    system = re.sub(r"\barm64e\.x1-\w+\s*,?", "", system)
    _write(sdk / "usr/lib/libSystem.tbd", system.replace("arm64e-macos", "arm64-macos"))
    imported = imported_by_mlx()
    libraries = {name for path in mlx_libraries() for name in macho.read(path).dependencies}
    for library in libraries | imported.keys():
        symbols = imported.get(library, frozenset())
        name = Path(library).name
        if ".framework/" in library:
            path = sdk / f"System/Library/Frameworks/{name}.framework/{name}.tbd"
            _write(path, text_stub(library, symbols, REEXPORTS.get(name, ())))
        elif library in (LIBCXX, LIBOBJC):
            stub = text_stub(library, symbols)
            for file in (name.removesuffix(".dylib"), name.split(".")[0]):
                _write(sdk / f"usr/lib/{file}.tbd", stub)


def _link_all(source: Path, target: Path) -> None:
    target.mkdir(parents=True, exist_ok=True)
    for entry in source.iterdir():
        link = target / entry.name
        if not link.exists():
            link.symlink_to(entry)


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.exists() or path.read_text() != text:
        path.write_text(text)
