"""Gets peers, each into a folder of its own: ``python -m ops.bench.compare.install mlx-lm``.

``llama.cpp`` is built from the source that ``llama-cpp-python`` carries, with CMake and a C++
compiler, which takes a quarter of an hour on two cores.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path

from backend_metal.devices.cpu.blas import physical_cores
from ops.bench.compare.peers import CACHE, VERSION

LLAMA_CPP_PYTHON = "0.3.36"
VLLM_MLX = "0.6.0"
VLLM_MLX_FOR_TEXT = ("fastapi", "uvicorn", "psutil", "jsonschema", "mcp", "pillow", "requests")
CMAKE_OPTIONS = (
    "-DCMAKE_BUILD_TYPE=Release",
    # One file, which does not look for others.
    "-DBUILD_SHARED_LIBS=OFF",
    "-DLLAMA_BUILD_TESTS=OFF",
    "-DLLAMA_BUILD_EXAMPLES=OFF",
    "-DLLAMA_BUILD_APP=OFF",
    # The page would be downloaded.
    "-DLLAMA_BUILD_UI=OFF",
    "-DLLAMA_USE_PREBUILT_UI=OFF",
    "-DLLAMA_OPENSSL=OFF",
)


def mlx_lm(folder: Path, jobs: int) -> str:
    """The same versions as here, so that what differs is what is around MLX."""
    _environment(folder, _mlx_requirements())
    return _mlx_versions()


def vllm_mlx(folder: Path, jobs: int) -> str:
    """With the same MLX, and of what it requires only what serving text does: the rest is for
    pictures and a page, gigabytes of it."""
    _environment(folder, (*_mlx_requirements(), *VLLM_MLX_FOR_TEXT))
    _run((*_pip(folder), "--no-deps", f"vllm-mlx=={VLLM_MLX}"))
    return f"vllm-mlx {VLLM_MLX}, {_mlx_versions()}"


def llama_cpp(folder: Path, jobs: int) -> str:
    # Of another version.
    shutil.rmtree(folder / "source", ignore_errors=True)
    with tempfile.TemporaryDirectory() as download:
        pip = (sys.executable, "-m", "pip", "download", "--no-deps", "--no-binary", ":all:")
        _run((*pip, "--dest", download, f"llama-cpp-python=={LLAMA_CPP_PYTHON}"))
        [archive] = Path(download).glob("*.tar.gz")
        with tarfile.open(archive) as opened:
            # Debian 12's Python, 3.11.2, has no filters.
            opened.extraction_filter = getattr(tarfile, "data_filter", lambda member, _: member)
            opened.extractall(folder / "source")
    [source] = (folder / "source").glob("*/vendor/llama.cpp")
    build = folder / "build"
    _run(("cmake", "-S", str(source), "-B", str(build), *CMAKE_OPTIONS))
    target = ("--target", "llama-server", "--parallel", str(jobs))
    _run(("cmake", "--build", str(build), *target))
    link = folder / "bin" / "llama-server"
    link.parent.mkdir(exist_ok=True)
    link.unlink(missing_ok=True)
    link.symlink_to(build / "bin" / "llama-server")
    return f"llama.cpp of llama-cpp-python {LLAMA_CPP_PYTHON}"


INSTALLERS: dict[str, Callable[[Path, int], str]] = {
    "mlx-lm": mlx_lm,
    "llama.cpp": llama_cpp,
    "vllm-mlx": vllm_mlx,
}


def install(name: str, cache: Path, jobs: int) -> None:
    """Raises ``subprocess.CalledProcessError`` where pip or CMake fails, which tell why."""
    folder = cache / name
    folder.mkdir(parents=True, exist_ok=True)
    found = INSTALLERS[name](folder, jobs)
    (folder / VERSION).write_text(f"{found}\n")


def _mlx_requirements() -> tuple[str, ...]:
    extra = "" if sys.platform == "darwin" else "[cpu]"
    return f"mlx-lm=={version('mlx-lm')}", f"mlx{extra}=={version('mlx')}"


def _mlx_versions() -> str:
    return f"mlx-lm {version('mlx-lm')}, MLX {version('mlx')}"


def _environment(folder: Path, requirements: Sequence[str]) -> None:
    _run((sys.executable, "-m", "venv", str(folder)))
    _run((*_pip(folder), *requirements))


def _pip(folder: Path) -> tuple[str, ...]:
    return str(folder / "bin" / "python"), "-m", "pip", "install"


def _run(command: Sequence[str]) -> None:
    subprocess.run(command, check=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m ops.bench.compare.install", description=__doc__
    )
    parser.add_argument("peers", nargs="+", choices=INSTALLERS)
    parser.add_argument("--cache", type=Path, default=CACHE, help="where they go: %(default)s")
    parser.add_argument("--jobs", type=int, default=physical_cores(), help="of the compiler")
    arguments = parser.parse_args()
    for name in arguments.peers:
        install(name, arguments.cache, arguments.jobs)


if __name__ == "__main__":
    main()
