"""Mixtures of experts in half precision on a CPU, where MLX multiplies theirs in float32 alone."""

from __future__ import annotations

from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest

from backend_metal import LLM, SamplingParams
from backend_metal.attention.kv_cache import KVCachePool
from backend_metal.models.load.loader import LoadedModel
from tests.support.backend_metal import tiny_models
from tests.support.backend_metal.checkpoints import TABLE, TOKENS, load_cpu, save_quantized
from tests.support.backend_metal.packed_step import Chunk, lazy_forward, relative_rms, states_for

# With biases, without, and with recurrent layers.
FAMILIES = ("gpt_oss", "qwen3_moe", "qwen3_5_moe", "bailing_moe_linear")


def logits_of(loaded: LoadedModel) -> mx.array:
    model = loaded.model
    pool = KVCachePool(model.layers, num_blocks=4, block_size=8, dtype=model.dtype)
    return lazy_forward(model, pool, [Chunk(TOKENS, TABLE, 0, 20)], states_for(model, 1))


def error(loaded: LoadedModel, directory: Path) -> float:
    whole = np.array(logits_of(load_cpu(directory)))
    return relative_rms(np.array(logits_of(loaded).astype(mx.float32)), whole)


@pytest.mark.parametrize(("dtype", "rounded"), [("float16", 0.01), ("bfloat16", 0.1)])
@pytest.mark.parametrize("family", FAMILIES)
def test_experts_answer_in_the_dtype_of_the_model(
    family: str, dtype: str, rounded: float, tmp_path: Path
) -> None:
    tiny_models.save(family, tmp_path)
    loaded = load_cpu(tmp_path, dtype=dtype)
    assert str(logits_of(loaded).dtype) == f"mlx.core.{dtype}"
    assert error(loaded, tmp_path) <= rounded
    kept = [array for spec in loaded.model.recurrent for array in spec.arrays]
    assert all(array.dtype == mx.float32 for array in kept if not array.is_inputs)


@pytest.mark.parametrize("mode", ["affine", "mxfp4"])
def test_quantized_experts_do_too(mode: str, tmp_path: Path) -> None:
    save_quantized("qwen3_moe", tmp_path, mode=mode, dtype=mx.bfloat16)
    assert error(load_cpu(tmp_path, dtype="bfloat16"), tmp_path) <= 0.1


def test_an_engine_serves_them(tmp_path: Path) -> None:
    tiny_models.save("qwen3_moe", tmp_path)
    llm = LLM(str(tmp_path), dtype="bfloat16", num_kv_blocks=16, block_size=8)
    params = SamplingParams(temperature=0.0, max_tokens=4, ignore_eos=True)
    [completion] = llm.generate([[1, 2, 3]], params, show_progress=False)
    assert len(completion.token_ids) == 4


def test_experts_are_counted_in_float32(tmp_path: Path) -> None:
    tiny_models.save("qwen3_moe", tmp_path)
    whole, half = (load_cpu(tmp_path, dtype=dtype) for dtype in ("float32", "bfloat16"))
    experts = 2 * 3 * 8 * 64 * 32 * 4
    assert half.weight_bytes == (whole.weight_bytes - experts) // 2 + experts
