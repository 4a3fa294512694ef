"""A wheel of this tree with the extension that is compiled in it, and an environment to try it."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[3]
QUICK = Path("tests/support/wheel")
"""Has a CMakeLists.txt that compiles nothing."""


def build_wheel(folder: Path, libraries: Path | None = None, tag: str | None = None) -> Path:
    """All of the real one but CMake's part: ``libraries`` is the folder of what was compiled,
    ``backend_metal`` by default. ``tag`` is that of another machine's wheel."""
    settings = {
        "cmake.source-dir": str(QUICK),
        "cmake.define.POMONA_LIBRARIES": str(libraries or REPOSITORY / "backend_metal"),
        "build-dir": str(folder / "build"),
        **({"wheel.tags": tag} if tag else {}),
    }
    return _build(f"build_wheel(sys.argv[1], {settings!r})", folder)


def build_sdist(folder: Path) -> Path:
    """The source distribution."""
    return _build("build_sdist(sys.argv[1])", folder)


def install(wheel: Path, folder: Path) -> Path:
    """An environment of its own with ``wheel``. Returns its folder of programs."""
    programs = bare_environment(folder)
    python = programs / "python"
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", "--no-index"]
    _run([*pip, "--ignore-installed", "--no-deps", "--no-compile", str(wheel)])
    # Fails unless all that the wheel requires is there.
    _run([*pip, "--dry-run", f"pomona-serve[cpu] @ {wheel.as_uri()}"])
    return programs


def bare_environment(folder: Path) -> Path:
    """One that finds the packages that a wheel needs in this one; this tree it does not see.
    Returns its folder of programs."""
    environment = folder / "environment"
    _run([sys.executable, "-m", "venv", "--without-pip", str(environment)])
    # Unlike those of a site's own folder, .pth files of a folder on the path are not read: so the
    # editable package of this tree stays unknown.
    (site_packages(environment) / "dependencies.pth").write_text(sysconfig.get_path("purelib"))
    return environment / "bin"


def site_packages(environment: Path) -> Path:
    [folder] = environment.glob("lib/python*/site-packages")
    return folder


def _build(call: str, folder: Path) -> Path:
    """What the build backend made."""
    script = f"import sys, scikit_build_core.build as build\nprint(build.{call})"
    return folder / _run([sys.executable, "-c", script, str(folder)]).split()[-1]


def _run(command: list[str]) -> str:
    finished = subprocess.run(
        command, cwd=REPOSITORY, capture_output=True, text=True, check=False, timeout=300
    )
    if finished.returncode:
        raise RuntimeError(f"{' '.join(command)}\n{finished.stdout}{finished.stderr}"[-4000:])
    return finished.stdout
