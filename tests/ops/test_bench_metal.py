"""The Mac's benchmark, on the CPU: every section with real work, and vLLM's side of the pipe."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from subprocess import CalledProcessError

import pytest

from backend_metal.device import select_device  # isort: skip
import mlx.core as mx

from backend_metal.engine.step_clock import PARTS
from ops.bench.attention import __main__ as attention_bench
from ops.bench.attention.bench import AttentionBench
from ops.bench.attention.cases import Case
from ops.bench.engine import random_model
from ops.bench.engine.workload import Workload
from ops.bench.metal import __main__ as metal
from ops.bench.metal import decode, settings
from ops.bench.metal import engine as metal_engine
from ops.bench.metal.decode import Decoding
from ops.bench.metal.settings import SERVED, Setting

pytestmark = pytest.mark.serve

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
SMALL = Case(40, 2, num_q_heads=4, num_kv_heads=2, head_dim=64)

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

FAKE_PYTHON = """#!/bin/sh
[ "$*" = "-m ops.bench.metal.decode MODEL --rounds=1 --wired-memory=off" ] || exit 1
echo "some engine's own output"
echo "{\\"tokens_per_second\\": $SOME_LIMIT, \\"host_ms\\": {}, \\"first_token_ms\\": {\\"0\\": 1}}"
"""


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> str:
    path: Path = tmp_path_factory.mktemp("random")
    metal_engine.save_random(path, TINY)
    return str(path)


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


DECODING = ("--at-once=2", "--output-tokens=3", "--rounds=1", "--idle-s=0")


def test_decoding_is_measured(checkpoint: str) -> None:
    measured = decode.measure(checkpoint, at_once=2, output_tokens=3, rounds=1, idle_s=(0.0,))
    assert measured.tokens_per_second > 0
    assert set(measured.host_ms) == set(PARTS)
    assert all(ms >= 0 for ms in measured.host_ms.values())
    assert measured.first_token_ms["0"] > 0


def test_what_is_compared_while_decoding(checkpoint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    chosen: list[object] = []
    llm = decode.LLM

    def loaded(model: str, **options: object) -> object:
        chosen.append((options["wired_memory"], options["num_kv_blocks"]))
        return llm(model, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(decode, "LLM", loaded)
    sizes = {"at_once": 1, "output_tokens": 2, "rounds": 1}
    decode.measure(checkpoint, **sizes, idle_s=(0.0,), wired_memory="off", keep_resident=True)
    decode.measure(checkpoint, **sizes, idle_s=(0.0,), small_pool=True)
    assert chosen == [("off", None), ("auto", 3)]


def test_settings_take_turns_in_processes_of_their_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rates = {"served": [100.0, 80.0, 90.0], "slow": [45.0, 30.0, 60.0], "same": [91.0, 91.0, 91.0]}
    turns = []

    def measured(model: str, setting: Setting, arguments: object) -> Decoding:
        turns.append(setting.name)
        rate = rates[setting.name].pop(0)
        return Decoding(
            rate, {"build": rate / 100, "wait": 3.0, "submit": 0.1}, {"0": 1.0, "2": 7.25}
        )

    monkeypatch.setattr(settings, "measured", measured)
    names = list(rates)
    report = settings.report("model", rounds=3, settings=[Setting(name) for name in names])
    assert turns == names * 3
    assert "| served | 90.0 | no difference | 1.0 | 7.2 |" in report
    assert "| slow | 45.0 | 50% slower | 1.0 | 7.2 |" in report
    assert "| same | 91.0 | no difference |" in report
    assert "| build | 0.900 |" in report
    assert "| all but wait | 1.000 |" in report


def test_a_setting_reaches_its_process(
    checkpoint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "python").write_text(FAKE_PYTHON)
    (tmp_path / "python").chmod(0o755)
    monkeypatch.setattr(settings.sys, "executable", str(tmp_path / "python"))
    setting = Setting("fast", {"SOME_LIMIT": "12"}, ("--wired-memory=off",))
    assert settings.measured("MODEL", setting, ["--rounds=1"]).tokens_per_second == 12.0
    with pytest.raises(CalledProcessError):
        settings.measured("other", setting, ["--rounds=1"])


@pytest.mark.exhaustive
def test_a_process_measures_what_it_is_told_to(checkpoint: str) -> None:
    measured = settings.measured(checkpoint, SERVED, DECODING)
    assert measured.tokens_per_second > 0


@pytest.mark.exhaustive
def test_the_report_has_every_section(checkpoint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention_bench, "DECODES", (SMALL,))
    monkeypatch.setattr(attention_bench, "PREFILLS", (replace(SMALL, new=7),))
    monkeypatch.setattr(metal, "QUICK_WORKLOAD", WORKLOAD)
    monkeypatch.setattr(AttentionBench, "limit", lambda bench, case: 5e9)
    monkeypatch.setattr(AttentionBench, "machine_report", lambda bench: "its limits")
    monkeypatch.setattr(metal, "host", lambda model, rounds, quick: f"settings of {model}")
    previous = mx.default_device()
    text = metal.report(select_device("cpu"), model=checkpoint, rounds=1, quick=True, vllm=None)
    mx.set_default_device(previous)
    assert text.startswith("# Pomona on a Mac\n\n## Machine\n\n| machine | value |")
    assert "| mlx | 0." in text
    assert "`cpu`: passed the check at start (" in text
    assert "its limits\n\n| decode, batch x context |" in text
    assert "| 2 x 40 |" in text
    assert f"## Engine ({checkpoint})" in text
    assert f"## Decoding, by setting ({checkpoint})\n\nsettings of {checkpoint}" in text


@pytest.mark.skipif(mx.metal.is_available(), reason="Metal is here")
def test_it_needs_a_mac(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["metal"])
    with pytest.raises(SystemExit, match="needs a Mac with Apple silicon"):
        metal.main()
