from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from backend_metal import native
from backend_metal.models.load.find import DEMO_DIRECTORY
from backend_metal.models.load.loader import load
from backend_metal.models.load.revision import revision_of
from tests.support.backend_metal.checkpoints import CPU, PLENTY


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    return Path(shutil.copytree(DEMO_DIRECTORY, tmp_path / "model"))


def test_a_copy_of_a_model_is_the_same_one(checkpoint: Path) -> None:
    for name in ("README.md", "consolidated.safetensors", "spiece.model"):
        (checkpoint / name).write_text("What engines don't download.")
    assert revision_of(checkpoint, "float32") == revision_of(DEMO_DIRECTORY, "float32")


def test_settings_that_change_tokens_make_another_one() -> None:
    made = {
        revision_of(DEMO_DIRECTORY, *choices) for choices in (("a", None), ("b", None), ("a", ""))
    }
    assert len(made) == 3


def test_libraries_of_other_sources_make_another_one(monkeypatch: pytest.MonkeyPatch) -> None:
    def revision(sources: str) -> str:
        monkeypatch.setattr(native, "SOURCES", sources)
        found = load(str(DEMO_DIRECTORY), device=CPU, memory_limit_bytes=PLENTY)
        return found.revision

    assert revision("a") != revision("b")


def test_sources_are_those_that_the_build_recorded(tmp_path: Path) -> None:
    assert native.sources_digest(tmp_path) == ""
    record = tmp_path / "native_sources.txt"
    record.write_text("1  a.cpp\n")
    first = native.sources_digest(tmp_path)
    record.write_text("2  a.cpp\n")
    assert native.sources_digest(tmp_path) != first != ""


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "chat_template.jinja"])
def test_every_small_file_counts(checkpoint: Path, name: str) -> None:
    with (checkpoint / name).open("ab") as file:
        file.write(b" ")
    assert revision_of(checkpoint) != revision_of(DEMO_DIRECTORY)


@pytest.mark.parametrize("offset", [0, -1])
def test_weights_count(checkpoint: Path, offset: int) -> None:
    path = checkpoint / "model.safetensors"
    weights = bytearray(path.read_bytes())
    weights[offset] ^= 1
    path.write_bytes(weights)
    assert revision_of(checkpoint) != revision_of(DEMO_DIRECTORY)


def test_other_weights_in_as_many_bytes_are_seen(checkpoint: Path) -> None:
    path = checkpoint / "model.safetensors"
    weights = bytearray(path.read_bytes())
    middle = len(weights) // 2
    weights[middle:] = bytes(byte ^ 1 for byte in weights[middle:])
    path.write_bytes(weights)
    assert revision_of(checkpoint) != revision_of(DEMO_DIRECTORY)
