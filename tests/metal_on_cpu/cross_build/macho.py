"""What a Mach-O library exports, imports and from whom, and which macOS it is for."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tests.metal_on_cpu.cross_build.tools import python_package

# Symbols that the loader looks for everywhere: Python's in an extension, and C++'s weak ones.
ANYWHERE = ""


@dataclass(frozen=True)
class Library:
    """``imports`` maps the install name of a library, or ``ANYWHERE``, to symbol names."""

    architecture: str
    install_name: str | None
    dependencies: list[str]
    run_paths: list[str]
    minimum_macos: tuple[int, ...]
    exports: frozenset[str]
    imports: dict[str, frozenset[str]]


@cache
def read(path: Path) -> Library:
    """Raises ``ValueError`` for what is not a Mach-O file of one architecture."""
    python_package("lief")
    import lief  # after the check that it is there

    universal = lief.MachO.parse(str(path))
    if universal is None or universal.size != 1:
        raise ValueError(f"{path} is not a Mach-O file of one architecture")
    binary = universal.at(0)
    assert binary is not None
    own = next((x.name for x in binary.commands if x.command == x.TYPE.ID_DYLIB), None)
    imports = defaultdict(set)
    for symbol in binary.imported_symbols:
        binding = symbol.binding_info
        if binding is None:  # named, and never bound
            continue
        source = binding.library.name if binding.has_library else ANYWHERE
        imports[source].add(str(symbol.name))
    return Library(
        architecture=binary.header.cpu_type.name,
        install_name=own,
        dependencies=[library.name for library in binary.libraries if library.name != own],
        run_paths=[command.path for command in binary.rpaths],
        minimum_macos=tuple(binary.build_version.minos),
        exports=frozenset(str(symbol.name) for symbol in binary.exported_symbols),
        imports={source: frozenset(names) for source, names in imports.items()},
    )
