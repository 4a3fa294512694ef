"""Peers side by side, with peers whose words and speed are known."""

from __future__ import annotations

import sys
from pathlib import Path

import httpx
import psutil
import pytest

from ops.bench.compare import alone, server
from ops.bench.compare.model import Weights
from ops.bench.compare.peers import PEERS, Job, Launch, Peer, free_port
from ops.bench.compare.results import Results, Trial
from ops.bench.compare.rounds import Plan, measure, trial
from ops.bench.compare.server import StartError, running
from ops.bench.serve import Answer, Load, Result, Target, Usage
from ops.bench.serve.lengths import Uniform
from ops.bench.serve.writing import WordWriter

pytestmark = pytest.mark.serve

SCRIPT = Path(__file__).parents[1] / "support" / "ops" / "scripted_peer.py"
WEIGHTS = Weights("f32", Path("mlx"), Path("f32.gguf"))


@pytest.fixture(autouse=True)
def asks_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "POLL_S", 0.02)


def launch(port: int, *options: str) -> Launch:
    return Launch((sys.executable, str(SCRIPT), str(port), *options), "model", "/health")


def scripted(name: str, *options: str) -> Peer:
    return Peer(name, sys.executable, lambda program, job: launch(job.port, *options), "")


def run(folder: Path, *peers: Peer, rounds: int = 1, patience_s: float = 60.0) -> Results:
    plan = Plan(
        {peer: Path(sys.executable) for peer in peers},
        [WEIGHTS],
        WordWriter(),
        at_once=(1, 2),
        rounds=rounds,
        requests_each=3,
        input_tokens=Uniform(3, 5),
        output_tokens=4,
        patience_s=patience_s,
    )
    return measure(plan, folder, lambda results: None)


def test_everybody_takes_turns_with_the_same_requests(tmp_path: Path) -> None:
    fast, slow = scripted("fast"), scripted("slow", "--step-s", "0.005")
    kept: list[int] = []
    plan = Plan(
        {fast: Path(), slow: Path()},
        [WEIGHTS],
        WordWriter(),
        at_once=(1, 2),
        rounds=2,
        requests_each=3,
        input_tokens=Uniform(3, 5),
        output_tokens=4,
    )
    results = measure(plan, tmp_path, lambda so_far: kept.append(len(so_far.trials)))
    order = [("fast", 0), ("slow", 0), ("slow", 1), ("fast", 1)]
    assert [(one.peer, one.round) for one in results.starts] == order
    assert [(one.peer, one.round, one.at_once) for one in results.trials] == [
        (*turn, at_once) for turn in order for at_once in (1, 2)
    ]
    assert kept == [2, 4, 6, 8]
    assert results.failures == []
    assert {one.failed for one in results.trials} == {0}
    for one in results.trials:
        if one.peer == "slow":
            assert one.latency >= 4 * 0.005
            assert one.output_tokens_per_second <= one.at_once / 0.005
        assert one.time_to_first_token <= one.latency
    assert results.said_alike("f32") == {"fast": 1.0, "slow": 1.0}
    assert all(one.memory_bytes > 1 << 20 for one in results.starts)


def test_a_trial_has_medians_of_the_answers() -> None:
    def answer(first: float, step: float, num_tokens: int = 4) -> Answer:
        times = tuple(1.0 + first + step * number for number in range(num_tokens))
        usage = Usage(8, num_tokens)
        return Answer(0, 0, 1.0, 1.0, times[-1], times=times, usage=usage)

    answers = (answer(0.5, 1.0), answer(0.25, 2.0), answer(4.0, 0.5), answer(1.0, 0.5, 3))
    load = Load([], concurrency=8)
    result = Result(Target("", ""), load, answers, (), start=1.0, client_cpu_s=0.0)
    measured = trial(result, scripted("one"), WEIGHTS, 2, 8, output_tokens=4)
    assert measured == Trial(
        peer="one",
        precision="f32",
        round=2,
        at_once=8,
        # Until the last of them, 6.25 s later.
        output_tokens_per_second=15 / 6.25,
        time_to_first_token=0.75,
        time_per_output_token=0.75,
        latency=(5.5 + 3.5) / 2,
        failed=1,
    )


def test_prompts_are_new_in_each_load_and_the_same_for_all(tmp_path: Path) -> None:
    plan = Plan({}, [WEIGHTS], WordWriter(), input_tokens=Uniform(8, 9))

    def prompts(number: int, at_once: int) -> set[object]:
        load = plan.load(number, at_once)
        return {one.turns[0].added for one in (*load.conversations, *load.warm_up)}

    assert prompts(1, 8) == prompts(1, 8)
    loads = [prompts(number, at_once) for number in range(2) for at_once in plan.at_once]
    assert len(set.union(*loads)) == sum(map(len, loads))
    assert [len(plan.load(0, one).conversations) for one in plan.at_once] == [6, 16, 32, 64]
    longest = max(one.turns[0].max_tokens for one in plan.load(0, 1).conversations) + 9
    assert plan.context >= longest


def test_answers_that_differ_or_end_early_are_told(tmp_path: Path) -> None:
    results = run(tmp_path, scripted("one"), scripted("other", "--word", "else", "--missing", "1"))
    assert results.said_alike("f32") == {"one": 1.0, "other": 0.0}
    failed = {(one.peer, one.at_once): one.failed for one in results.trials}
    assert failed == {("one", 1): 0, ("one", 2): 0, ("other", 1): 6, ("other", 2): 6}


def test_a_peer_that_does_not_start_or_is_too_slow_is_noted(tmp_path: Path) -> None:
    results = run(
        tmp_path,
        scripted("broken", "--fail", "no such model"),
        scripted("slow", "--step-s", "30"),
        scripted("good"),
        rounds=2,
        patience_s=8.0,
    )
    assert [one.peer for one in results.trials] == ["good"] * 4
    # They had no turn in the second round.
    broken, slow = results.failures
    assert (broken.peer, slow.peer) == ("broken", "slow")
    assert broken.why == "ended with status 1:\nno such model\n"
    assert slow.why.startswith("too slow: 4 answers of 24 tokens")


def test_a_single_user_is_served_by_turns_while_the_others_are_stopped(tmp_path: Path) -> None:
    mlx = tmp_path / "mlx"
    mlx.mkdir()
    (mlx / "model.safetensors").write_bytes(bytes(1000))
    fast, slow = scripted("fast"), scripted("slow", "--step-s", "0.005")
    plan = Plan(
        {fast: Path(), slow: Path()},
        [],
        WordWriter(),
        at_once=(1,),
        rounds=3,
        input_tokens=Uniform(3, 5),
        output_tokens=4,
    )

    def bandwidth() -> float:
        servers = [one for one in psutil.Process().children() if str(SCRIPT) in one.cmdline()]
        assert [one.status() for one in servers] == [psutil.STATUS_STOPPED] * 2
        return 1e6

    weights = Weights("f32", mlx, tmp_path / "f32.gguf")
    turns = alone.measure(plan, weights, tmp_path, bandwidth)
    order = [("fast", 0), ("slow", 0), ("slow", 1), ("fast", 1), ("fast", 2), ("slow", 2)]
    assert [(one.peer, one.round) for one in turns.results.trials] == order
    assert {(one.at_once, one.failed) for one in turns.results.trials} == {(1, 0)}
    assert turns.read_bytes_per_second == [1e6] * 3
    assert not [one for one in psutil.Process().children() if str(SCRIPT) in one.cmdline()]


def test_a_report_of_turns_has_medians_of_ratios_in_the_same_turn(tmp_path: Path) -> None:
    mlx = tmp_path / "mlx"
    mlx.mkdir()
    (mlx / "model.safetensors").write_bytes(bytes(1000))
    # The machine is three times as fast in the last turn.
    trials = [
        Trial(peer, "f32", number, 1, rate / 2, 0.1, 1 / rate, 1.0, 0)
        for peer, rates in {"ours": (90.0, 80.0, 300.0), "theirs": (100.0, 100.0, 300.0)}.items()
        for number, rate in enumerate(rates)
    ]
    weights = Weights("f32", mlx, tmp_path / "f32.gguf")
    turns = alone.Turns(weights, Results(trials=trials), [100e3, 100e3, 300e3])
    columns, _, ours, theirs = alone.report(turns, "ours").splitlines()
    assert columns.split(" | ")[-2:] == ["ours is faster by", "in decode |"]
    assert ours == "| f32, ours | 45.0 | 90.0 (80.0 to 300.0) | 90% |  |  |"
    assert theirs == "| f32, theirs | 50.0 | 100.0 (100.0 to 300.0) | 100% | 0.90 | 0.90 |"


def test_processes_of_a_server_run_again_whatever_happens_while_they_are_stopped(
    tmp_path: Path,
) -> None:
    port = free_port()
    with running(launch(port), f"http://127.0.0.1:{port}", tmp_path / "log") as started:
        process = psutil.Process(started.pid)

        def break_off() -> None:
            with started.stopped():
                assert process.status() == psutil.STATUS_STOPPED
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            break_off()
        assert process.status() != psutil.STATUS_STOPPED


def test_no_process_is_left(tmp_path: Path) -> None:
    port = free_port()
    with running(launch(port), f"http://127.0.0.1:{port}", tmp_path / "log") as started:
        assert psutil.Process(started.pid).is_running()
        assert started.started_s > 0
    assert not psutil.pid_exists(started.pid)
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"http://127.0.0.1:{port}/health")


def test_a_server_ends_when_the_benchmark_breaks_off(tmp_path: Path) -> None:
    port = free_port()
    with (
        pytest.raises(KeyboardInterrupt),
        running(launch(port), f"http://127.0.0.1:{port}", tmp_path / "log") as started,
    ):
        raise KeyboardInterrupt
    assert not psutil.pid_exists(started.pid)


def test_a_program_that_is_missing_is_no_success(tmp_path: Path) -> None:
    nothing = Launch((str(tmp_path / "nothing"),), "model", "/health")
    with (
        pytest.raises((StartError, OSError)),
        running(nothing, "http://127.0.0.1:9", tmp_path / "log"),
    ):
        pass


def test_peers_are_found_in_the_cache_before_the_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    [peer] = [one for one in PEERS if one.name == "llama.cpp"]
    cache, path = tmp_path / "cache", tmp_path / "path"
    monkeypatch.setenv("PATH", str(path))
    assert peer.find(cache) is None
    for folder in (path, cache / "llama.cpp" / "bin"):
        folder.mkdir(parents=True)
        (folder / "llama-server").touch(mode=0o755)
        assert peer.find(cache) == folder / "llama-server"
    assert peer.version(cache) == "as found"
    (cache / "llama.cpp" / "VERSION").write_text("b1\n")
    assert peer.version(cache) == "b1"


@pytest.mark.parametrize("peer", PEERS, ids=lambda peer: peer.name)
def test_every_peer_is_told_where_to_serve_what(peer: Peer, tmp_path: Path) -> None:
    mlx = tmp_path / "mlx"
    weights = Weights("f32", mlx, tmp_path / "f32.gguf")
    job = Job(weights, port=4321, at_once=8, context=100, folder=tmp_path)
    told = peer.launch(Path("/opt/program"), job)
    assert told.command[0] == "/opt/program"
    said = " ".join(told.command)
    config = tmp_path / "config.yaml"
    said += config.read_text() if config.exists() else ""
    assert "4321" in said
    assert "127.0.0.1" in said
    models = tmp_path / "models"
    served = models / "mlx" if models.exists() else mlx
    assert str(weights.gguf) in said or str(mlx) in said or served.readlink() == mlx
    assert told.model in ("f32", "mlx", str(mlx))


@pytest.mark.parametrize("name", ["pomona", "llama.cpp", "mlx-lm"])
def test_a_server_may_be_told_how_many_threads_multiply(name: str, tmp_path: Path) -> None:
    [peer] = [one for one in PEERS if one.name == name]
    weights = Weights("f32", tmp_path / "mlx", tmp_path / "f32.gguf")
    job = Job(weights, port=4321, at_once=1, context=100, folder=tmp_path, threads=3)
    told = peer.launch(Path("/opt/program"), job)
    is_flag = "--threads 3" in " ".join(told.command)
    assert is_flag or told.environment["POMONA_CPU_THREADS"] == "3"
