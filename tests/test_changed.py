"""Which rungs of the ladder a change runs."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from tests.support.changed import SOURCES, changed_files, main, rungs_of

ROOT = Path(__file__).resolve().parents[1]
METAL = [rung for rung in SOURCES if rung not in ("cuda", "oracle")]


def files(*patterns: str) -> list[str]:
    found = [str(path.relative_to(ROOT)) for pattern in patterns for path in ROOT.glob(pattern)]
    assert found, patterns
    return found


@pytest.mark.parametrize(
    ("paths", "rungs"),
    [
        (["backend_metal/shaders/attention/decode.metal"], [*METAL, "cuda"]),
        (["backend_metal/cuda/kernels/decode.cu"], ["cuda"]),
        (["backend_metal/csrc/gpu/launch_plan.h"], [*METAL, "cuda"]),
        (["backend_metal/cuda/device.py", "tests/cuda/test_gpu.py"], ["cuda"]),
        (["backend_metal/csrc/cpu/attention/attention.cpp"], ["host"]),
        (["backend_metal/attention/self_check.py"], ["operators", "self-check", "cuda"]),
        (["tests/metal_on_cpu/air_oracle/compare.py"], ["oracle"]),
        (["ops/constraints.txt"], [*SOURCES]),
        (["backend_metal/shaders/README.md", "deployments/app.py"], []),
        (["backend_metal/engine/schedule/scheduler.py", "tests/ops/test_bench.py"], []),
    ],
)
def test_a_change_runs_the_rungs_that_it_can_touch(paths: list[str], rungs: list[str]) -> None:
    assert rungs_of(paths) == rungs


def test_each_kernel_and_each_test_of_a_rung_runs_that_rung() -> None:
    for path in files("backend_metal/shaders/**/*.*", "backend_metal/csrc/metal/*.cpp"):
        assert path.endswith(".md") or set(rungs_of([path])) >= set(METAL)
    for path in files("backend_metal/cuda/**/*.*", "tests/cuda/**/*.*"):
        assert path.endswith(".md") or "cuda" in rungs_of([path])
    of_makefile = dict(re.findall(r"^RUNG_(\S+) := (.+)", (ROOT / "Makefile").read_text(), re.M))
    assert set(of_makefile) <= set(SOURCES)
    for rung, tests in of_makefile.items():
        for path in files(*(f"tests/metal_on_cpu/test_{name}.py" for name in tests.split())):
            assert rung in rungs_of([path])


def test_changed_is_what_differs_from_main(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def git(*arguments: str) -> None:
        identity = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
        subprocess.run(["git", *identity, *arguments], check=True, capture_output=True)

    def commit(name: str) -> None:
        (tmp_path / name).write_text("")
        git("add", name)
        git("commit", "-m", name)

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    main()
    assert capsys.readouterr().out.split() == [*SOURCES]
    git("init", "-b", "main")
    commit("first")
    main()
    assert capsys.readouterr().out.split() == [*SOURCES]
    commit("second")
    assert changed_files() == ["second"]
    git("checkout", "-b", "branch")
    commit("third")
    commit("fourth")
    (tmp_path / "new").write_text("")
    assert sorted(changed_files()) == ["fourth", "new", "third"]
    assert sorted(changed_files("HEAD~")) == ["fourth", "new"]
