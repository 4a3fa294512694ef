"""The hub's cache as `pomona models` shows and empties it."""

from __future__ import annotations

import io
import json
import re
import shutil
from pathlib import Path

import pytest

from backend_metal.models.load.find import DEMO_DIRECTORY
from deployments.command import models

pytestmark = pytest.mark.serve

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Of a model that can be served, one of a type that nobody knows, and one half downloaded."""
    folder = tmp_path / "hub"
    folder.mkdir()
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(folder))
    shutil.copytree(DEMO_DIRECTORY, snapshot(folder, "org/good"), dirs_exist_ok=True)
    config = json.loads((DEMO_DIRECTORY / "config.json").read_text())
    unknown = config | {"model_type": "mystery"}
    (snapshot(folder, "org/unknown") / "config.json").write_text(json.dumps(unknown))
    (snapshot(folder, "org/half") / "config.json").write_text(json.dumps(config))
    return folder


def snapshot(cache: Path, name: str) -> Path:
    repository = cache / f"models--{name.replace('/', '--')}"
    made = repository / "snapshots" / COMMIT
    made.mkdir(parents=True)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(COMMIT)
    return made


def test_each_is_listed_with_why_it_can_not_be_served(
    cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert models.run(["list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["MODEL", "org/good", "org/half", "org/unknown"]
    good, half, unknown = lines[1:]
    # Its weights in float32, and 8192 tokens of keys and values: 6 layers, 2 heads of 64, float32.
    assert 8192 * 2 * 6 * 2 * 64 * 4 == 50_331_648
    assert re.search(r"\d MB +13 MB \+ 50 MB  8192 +yes, on cpu$", good)
    assert "no: it holds no model*.safetensors" in half
    assert "no: " in unknown
    assert "mystery" in unknown
    found = {one.name: one for one in models.cached_models()}
    assert found["org/good"].num_bytes == sum(
        path.stat().st_size for path in DEMO_DIRECTORY.rglob("*") if path.is_file()
    )


def test_a_context_that_there_is_no_room_for_is_cut(
    cache: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("backend_metal.devices.base.device_memory_bytes", lambda device: 25_000_000)
    assert models.run(["list"]) == 0
    [good] = [line for line in capsys.readouterr().out.splitlines() if "org/good" in line]
    # 20 MB less the weights are 1124 tokens in blocks of 16.
    assert "13 MB + 7 MB  1120 of 8192  yes" in good
    monkeypatch.setattr("backend_metal.devices.base.device_memory_bytes", lambda device: 10_000_000)
    assert models.run(["list"]) == 0
    [good] = [line for line in capsys.readouterr().out.splitlines() if "org/good" in line]
    assert "no: the weights take 12.5 MiB" in good


def test_an_empty_cache_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "absent"))
    assert models.run(["list"]) == 0
    assert capsys.readouterr().out.startswith("No models in the cache.")


def test_what_is_removed_is_gone_and_the_rest_is_not(
    cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert models.run(["rm", "org/half", "--yes"]) == 0
    assert "Removed org/half" in capsys.readouterr().out
    assert [one.name for one in models.cached_models()] == ["org/good", "org/unknown"]


def test_removing_asks_unless_told(
    cache: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("y\n"))
    assert models.run(["rm", "org/good"]) == 2
    assert "say --yes where nobody can be asked" in capsys.readouterr().err
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    monkeypatch.setattr("builtins.input", lambda asked: "n")
    assert models.run(["rm", "org/good"]) == 1
    assert len(models.cached_models()) == 3
    monkeypatch.setattr("builtins.input", lambda asked: "y")
    assert models.run(["rm", "org/good"]) == 0
    assert len(models.cached_models()) == 2


def test_removing_what_is_not_there_is_a_mistake(
    cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert models.run(["rm", "org/absent", "--yes"]) == 2
    assert "'org/absent' is not in the cache" in capsys.readouterr().err


def test_what_can_not_be_had_is_one_line(
    cache: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    assert models.run(["pull", "org/absent"]) == 1
    told = capsys.readouterr().err
    assert told.count("\n") == 1
    assert "the hub can't be reached" in told
