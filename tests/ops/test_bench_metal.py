"""The Mac's benchmark, on the CPU: every section with real work, and vLLM's side of the pipe."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from subprocess import CalledProcessError

import pytest

from backend_metal.attention.paths import CPU, REFERENCE  # isort: skip
import mlx.core as mx
import numpy as np

from backend_metal.device import select_device
from ops.bench.engine import random_model
from ops.bench.engine.workload import Workload
from ops.bench.metal import __main__ as metal
from ops.bench.metal import attention as metal_attention
from ops.bench.metal import engine as metal_engine
from ops.bench.metal.attention import CONTIGUOUS, Shape

TINY = {
    **random_model.CONFIG,
    "hidden_size": 64,
    "num_hidden_layers": 1,
    "intermediate_size": 96,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 64,
}
WORKLOAD = Workload(num_prompts=3, shortest=3, longest=9, output_tokens=3, at_once=2)
SMALL = Shape(40, 2, num_q_heads=4, num_kv_heads=2, head_dim=64)

# What vLLM's offline interface looks like from the outside; it answers with the prompt.
FAKE_VLLM = """
from types import SimpleNamespace as N

class SamplingParams:
    def __init__(self, temperature, max_tokens, ignore_eos):
        assert temperature == 0.0 and ignore_eos
        self.max_tokens = max_tokens

class LLM:
    def __init__(self, model, max_num_seqs, max_model_len, enable_prefix_caching):
        assert model == "MODEL" and max_num_seqs == 2 and not enable_prefix_caching
        self.max_model_len = max_model_len
        print("INFO some engine's own output")

    def generate(self, prompts, sampling, use_tqdm):
        longest = max(len(prompt["prompt_token_ids"]) for prompt in prompts)
        assert longest + sampling.max_tokens <= self.max_model_len
        outputs = [N(token_ids=[1] * sampling.max_tokens)]
        return [N(outputs=outputs) for _ in prompts]
"""


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> str:
    path: Path = tmp_path_factory.mktemp("random")
    metal_engine.save_random(path, TINY)
    return str(path)


def test_figures_of_a_shape() -> None:
    assert replace(SMALL, dtype=mx.float32).kv_bytes == 2 * SMALL.kv_bytes
    assert SMALL.kv_bytes == 2 * 2 * 40 * 2 * 64 * 2
    assert Shape(3, 1, new=2, num_q_heads=1, head_dim=1).flops == 4 * (2 + 3)
    assert (SMALL.name, Shape(8, 1, new=4).name) == ("2 x 40", "1 x 4 of 8")


@pytest.mark.parametrize("shape", [SMALL, replace(SMALL, new=7)])
def test_contenders_run_the_whole_chain(shape: Shape, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def counted(*arguments: object, **options: object) -> object:
        calls.append(1)
        return CPU.scatter_paged_attention(*arguments, **options)

    run = metal_attention.paged(shape, replace(CPU, scatter_paged_attention=counted))
    run()
    run()
    assert len(calls) == 2 * metal_attention.LAYERS
    metal_attention.contiguous(shape)()


def test_what_does_not_fit_is_left_out() -> None:
    fits_once = metal_attention.measure(SMALL, [CPU, REFERENCE], 0.01, SMALL.kv_bytes)
    assert list(fits_once) == ["cpu", CONTIGUOUS]
    assert not metal_attention.measure(SMALL, [CPU], 0.01, SMALL.kv_bytes - 1)


def test_attention_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metal_attention, "copy_rate", lambda: 5e9)
    monkeypatch.setattr(metal_attention, "gemm_rate", lambda dtype: 7e12)
    prefill = replace(SMALL, new=7)
    monkeypatch.setattr(
        metal_attention, "measure", lambda shape, *rest: {"cpu": 1e-3, CONTIGUOUS: 2e-3}
    )
    report = metal_attention.report(
        [CPU, REFERENCE], [SMALL], [prefill], budget=0.01, memory_bytes=1e9
    )
    gbs = SMALL.kv_bytes / 1e-3 / 1e9
    assert f"| 2 x 40 | 1000 | {gbs:.2f} | - | {gbs / 2:.2f} | 5.00 |" in report
    assert "| 2 x 7 of 40 | 1000 | 0.00 | - | 0.00 | 7.00 |" in report


def test_limits_are_finite() -> None:
    assert np.isfinite(metal_attention.copy_rate(1 << 16))
    assert np.isfinite(metal_attention.gemm_rate(mx.float32, 64))


def test_the_checkpoint_is_bfloat16(checkpoint: str) -> None:
    weights = mx.load(f"{checkpoint}/model.safetensors")
    assert {array.dtype for array in weights.values()} == {mx.bfloat16}


def test_the_engines_table(checkpoint: str) -> None:
    report = metal_engine.report(checkpoint, WORKLOAD, 1, None)
    assert "| pomona | " in report
    assert "| mlx-lm BatchGenerator | " in report
    assert "vllm-metal is not installed" in report


def test_vllm_runs_in_its_own_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "vllm.py").write_text(FAKE_VLLM)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    prompts = WORKLOAD.prompts(50)
    rates = metal_engine.vllm_rates(sys.executable, "MODEL", prompts, WORKLOAD, rounds=2)
    assert len(rates) == 2
    assert all(rate > 0 for rate in rates)
    with pytest.raises(CalledProcessError):
        metal_engine.vllm_rates(sys.executable, "other", prompts, WORKLOAD, rounds=1)


def test_vllm_is_found_where_its_installer_puts_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    python = tmp_path / "python"
    monkeypatch.setattr(metal_engine, "VLLM_METAL", python)
    assert metal_engine.find_vllm() is None
    python.touch()
    assert metal_engine.find_vllm() == str(python)


def test_the_report_has_every_section(checkpoint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metal_attention, "DECODES", (SMALL,))
    monkeypatch.setattr(metal_attention, "PREFILLS", (replace(SMALL, new=7),))
    monkeypatch.setattr(metal, "QUICK_WORKLOAD", WORKLOAD)
    monkeypatch.setattr(metal_attention, "copy_rate", lambda: 5e9)
    monkeypatch.setattr(metal_attention, "gemm_rate", lambda dtype: 7e12)
    previous = mx.default_device()
    text = metal.report(select_device("cpu"), model=checkpoint, rounds=1, quick=True, vllm=None)
    mx.set_default_device(previous)
    assert text.startswith("# Pomona on a Mac\n\n## Machine\n\n| machine | value |")
    assert "| mlx | 0." in text
    assert "`cpu`: passed the check at start (" in text
    assert "| 2 x 40 |" in text
    assert f"## Engine ({checkpoint})" in text


@pytest.mark.skipif(mx.metal.is_available(), reason="Metal is here")
def test_it_needs_a_mac(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["metal"])
    with pytest.raises(SystemExit, match="needs a Mac with Apple silicon"):
        metal.main()
