"""Quantized matrices that lie together."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from mlx.utils import tree_flatten

from backend_metal import LLM, SamplingParams, native
from backend_metal.devices.cpu.quantized import NATIVE
from backend_metal.models import paged_model
from backend_metal.models.layers import weight_memory
from backend_metal.models.layers.fused_projections import joined_layers
from ops.bench.engine import random_model

pytestmark = pytest.mark.skipif(
    not sys.platform.startswith("linux")
    or mx.default_device() != mx.Device(mx.cpu)
    or native.product_kernel() is None,
    reason="elsewhere they stay where they are",
)

CONFIG = random_model.CONFIG | {
    "hidden_size": 128,
    "num_hidden_layers": 2,
    "intermediate_size": 256,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "vocab_size": 512,
}


def address(array: mx.array) -> int:
    place: int = np.asarray(memoryview(array)).__array_interface__["data"][0]
    return place


def test_arrays_are_what_they_were_and_begin_with_a_line() -> None:
    rng = np.random.default_rng(0)
    arrays = [
        mx.array(rng.standard_normal((3, 5)).astype(np.float32)),
        mx.arange(7, dtype=mx.uint32),
        mx.array(rng.standard_normal((4, 6)).astype(np.float32)).astype(mx.bfloat16).T,
        mx.zeros((0, 4)),
        mx.array(rng.standard_normal((2, 3, 9)).astype(np.float32))[:, 1:, ::2],
    ]
    laid = native.lay_together(arrays)
    for array, expected in zip(laid, arrays, strict=True):
        assert (array.shape, array.dtype) == (expected.shape, expected.dtype)
        assert mx.array_equal(array, expected).item()
    places = [address(laid[index]) for index in (0, 1, 4)]
    assert all(place % 64 == 0 for place in places)
    assert [place - places[0] for place in places] == [0, 64, 192]
    assert native.lay_together([]) == []


@pytest.fixture(params=[4, 8])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    random_model.save(tmp_path, CONFIG, bits=request.param)
    return tmp_path


def matrices(network: Any) -> list[mx.array]:
    layers = [whole for whole, _ in joined_layers(network)] + list(network.modules())
    own = [layer for layer in layers if type(layer) in NATIVE.values()]
    return [layer[name] for layer in own for name in weight_memory.NAMES]


@pytest.mark.parametrize("piece_bytes", [1, 20_000, 1 << 20])
def test_a_model_computes_what_it_did(
    piece_bytes: int, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    params = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True)
    prompts = [[1, 2, 3], list(range(20))]
    answers: list[Any] = []
    weights: list[Any] = []
    for together in (False, True):
        with monkeypatch.context() as patch:
            patch.setattr(weight_memory, "PIECE_BYTES", piece_bytes)
            if not together:
                patch.setattr(paged_model, "lay_weights_together", lambda _: None)
            llm = LLM(str(folder), max_num_seqs=2, num_kv_blocks=16)
        network = llm.engine._pipeline.runner.model._model  # type: ignore[attr-defined]
        completions = llm.generate(prompts, params, show_progress=False)
        answers.append([completion.token_ids for completion in completions])
        weights.append(dict(tree_flatten(network.parameters())))
        assert matrices(network)
        if together:
            assert all(address(matrix) % 64 == 0 for matrix in matrices(network))
            # Parts have rows of their layer's.
            for whole, parts in joined_layers(network):
                (first,) = (part for part in parts if part._index == 0)
                assert address(first["weight"]) == address(whole["weight"])
    assert answers[0] == answers[1]
    assert weights[0].keys() == weights[1].keys()
    for name, array in weights[0].items():
        assert mx.array_equal(array, weights[1][name]).item(), name


def test_nothing_is_held_twice(folder: Path) -> None:
    before = mx.get_active_memory()
    llm = LLM(str(folder), max_num_seqs=2, num_kv_blocks=1)
    network = llm.engine._pipeline.runner.model._model  # type: ignore[attr-defined]
    # What parts share with their layer counts once.
    needed = sum(matrix.nbytes for matrix in matrices(network))
    assert mx.get_active_memory() - before < 1.5 * needed + 300_000
