from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from backend_metal.models.find import DEMO_DIRECTORY
from backend_metal.models.revision import revision_of


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
