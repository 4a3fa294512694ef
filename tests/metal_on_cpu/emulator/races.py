"""Races between the threads of a kernel, found by ThreadSanitizer.

Fibers are threads to the sanitizer, and barriers are all that orders them; a kernel must be
compiled with `sanitizer="thread"` and run in a process that has loaded the sanitizer's runtime
first, so it runs in a Python of its own.
"""

import os
import pickle
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from . import toolchain
from .compiler import compile_source
from .errors import KernelError, ToolMissingError

_REPORT = re.compile(r"^WARNING: ThreadSanitizer: (.*?) \(pid=\d+\)(.*?)^={18}$", re.M | re.S)
_ACCESS = re.compile(
    r"^  (?:Previous )?((?:atomic )?(?:read|write)) of size (\d+)[^\n]*\n((?:    #\d[^\n]*\n)+)",
    re.M | re.I,
)
_PLACE = re.compile(r"#\d+ .*? (?:[^ \n]*/)?([^/ \n]+\.(?:metal|h):\d+)")
_PLACE_IN_KERNEL = re.compile(r" at [^/ ]+\.(?:metal|h):\d+$")
_SHIM_PLACE = re.compile(r"/shim/msl/")
# The exit status of a sanitized process whose reports were printed is its own.
_OPTIONS = "halt_on_error=0:exitcode=0:report_signal_unsafe=0:history_size=4"


@dataclass(frozen=True)
class Race:
    """Two accesses that nothing orders: "write of 4 bytes at k.metal:7" and the like."""

    kind: str
    accesses: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.kind}: {', '.join(self.accesses)}"


def race_report(
    source: str, name: str, *, includes: Sequence[Path] = (), **dispatch: Any
) -> list[Race]:
    """The races of one dispatch, each pair of source lines once.

    Args:
        source: MSL text.
        name: the kernel's host name.
        includes: folders for `#include`.
        dispatch: as for `Library.dispatch`.

    Raises:
        CompileError: the source is not valid MSL.
        KernelError: the dispatch failed otherwise.
        ToolMissingError: clang or its sanitizer's runtime is not installed.
    """
    compile_source(source, includes=includes, sanitizer="thread")
    with tempfile.NamedTemporaryFile(suffix=".pickle") as request:
        pickle.dump((source, name, list(includes), dispatch), request)
        request.flush()
        return run_sanitized("tests.metal_on_cpu.emulator.races", request.name)


def run_sanitized(module: str, *arguments: str, timeout: float = 3600) -> list[Race]:
    """Runs `python -m module arguments...` under ThreadSanitizer and returns what it reports.

    Args:
        timeout: seconds after which a process counts as stuck; far more than any takes.

    Raises:
        KernelError: the process failed; the message is the end of what it said.
        ToolMissingError: the sanitizer's runtime is not installed.
    """
    options = f"{_OPTIONS}:external_symbolizer_path={_symbolizer()}"
    # Its shadow memory has fixed addresses: the process must not be placed at random.
    done = subprocess.run(
        ["setarch", "-R", sys.executable, "-m", module, *arguments],
        env={
            **os.environ,
            "LD_PRELOAD": str(sanitizer_runtime()),
            "TSAN_OPTIONS": options,
            "PYTHONPATH": os.pathsep.join(sys.path),
        },
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
        cwd=toolchain.HERE.parents[2],
    )
    if done.returncode:
        raise KernelError(f"{module} under ThreadSanitizer: {(done.stdout + done.stderr)[-3000:]}")
    return parse_reports(done.stderr)


def compile_unsanitized() -> None:
    """For a sanitized process: compilers that it starts load no sanitizer, which would make them
    many times slower."""
    os.environ.pop("LD_PRELOAD", None)


def parse_reports(text: str) -> list[Race]:
    """The distinct races of kernels in what the sanitizer printed."""
    races = {}
    for report in _REPORT.finditer(text):
        accesses = []
        for access in _ACCESS.finditer(report[2]):
            frames = [f for f in access[3].splitlines() if not _SHIM_PLACE.search(f)]
            place = _PLACE.search("\n".join(frames) or access[3])
            where = place[1] if place else access[3].strip().splitlines()[0]
            accesses.append(f"{access[1].lower()} of {access[2]} bytes at {where}")
        # Libraries that are not compiled for the sanitizer look as if they raced.
        if any(_PLACE_IN_KERNEL.search(access) for access in accesses):
            races[Race(report[1], tuple(accesses))] = None
    return list(races)


def sanitizer_runtime() -> Path:
    """ThreadSanitizer's shared library, which comes with clang."""
    name = "libclang_rt.tsan-x86_64.so"
    output, _ = toolchain.run([toolchain.clang(), f"-print-file-name={name}"])
    path = Path(output.strip())
    if not path.is_absolute():
        package = f"libclang-rt-{toolchain.VERSION}-dev"
        raise ToolMissingError(f"{name} is not installed: apt-get install {package}")
    return path


def _symbolizer() -> str:
    return toolchain.tool("llvm-symbolizer", f"llvm-{toolchain.VERSION}")


def _main(request: str) -> None:
    compile_unsanitized()
    source, name, includes, dispatch = pickle.loads(Path(request).read_bytes())
    compile_source(source, includes=includes, sanitizer="thread").dispatch(name, **dispatch)


if __name__ == "__main__":
    _main(sys.argv[1])
