"""Training the demo model: packed documents do not see each other, and a seed repeats."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest
from mlx.utils import tree_flatten
from mlx_lm.models.qwen3 import Model
from tokenizers import Tokenizer

from backend_metal.device import CPU
from backend_metal.models.load.loader import load
from ops.demo_model.corpus import generate
from ops.demo_model.dataset import Rows, pack
from ops.demo_model.tokenizer import train_tokenizer
from ops.demo_model.train import PackedDocuments, Training, model_args, save, train

pytestmark = pytest.mark.serve

DEMO = Path(__file__).parents[2] / "backend_metal" / "models" / "demo"
TINY = replace(
    model_args(), hidden_size=32, intermediate_size=32, num_hidden_layers=2, vocab_size=2048
)


@pytest.fixture(autouse=True)
def _interpreted() -> Iterator[None]:
    """On a CPU, compiling the step takes far longer than running it."""
    mx.disable_compile()
    yield
    mx.enable_compile()


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return train_tokenizer(generate(500))


@pytest.fixture(scope="module")
def rows(tokenizer: Tokenizer) -> Rows:
    return pack(generate(60), tokenizer, 128)


def trained(rows: Rows, seed: int) -> tuple[dict[str, mx.array], list[float]]:
    mx.random.seed(seed)
    model = Model(TINY)
    training = Training(seed=seed, num_steps=3, batch_size=4, warmup=1)
    losses = [float(np.array(loss)) for loss in train(model, rows, training)]
    return dict(tree_flatten(model.parameters())), losses


def test_a_seed_repeats_every_weight(rows: Rows) -> None:
    (first, losses), (second, again) = trained(rows, seed=0), trained(rows, seed=0)
    assert losses == again
    assert all(mx.array_equal(first[name], second[name]) for name in first)
    other, _ = trained(rows, seed=1)
    assert not mx.array_equal(first["model.norm.weight"], other["model.norm.weight"])


def test_training_lowers_the_loss(rows: Rows) -> None:
    mx.random.seed(0)
    model = Model(TINY)
    one = Rows(rows.tokens[:1], rows.targets[:1], rows.documents[:1])
    training = Training(num_steps=30, batch_size=1, warmup=2, learning_rate=1e-2)
    losses = [float(np.array(loss)) for loss in train(model, one, training)]
    assert losses[-1] < 0.7 * losses[0]


def test_a_packed_document_is_read_as_if_it_were_alone(rows: Rows) -> None:
    mx.random.seed(0)
    model = Model(TINY)
    row = next(i for i, numbers in enumerate(rows.documents) if numbers.max() >= 2)
    tokens, documents = mx.array(rows.tokens[row][None]), mx.array(rows.documents[row][None])
    packed = np.array(model(tokens, [PackedDocuments(documents)] * TINY.num_hidden_layers))[0]
    for number in range(1, int(rows.documents[row].max()) + 1):
        here = np.flatnonzero(rows.documents[row] == number)
        alone = np.array(model(tokens[:, int(here[0]) : int(here[-1]) + 1]))[0]
        difference = np.sqrt(np.mean((packed[here] - alone) ** 2) / np.mean(alone**2))
        assert difference < 1e-5


def test_a_saved_model_has_a_longer_context(tokenizer: Tokenizer, tmp_path: Path) -> None:
    save(Model(TINY), tokenizer, tmp_path)
    loaded = load(str(tmp_path), device=CPU, memory_limit_bytes=2**30)
    assert loaded.max_model_len == 8192
    saved, shipped = (json.loads((at / "config.json").read_text()) for at in (tmp_path, DEMO))
    assert shipped.keys() == saved.keys()
    assert shipped["rope_scaling"] == saved["rope_scaling"]


def test_the_full_model_is_as_large_as_its_page_says() -> None:
    parameters = sum(value.size for _, value in tree_flatten(Model(model_args()).parameters()))
    page = (DEMO / "README.md").read_text()
    assert f"{parameters / 1e6:.1f} million parameters" in page
