from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import pytest

from backend_metal import LLM, SamplingParams  # isort: skip
import mlx.core as mx
import mlx_lm
import numpy as np

from backend_metal.engine.engine import Output
from backend_metal.engine.step_clock import PARTS
from ops.bench import machine, timing
from ops.bench.engine import __main__ as engine
from ops.bench.engine import random_model
from ops.bench.engine.host import HostParts, host_parts
from ops.bench.engine.peer import WAYS, Job, Peer, Settings
from ops.bench.engine.uniform import UniformRates, compare_uniform, report_uniform
from ops.bench.engine.workload import Workload
from ops.bench.grammars import __main__ as grammars
from ops.bench.grammars.forms import FORMS

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
WORKLOAD = Workload(num_prompts=4, shortest=3, longest=9, output_tokens=3, at_once=2)
MACHINE = machine.Machine(
    "chip", 2, "BLAS", copy_bytes_per_second=10e9, read_bytes_per_second=8e9, gemm_flops=100e9
)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, random_model.Parameters]:
    path: Path = tmp_path_factory.mktemp("random")
    return str(path), random_model.save(path, TINY)


def test_the_median_of_as_many_runs_as_the_budget_allows(monkeypatch: pytest.MonkeyPatch) -> None:
    taken = iter([1.0, 5.0, 2.0, 9.0, 1.0])
    warm_ups = []
    monkeypatch.setattr(timing, "seconds", lambda run: next(taken))
    assert timing.median_seconds(lambda: warm_ups.append(1), budget=8.5, most=15) == 3.5
    assert len(warm_ups) == 1
    assert list(taken) == [1.0]


def test_runs_that_take_turns_share_the_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    times = {"a": iter([1.0, 5.0, 2.0, 9.0]), "b": iter([1.0, 1.0, 4.0, 9.0])}
    order: list[str] = []

    def of(name: str) -> Callable[[], None]:
        return lambda: order.append(name)

    def taken(run: Callable[[], None]) -> float:
        run()
        return next(times[order[-1]])

    monkeypatch.setattr(timing, "seconds", taken)
    assert timing.medians_by_turns([of("a"), of("b")], budget=7.0) == [2.0, 1.0]
    assert order == ["a", "b"] * 4


def test_a_table() -> None:
    table = timing.markdown_table(("name", "value"), [["a", "1"], ["b", "2"]])
    assert table == "| name | value |\n| --- | ---: |\n| a | 1 |\n| b | 2 |"


def test_the_machines_report() -> None:
    assert "| copy bandwidth | 10.0 GB/s |" in MACHINE.report()
    assert "| float32 GEMM, 2048 cubed | 100 GFLOP/s |" in MACHINE.report()


def test_machine_figures_are_finite() -> None:
    assert math.isfinite(machine.copy_bandwidth(1 << 20, 2, repeats=1))
    assert math.isfinite(machine.read_bandwidth(1 << 20, 2, repeats=1))
    assert math.isfinite(machine.gemm_rate(64, repeats=1))


def test_a_read_goes_through_all_of_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    read = []

    def memcmp(first: int, second: int, count: int) -> int:
        read.append((second - first, count))
        return 0

    monkeypatch.setattr(machine, "_memcmp", memcmp)
    machine.read_bandwidth(1 << 20, 2, repeats=1)
    assert read == [(1 << 18, 1 << 18)] * 2
    monkeypatch.setattr(machine, "_memcmp", lambda *_: 1)
    with pytest.raises(RuntimeError, match="ends early"):
        machine.read_bandwidth(1 << 20, 2, repeats=1)


def test_a_part_of_the_prompts_is_like_the_whole() -> None:
    workload = Workload()
    whole, part = workload.prompts(100), workload.prompts(100, every=8)
    assert (len(whole), len(part)) == (64, 8)
    assert all(prompt in whole for prompt in part)
    means = [np.mean([len(prompt) for prompt in prompts]) for prompts in (whole, part)]
    assert means[1] == pytest.approx(means[0], rel=0.05)
    assert min(map(len, whole)) >= 32
    assert max(map(len, whole)) <= 512


def test_flops_count_each_weight_that_a_token_meets() -> None:
    parameters = random_model.Parameters(backbone=1000, head=10)
    # 5 and 7 prompt tokens, and 2 of the 3 outputs, go in; 3 come out of each.
    prompts = [[0] * 5, [0] * 7]
    assert WORKLOAD.flops(prompts, parameters) == 2 * (1000 * (5 + 7 + 4) + 10 * 6)


def test_the_models_size_is_counted(checkpoint: tuple[str, random_model.Parameters]) -> None:
    _, parameters = checkpoint
    assert parameters.head == 32768 * 64
    assert parameters.backbone == 64 * (128 + 64 + 64) + 128 * 64 + 3 * 64 * 96


def test_the_benchmarks_model_has_a_hundred_million_parameters() -> None:
    config = random_model.CONFIG
    hidden, heads = config["hidden_size"], config["num_attention_heads"]
    kv_heads, head_dim = config["num_key_value_heads"], config["head_dim"]
    layer = (
        hidden * (2 * heads + 2 * kv_heads) * head_dim + 3 * hidden * config["intermediate_size"]
    )
    total = config["num_hidden_layers"] * layer + config["vocab_size"] * hidden
    assert total == pytest.approx(1e8, rel=0.05)


def test_both_engines_continue_alike(checkpoint: tuple[str, random_model.Parameters]) -> None:
    directory, _ = checkpoint
    prompts = WORKLOAD.prompts(random_model.VOCAB_SIZE)
    llm = LLM(directory, num_kv_blocks=64)
    sampling = SamplingParams(temperature=0.0, max_tokens=3, ignore_eos=True)
    ours = llm.generate(prompts, sampling, show_progress=False)
    model = mlx_lm.load(directory)[0]
    theirs = WAYS["batch_generator"](model, Job("batch_generator", prompts, 3, at_once=2))
    assert [completion.token_ids for completion in ours] == theirs
    assert all(completion.text for completion in ours)


def test_engine_rates(
    checkpoint: tuple[str, random_model.Parameters], monkeypatch: pytest.MonkeyPatch
) -> None:
    gemm = iter([1.0, 2.0, 6.0])
    monkeypatch.setattr(engine, "gemm_rate", lambda dtype: next(gemm))
    llm = LLM(checkpoint[0], max_num_seqs=2, num_kv_blocks=64, attention="reference")
    prompts = WORKLOAD.prompts(random_model.VOCAB_SIZE)
    with Peer(checkpoint[0]) as peer:
        (measured,) = engine.compare(llm, peer, WORKLOAD, prompts, rounds=1, dtype=mx.float32)
    assert measured.gemm_flops == 3.0
    assert measured.pomona > 0
    assert measured.mlx_lm > 0


def test_engine_report() -> None:
    rounds = [
        engine.Round(pomona=40.0, mlx_lm=10.0, gemm_flops=2e9),
        engine.Round(pomona=60.0, mlx_lm=20.0, gemm_flops=1e9),
        engine.Round(pomona=50.0, mlx_lm=10.0, gemm_flops=3e9),
    ]
    host = HostParts(16, 64, {"build": 0.002, "wait": 0.02, "complete": 0.0005})
    report = engine.report(MACHINE.report(), rounds, 2.0, flops_per_token=2e7, host=host)
    assert "| pomona | 50.0 | 1.00 | 50% |" in report
    assert "| mlx-lm BatchGenerator | 10.0 | 4.00 | 10% |" in report
    assert "| mlx-lm as installed | 2.0 | 25.00 | 2% |" in report
    assert "| all that 2 GFLOP/s, the GEMM rate in between, allows | 100.0 |  | 100% |" in report
    assert "| the engine's thread | ms a step of 16 decodes, mean of 64 |" in report
    assert "| wait | 20.000 |" in report
    assert "| all but wait | 2.500 |" in report


@pytest.mark.exhaustive
def test_uniform_batches_against_a_plain_loop(
    checkpoint: tuple[str, random_model.Parameters],
) -> None:
    directory, _ = checkpoint
    llm = LLM(directory, max_num_seqs=2, num_kv_blocks=64)
    vocabulary = random_model.VOCAB_SIZE
    with Peer(directory) as peer:
        measured = compare_uniform(llm, peer, vocabulary, (1, 2), output_tokens=3, rounds=2)
    assert [rates.batch for rates in measured] == [1, 2]
    assert all(len(rates.pomona) == len(rates.plain_loop) == 2 for rates in measured)
    report = report_uniform([UniformRates(8, (30.0, 20.0, 40.0), (10.0, 10.0, 20.0))], 3)
    assert "| 8 x (64 in, 3 out) | 30.0 | 10.0 | 2.00 |" in report


def test_the_plain_loop_draws_each_token_that_it_was_asked_for(
    checkpoint: tuple[str, random_model.Parameters],
) -> None:
    model = mlx_lm.load(checkpoint[0])[0]
    prompts = [[1, 2], [3, 4]]
    loop, alone = (
        WAYS[way](model, Job(way, prompts, 3, 1)) for way in ("plain_loop", "one_by_one")
    )
    assert loop == alone


@pytest.mark.parametrize("bits", [4, 8])
def test_quantized_weights_of_a_shape(bits: int, tmp_path: Path) -> None:
    config = {**TINY, "intermediate_size": 128, "tie_word_embeddings": False}
    parameters = random_model.save(tmp_path, config, dtype=mx.bfloat16, bits=bits)
    (completion,) = LLM(str(tmp_path), num_kv_blocks=64).generate(
        [[1, 2, 3]], SamplingParams(temperature=0.0, max_tokens=4), show_progress=False
    )
    assert len(completion.token_ids) == 4
    embedding = config["vocab_size"] * config["hidden_size"]
    packed = (parameters.backbone + parameters.head + embedding) * bits // 8
    assert packed < (tmp_path / "model.safetensors").stat().st_size < 1.2 * packed


def test_what_the_host_does_in_steps_of_decodes(
    checkpoint: tuple[str, random_model.Parameters], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Prefills, of several steps here, are in none of them."""
    llm = LLM(checkpoint[0], max_num_seqs=4, max_num_batched_tokens=16, num_kv_blocks=64)
    step, snapshots = llm.engine.step, [llm.stats()]

    def watched() -> list[Output]:
        outputs = step()
        snapshots.append(llm.stats())
        return outputs

    monkeypatch.setattr(llm.engine, "step", watched)
    host = host_parts(llm, WORKLOAD.prompts(random_model.VOCAB_SIZE), num_steps=5)
    assert (host.num_sequences, host.num_steps) == (4, 5)
    first, last = snapshots[-6], snapshots[-1]
    assert last.step_tokens["prefill"] == first.step_tokens["prefill"] > 0
    assert last.step_tokens["decode"] == first.step_tokens["decode"] + 5 * 4
    assert host.seconds.keys() == set(PARTS)
    for part, seconds in host.seconds.items():
        taken = last.step_host[part].sum - first.step_host[part].sum
        assert seconds == pytest.approx(taken / 5)
    assert not llm.engine.has_work


def test_mlx_lm_as_installed_has_nothing_that_importing_pomona_sets(
    checkpoint: tuple[str, random_model.Parameters],
) -> None:
    with Peer(checkpoint[0], pomona_blas=False) as peer:
        assert peer.settings == Settings(blas=None, cuda_graphs=True)


@pytest.mark.exhaustive
def test_grammars_are_measured_beside_none(checkpoint: tuple[str, random_model.Parameters]) -> None:
    llm = LLM(checkpoint[0], max_num_seqs=3)
    rounds = grammars.measure(llm, rows=3, max_tokens=12, rounds=2)
    for one in rounds:
        assert set(one) == set(FORMS)
        assert {form: run.tokens for form, run in one.items()} == dict.fromkeys(FORMS, 36)
        assert one["required"].steps < one["free"].steps
    table = grammars.report(rounds, 3)
    assert "| no grammar |" in table
    assert "| 24 tools, required |" in table
    assert "CPU ms a step" in table
