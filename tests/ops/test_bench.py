from __future__ import annotations

import math
from pathlib import Path

import pytest

from backend_metal import LLM, SamplingParams  # isort: skip
import mlx.core as mx
import mlx_lm
import numpy as np

from ops.bench import machine, timing
from ops.bench.attention import __main__ as attention
from ops.bench.attention.cases import Case, Paged, contiguous
from ops.bench.engine import __main__ as engine
from ops.bench.engine import contenders, random_model
from ops.bench.engine.workload import Workload
from ops.bench.grammars import __main__ as grammars
from ops.bench.grammars.forms import FORMS

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
    theirs: dict[int, list[int]] = {}
    model = mlx_lm.load(directory)[0]
    for response in contenders.responses(model, prompts, WORKLOAD):
        theirs.setdefault(response.uid, []).append(response.token)
    assert [completion.token_ids for completion in ours] == [theirs[uid] for uid in sorted(theirs)]
    assert all(completion.text for completion in ours)


def test_engine_rates(
    checkpoint: tuple[str, random_model.Parameters], monkeypatch: pytest.MonkeyPatch
) -> None:
    gemm = iter([1.0, 2.0, 6.0])
    monkeypatch.setattr(engine, "gemm_rate", lambda size: next(gemm))
    (measured,) = engine.compare(checkpoint[0], WORKLOAD, rounds=1, attention="reference")
    assert measured.gemm_flops == 3.0
    assert measured.pomona > 0
    assert measured.mlx_lm > 0


def test_engine_report() -> None:
    rounds = [
        engine.Round(pomona=40.0, mlx_lm=10.0, gemm_flops=2e9),
        engine.Round(pomona=60.0, mlx_lm=20.0, gemm_flops=1e9),
        engine.Round(pomona=50.0, mlx_lm=10.0, gemm_flops=3e9),
    ]
    report = engine.report(MACHINE, rounds, 2.0, flops_per_token=2e7)
    assert "| pomona | 50.0 | 1.00 | 50% |" in report
    assert "| mlx-lm BatchGenerator | 10.0 | 4.00 | 10% |" in report
    assert "| mlx-lm as installed | 2.0 | 25.00 | 2% |" in report
    assert "| all that 2 GFLOP/s, the GEMM rate in between, allows | 100.0 |  | 100% |" in report


def test_mlx_lm_as_installed_runs_without_the_blas(
    checkpoint: tuple[str, random_model.Parameters], monkeypatch: pytest.MonkeyPatch
) -> None:
    command: dict[str, object] = {}

    class Finished:
        stdout = b"1.5"

    def run(arguments: list[str], **options: object) -> Finished:
        command.update(options, arguments=arguments)
        return Finished()

    monkeypatch.setattr(engine.subprocess, "run", run)
    assert engine.as_installed(checkpoint[0], every=16) == 1.5
    assert command["env"]["POMONA_BLAS"] == "off"  # type: ignore[index]


@pytest.mark.parametrize("case", [Case(100, 3), Case(48, 2, new=16)])
def test_attention_contenders_do_the_same_work(case: Case) -> None:
    paged = Paged(case)
    outputs = {}
    for path in ("cpu", "reference"):
        kept = paged.run(path)
        kept()
        outputs[path] = [np.array(cache) for cache in paged._caches]
    assert np.array_equal(*(outputs[path][0] for path in ("cpu", "reference")))
    contiguous(case)()
    assert case.kv_bytes == sum(cache.nbytes for cache in paged._caches) * case.context // (
        -(-case.context // 16) * 16
    )


def test_arithmetic_of_a_causal_prefill() -> None:
    case = Case(context=3, batch=2, new=2, num_q_heads=4, num_kv_heads=2, head_dim=64)
    # The two queries see 2 and 3 keys; a multiplication and an addition, twice.
    assert case.flops == 2 * (2 + 3) * 4 * 64 * 4


def test_attention_is_measured_within_the_memory() -> None:
    case = Case(64, 2)
    everybody = attention.measure(case, budget=0.0, memory_bytes=1e9)
    assert set(everybody) == set(attention.contenders())
    assert set(attention.measure(case, budget=0.0, memory_bytes=case.kv_bytes)) == {"cpu"}
    mx.clear_cache()


def test_attention_report() -> None:
    measured = attention.Measured({"cpu": 1e-3, "reference": 4e-3}, limit=10e9)
    report = attention.report(MACHINE, {Case(1024, 1): measured}, {Case(64, 1, new=64): measured})
    # 8.4 MB of keys and values in a millisecond, of 10 GB/s.
    assert "| 1 x 1024 | 8.4 | 2.1 | - | 10.0 | 83.9 | 4.0 | - |" in report
    assert "| 1 x 64 of 64 |" in report


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
