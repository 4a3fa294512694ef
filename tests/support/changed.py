"""The rungs of the ladder that a change can touch: ``python -m tests.support.changed [BASE]``.

Prints their names. Changed are the files that differ from BASE, the working tree and new files
included. BASE is by default where the branch left main, and on main the commit before. Where git
has no answer, all rungs are printed.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterable

_SHADERS = r"backend_metal/shaders/.+"
_DISPATCH = r"backend_metal/csrc/(metal|gpu|operators|python)/.+|backend_metal/csrc/[^/]+"
_EMULATOR = r"tests/metal_on_cpu/emulator/.+"
_STEPS = r"tests/metal_on_cpu/([^/]+|host/.+)|tests/support/backend_metal/[^/]+"
_KERNELS = "|".join((_SHADERS, _DISPATCH, _EMULATOR, _STEPS))
_CALLERS = (
    r"backend_metal/(attention|devices|recurrent|engine/sampling|engine/recorded)/.+"
    r"|backend_metal/models/(paged_model|(layers|checks)/\w+)\.py"
    r"|backend_metal/device\.py"
)

SOURCES = {
    "types": _KERNELS,
    "emulator": _KERNELS,
    "operators": f"{_KERNELS}|{_CALLERS}",
    "races": _KERNELS,
    "host": r"backend_metal/(csrc|shaders)/.+|CMakeLists\.txt|tests/metal_on_cpu/"
    r"(cross_build/.+|[^/]+)",
    "oracle": rf"{_EMULATOR}|tests/metal_on_cpu/(air_oracle/.+|[^/]+)",
    "self-check": f"{_KERNELS}|{_CALLERS}",
    "cuda": rf"backend_metal/(cuda|shaders)/.+|{_DISPATCH}|{_CALLERS}|"
    r"tests/cuda/.+|tests/metal_on_cpu/emulator/runtime/.+|tests/support/backend_metal/[^/]+",
}
"""Each rung with what it proves, as a pattern of paths."""
# They pin MLX, whose headers and kernels all rungs compile against.
_EVERYTHING = {"ops/constraints.txt", "tests/support/changed.py"}


def rungs_of(paths: Iterable[str]) -> list[str]:
    """The rungs that a change of these files can touch, in the order of ``SOURCES``."""
    sources = [path for path in paths if not path.endswith(".md")]
    if not _EVERYTHING.isdisjoint(sources):
        return [*SOURCES]
    return [
        rung
        for rung, pattern in SOURCES.items()
        if any(re.fullmatch(pattern, path) for path in sources)
    ]


def changed_files(base: str | None = None) -> list[str]:
    """Raises ``CalledProcessError`` where git can't tell."""
    base = base or _base()
    tracked = _git("diff", "--name-only", "--no-renames", base)
    return tracked + _git("ls-files", "--others", "--exclude-standard")


def _base() -> str:
    (head,) = _git("rev-parse", "HEAD")
    for main in ("origin/main", "main"):
        if _git("for-each-ref", f"refs/heads/{main}", f"refs/remotes/{main}"):
            (base,) = _git("merge-base", "HEAD", main)
            return base if base != head else "HEAD~"
    return "HEAD~"


def _git(*arguments: str) -> list[str]:
    done = subprocess.run(["git", *arguments], capture_output=True, text=True, check=True)
    return done.stdout.splitlines()


def main(base: str | None = None) -> None:
    try:
        rungs = rungs_of(changed_files(base))
    except (OSError, subprocess.CalledProcessError) as error:
        sys.stderr.write(f"git can't tell what has changed, so all rungs run: {error}\n")
        rungs = [*SOURCES]
    sys.stdout.write("".join(f"{rung}\n" for rung in rungs))


if __name__ == "__main__":
    main(*sys.argv[1:])
