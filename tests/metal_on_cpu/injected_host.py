"""Mistakes in the dispatch code: a copy of its sources, built with one of them, and run.

`python -m tests.metal_on_cpu.injected_host STEP...` says what catches the first one of the steps
that does not pass, with the sources of the folder that it runs in.
"""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

# Before anything imports mlx.core, so that MLX finds the BLAS.
import backend_metal  # noqa: F401
from tests.metal_on_cpu.injection import first_catch

REPOSITORY = Path(__file__).resolve().parents[2]
MIRROR = REPOSITORY / "build" / "metal_on_cpu" / "injected"
_SOURCES = (
    "backend_metal/csrc",
    "backend_metal/shaders",
    "tests/metal_on_cpu",
    "tests/support/backend_metal",
)
_SUFFIXES = (".cpp", ".h", ".hpp", ".txt", ".metal", ".py", "")


@dataclass(frozen=True)
class HostBug:
    """``new`` instead of ``old`` in ``backend_metal/csrc/metal/file``.

    ``message`` is in what catches it: "numbers", or what the stand-in for the device says.
    """

    name: str
    file: str
    old: str
    new: str
    steps: tuple[str, ...]
    message: str

    def __str__(self) -> str:
        return self.name


HOST_BUGS = (
    HostBug(
        "a pipeline key that lacks a constant",
        "pipelines.cpp",
        "           has_softcap,\n",
        "",
        ("with and without softcap",),
        "does not encode the kernel and all function constants",
    ),
    HostBug(
        "this step's tokens are not scattered",
        "attention.cpp",
        "      add_scatter(device, encoder, *a.new_tokens);\n",
        "",
        ("decode",),
        "numbers",
    ),
    HostBug(
        "one buffer is bound as both caches",
        "attention.cpp",
        "!share_buffer(tokens.k_cache, tokens.v_cache)",
        "true",
        ("one buffer",),
        "one of them is written",
    ),
    HostBug(
        "a cache that is written is declared as an input",
        "attention.cpp",
        "encoder.set_output_array(cache, slot)",
        "encoder.set_input_array(cache, slot)",
        ("decode",),
        "not declared as an output",
    ),
    HostBug(
        "MLX is not told of the caches",
        "attention.cpp",
        "  declare_caches(encoder, a.k_cache, a.v_cache, scatters);\n",
        "",
        ("decode",),
        "has not been declared",
    ),
    HostBug(
        "the offset of this step's keys is forgotten",
        "attention.cpp",
        "encoder.set_input_array(tokens.k.array, POMONA_BUFFER_K, tokens.k.offset);\n    encoder",
        "encoder.set_input_array(tokens.k.array, POMONA_BUFFER_K);\n    encoder",
        ("packed keys",),
        "numbers",
    ),
)


def what_catches(bug: HostBug) -> str:
    """Builds the dispatch code with ``bug`` and runs its steps; the message, or ''.

    Raises ``ValueError`` where the text to replace is not there exactly once.
    """
    _mirror(bug)
    search = [str(MIRROR), str(REPOSITORY), *sys.path]
    done = subprocess.run(
        [sys.executable, "-m", "tests.metal_on_cpu.injected_host", *bug.steps],
        cwd=MIRROR,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(search)},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(done.stderr)
    return done.stdout.strip()


def _mirror(bug: HostBug) -> None:
    """Copies the sources; what has not changed stays as it is, so that it is not built again."""
    # A package, so that the copy's is found before this one's.
    wanted = {Path("tests/__init__.py"): b"", Path("tests/support/__init__.py"): b""}
    for folder in _SOURCES:
        for path in (REPOSITORY / folder).rglob("*"):
            if path.is_file() and path.suffix in _SUFFIXES:
                wanted[path.relative_to(REPOSITORY)] = path.read_bytes()
    changed = Path("backend_metal/csrc/metal") / bug.file
    text = wanted[changed].decode()
    if text.count(bug.old) != 1:
        raise ValueError(f"{changed} has {text.count(bug.old)} places like {bug.old!r}, not 1")
    wanted[changed] = text.replace(bug.old, bug.new).encode()
    for folder in _SOURCES:
        for path in (MIRROR / folder).rglob("*"):
            if path.is_file() and path.relative_to(MIRROR) not in wanted:
                path.unlink()
    for name, content in wanted.items():
        target = MIRROR / name
        if not target.exists() or target.read_bytes() != content:
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(content)


def main(*steps: str) -> None:
    for step in steps:
        try:
            catch = first_catch(step)
        except RuntimeError as error:
            if not str(error).startswith("metal-on-cpu:"):
                raise
            catch = str(error)
        if catch:
            sys.stdout.write(catch + "\n")
            return


if __name__ == "__main__":
    main(*sys.argv[1:])
