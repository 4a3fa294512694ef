"""Peers are put where they are looked for, by pip and CMake, which are only told so here."""

from __future__ import annotations

import subprocess
import tarfile
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

import pytest

from ops.bench.compare import install
from ops.bench.compare.peers import PEERS

pytestmark = pytest.mark.serve


class Commands:
    """Does what pip and CMake would leave behind."""

    def __init__(self) -> None:
        self.seen: list[list[str]] = []

    def __call__(self, command: Sequence[str]) -> None:
        self.seen.append(list(command))
        if "download" in command:
            self._archive(Path(command[command.index("--dest") + 1]))
        if "--build" in command:
            build = Path(command[command.index("--build") + 1])
            (build / "bin").mkdir(parents=True)
            (build / "bin" / "llama-server").touch(mode=0o755)

    def _archive(self, folder: Path) -> None:
        source = folder / "llama_cpp_python-0" / "vendor" / "llama.cpp"
        source.mkdir(parents=True)
        (source / "CMakeLists.txt").touch()
        with tarfile.open(folder / "llama_cpp_python-0.tar.gz", "w:gz") as archive:
            archive.add(folder / "llama_cpp_python-0", "llama_cpp_python-0")


@pytest.fixture
def commands(monkeypatch: pytest.MonkeyPatch) -> Commands:
    told = Commands()
    monkeypatch.setattr(install, "_run", told)
    return told


def test_llama_cpp_is_built_where_it_is_looked_for(tmp_path: Path, commands: Commands) -> None:
    [peer] = [one for one in PEERS if one.name == "llama.cpp"]
    for _ in range(2):
        # Once more over what is there, as with another version.
        if (build := tmp_path / "llama.cpp" / "build" / "bin").exists():
            (build / "llama-server").unlink()
            build.rmdir()
        install.install("llama.cpp", tmp_path, jobs=3)
    program = peer.find(tmp_path)
    assert program == tmp_path / "llama.cpp" / "bin" / "llama-server"
    assert program.resolve() == tmp_path / "llama.cpp" / "build" / "bin" / "llama-server"
    assert install.LLAMA_CPP_PYTHON in peer.version(tmp_path)
    configure, build_command = commands.seen[1:3]
    source = Path(configure[configure.index("-S") + 1])
    assert (source / "CMakeLists.txt").exists()
    assert build_command[-2:] == ["--parallel", "3"]


@pytest.mark.parametrize("name", ["mlx-lm", "vllm-mlx"])
def test_peers_on_mlx_get_the_versions_that_are_here(
    name: str, tmp_path: Path, commands: Commands
) -> None:
    install.install(name, tmp_path, jobs=1)
    create, requirements = commands.seen[:2]
    assert create[-1] == str(tmp_path / name)
    assert requirements[0] == str(tmp_path / name / "bin" / "python")
    assert f"mlx-lm=={version('mlx-lm')}" in requirements
    assert any(one.endswith(f"=={version('mlx')}") for one in requirements)
    [peer] = [one for one in PEERS if one.name == name]
    assert version("mlx") in peer.version(tmp_path)


def test_what_fails_leaves_no_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(command: Sequence[str]) -> None:
        raise subprocess.CalledProcessError(1, command)

    monkeypatch.setattr(install, "_run", fail)
    with pytest.raises(subprocess.CalledProcessError):
        install.install("mlx-lm", tmp_path, jobs=1)
    assert not (tmp_path / "mlx-lm" / "VERSION").exists()
