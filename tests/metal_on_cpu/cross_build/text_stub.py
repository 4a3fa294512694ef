"""Text-based stubs (``.tbd``): what a linker for macOS reads in place of Apple's libraries."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def text_stub(install_name: str, symbols: Iterable[str], reexports: Sequence[str] = ()) -> str:
    """The stub of a library that exports ``symbols`` and everything of ``reexports``."""
    lines = ["--- !tapi-tbd", "tbd-version: 4", "targets: [ arm64-macos ]"]
    lines.append(f"install-name: '{install_name}'")
    if reexports:
        names = ", ".join(f"'{name}'" for name in reexports)
        lines += ["reexported-libraries:", "  - targets: [ arm64-macos ]"]
        lines.append(f"    libraries: [ {names} ]")
    names = ", ".join(f"'{symbol}'" for symbol in sorted(symbols))
    lines += ["exports:", "  - targets: [ arm64-macos ]", f"    symbols: [ {names} ]", "..."]
    return "\n".join(lines) + "\n"
