"""RecurrentKernels that are wrong about a model's layers do not serve them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest

from backend_metal import LLM, SamplingParams
from backend_metal.device import CPU, REFERENCE, Device
from backend_metal.devices.base import RecurrentKernels
from backend_metal.recurrent import RecurrentSpec, StateArray, choose_path
from tests.support.backend_metal import tiny_models
from tests.support.backend_metal.changed_device import changed

KERNELS = CPU.recurrent


def specs(dtype: mx.Dtype) -> list[RecurrentSpec]:
    arrays = StateArray((3, 40), dtype), StateArray((2, 12, 32), mx.float32)
    return [RecurrentSpec(arrays, fits_kernels=True)] * 2


def broken(operator: str, output: int) -> Device:
    """As the CPU's, but for one result."""
    right = getattr(KERNELS, operator)

    def wrong(*arguments: Any, **options: Any) -> tuple[mx.array, mx.array]:
        results = list(right(*arguments, **options))
        results[output] = results[output] * 1.02
        return results[0], results[1]

    return changed(CPU, recurrent=replace(KERNELS, **{operator: wrong}))


@pytest.mark.parametrize("dtype", [mx.float32, mx.float16, mx.bfloat16])
def test_kernels_that_are_right_are_chosen(dtype: mx.Dtype) -> None:
    assert choose_path(specs(dtype), dtype, "cpu") is CPU


@pytest.mark.parametrize("output", [0, 1])
@pytest.mark.parametrize("operator", ["causal_conv", "linear_attention"])
def test_wrong_ones_are_not(operator: str, output: int, caplog: pytest.LogCaptureFixture) -> None:
    path = broken(operator, output)
    assert choose_path(specs(mx.float32), mx.float32, path) is REFERENCE
    assert "the cpu kernels are wrong about" in caplog.text


def test_an_engine_does_not_serve_with_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    tiny_models.save("mamba2", tmp_path)
    prompt, greedy = [1, 2, 3], SamplingParams(temperature=0.0, max_tokens=4, ignore_eos=True)
    settings: dict[str, Any] = {"max_num_seqs": 2, "num_kv_blocks": 8, "device": "cpu"}
    (right,) = LLM(str(tmp_path), **settings).generate([prompt], greedy)
    monkeypatch.setattr(CPU, "recurrent", broken("linear_attention", 0).recurrent)
    (served,) = LLM(str(tmp_path), **settings).generate([prompt], greedy)
    assert "recurrent layers run by mlx-lm's modules" in caplog.text
    assert served.token_ids == right.token_ids


def test_layers_that_no_kernel_serves_are_not_checked() -> None:
    def never(*arguments: Any, **options: Any) -> tuple[mx.array, mx.array]:
        raise AssertionError

    path = changed(REFERENCE, recurrent=RecurrentKernels(never, never, head_dims=(64, 128)))
    assert not specs(mx.float32)[0].is_updated_by(path.recurrent)
    assert choose_path(specs(mx.float32), mx.float32, path) is path
    assert choose_path(specs(mx.float32), mx.float32, "reference") is REFERENCE
