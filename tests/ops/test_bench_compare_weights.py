"""One checkpoint in the formats of two engines is one checkpoint."""

from __future__ import annotations

import gguf
import pytest

# Before mlx, so that MLX finds the BLAS.
from ops.bench.engine import random_model  # isort: skip
import mlx.core as mx
import numpy as np
from gguf.quants import dequantize
from safetensors.numpy import load_file
from tokenizers import Tokenizer

from ops.bench.compare import gguf_file
from ops.bench.compare.model import PRECISIONS, Weights, write

pytestmark = pytest.mark.serve

TINY = {
    **random_model.CONFIG,
    "vocab_size": 512,
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "intermediate_size": 128,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 64,
}


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Weights]:
    folder = tmp_path_factory.mktemp("weights")
    return {one.precision: one for one in write(folder, PRECISIONS, TINY)}


@pytest.fixture(scope="module")
def stored(written: dict[str, Weights]) -> dict[str, np.ndarray]:
    return load_file(written["f32"].mlx / "model.safetensors")


def llama_cpps(name: str) -> str:
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.QWEN3, 2)
    return gguf_file.theirs(names, name)


def test_float_tensors_are_the_same_bits(
    written: dict[str, Weights], stored: dict[str, np.ndarray]
) -> None:
    tensors = {one.name: one.data for one in gguf.GGUFReader(written["f32"].gguf).tensors}
    assert set(tensors) == {llama_cpps(name) for name in stored}
    assert len(tensors) == len(stored) == 2 + 2 * 11
    for name, tensor in stored.items():
        assert np.array_equal(tensors[llama_cpps(name)], tensor), name


@pytest.mark.parametrize(("precision", "steps"), [("8-bit", 127), ("4-bit", 8)])
def test_quantized_tensors_are_a_step_away_at_most(
    precision: str, steps: int, written: dict[str, Weights], stored: dict[str, np.ndarray]
) -> None:
    """A block's step is its greatest weight over ``steps``; llama.cpp cuts off the last one of 4
    bits on one side."""
    tensors = {one.name: one for one in gguf.GGUFReader(written[precision].gguf).tensors}
    assert len(tensors) == len(stored)
    for name, tensor in stored.items():
        theirs = tensors[llama_cpps(name)]
        found = dequantize(theirs.data, theirs.tensor_type).reshape(tensor.shape)
        if tensor.ndim == 1:
            assert np.array_equal(found, tensor)
            continue
        blocks, close = tensor.reshape(-1, 32), found.reshape(-1, 32)
        step = np.abs(blocks).max(axis=1, keepdims=True) / steps
        assert np.all(np.abs(blocks - close) <= 1.01 * step + 1e-9), name
        assert not np.array_equal(blocks, close), name


@pytest.mark.parametrize(("precision", "bits"), [("f32", 32), ("8-bit", 8.5), ("4-bit", 4.5)])
def test_both_formats_have_as_many_bits(
    precision: str, bits: float, written: dict[str, Weights]
) -> None:
    weights = written[precision]
    ours = mx.load(str(weights.mlx / "model.safetensors"))
    matrices = [one for one in gguf.GGUFReader(weights.gguf).tensors if len(one.shape) > 1]
    parameters = sum(int(one.n_elements) for one in matrices)
    assert 8 * sum(one.nbytes for one in ours.values() if one.ndim > 1) == bits * parameters
    assert 8 * sum(int(one.n_bytes) for one in matrices) == bits * parameters
    assert weights.mlx_bytes == pytest.approx(sum(one.nbytes for one in ours.values()), rel=0.1)


def test_the_vocabulary_is_the_same(written: dict[str, Weights]) -> None:
    tokenizer = Tokenizer.from_file(str(written["f32"].mlx / "tokenizer.json"))
    reader = gguf.GGUFReader(written["f32"].gguf)
    tokens = reader.fields["tokenizer.ggml.tokens"].contents()
    assert tokens == [tokenizer.id_to_token(index) for index in range(512)]
    assert reader.fields["tokenizer.ggml.eos_token_id"].contents() == tokens.index(random_model.END)
    # What llama.cpp needs a merge for makes no token of what HF's tokenizer leaves as bytes.
    (merge,) = reader.fields["tokenizer.ggml.merges"].contents()
    assert merge.replace(" ", "") not in tokens


def test_the_end_is_never_the_greedy_choice(stored: dict[str, np.ndarray]) -> None:
    assert not stored["model.embed_tokens.weight"][-1].any()


def test_a_tensor_that_llama_cpp_lacks_is_named() -> None:
    with pytest.raises(ValueError, match=r"model\.surprise\.weight"):
        llama_cpps("model.surprise.weight")
