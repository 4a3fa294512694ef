from __future__ import annotations

import pytest

from backend_metal.models.families.table import ALIASES, FAMILIES
from ops.model_reference import (
    DOCUMENT,
    MODELS,
    bytes_per_sequence,
    bytes_per_token,
    embed,
    largest_batch,
    largest_context,
    reference,
)

pytestmark = pytest.mark.serve

BY_NAME = {model.name: model for model in MODELS}


def test_the_document_holds_the_current_reference() -> None:
    document = DOCUMENT.read_text()
    assert embed(document) == document, "run: python -m ops.model_reference --write"


def test_every_type_is_listed() -> None:
    for name in {*FAMILIES, *ALIASES}:
        assert f"`{name}`" in reference()


@pytest.mark.parametrize(
    ("name", "of_token", "of_sequence"),
    [
        ("Qwen3-8B", 147_456, 0),
        ("Llama 3.3 70B", 327_680, 0),
        ("gpt-oss-20b", 24_576, (128 + 32) * 24_576),
        # Latents of 576 dims, once.
        ("DeepSeek V3, R1", 61 * 1152, 0),
        # And 128 of an index.
        ("DeepSeek V3.2", 85_888, 0),
        ("Gemma 4 31B", 81_920, (1024 + 32) * 819_200),
        ("Qwen3.5-9B", 32_768, 51.5e6),
    ],
)
def test_bytes(name: str, of_token: int, of_sequence: float) -> None:
    """Two bytes an element; a window needs two blocks more than it is long."""
    assert bytes_per_token(BY_NAME[name]) == of_token
    assert bytes_per_sequence(BY_NAME[name]) == pytest.approx(of_sequence, rel=0.01)


def test_what_fits() -> None:
    """Of 64 GiB a Mac's GPU may have 48, and a replica 80 % of that; of 16 it has two thirds."""
    model = BY_NAME["Qwen3-8B"]
    weights = 8.2e9 * 4.5 / 8
    assert largest_context(model, 512) == model.context
    assert largest_context(model, 16) == (0.8 * 16 * 2**30 * 2 / 3 - weights) // 147_456
    assert largest_batch(model, 64) == (0.8 * 48 * 2**30 - weights) // (8192 * 147_456)
    assert largest_context(BY_NAME["Kimi K2"], 512) == 0


def test_a_document_without_markers_is_refused() -> None:
    with pytest.raises(ValueError, match="models: begin"):
        embed("nothing here")
