import itertools
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import pytest

from backend_metal.engine.engine import MAX_CONSECUTIVE_FAILURES
from backend_metal.engine.schedule.snapshot_borders import SnapshotPolicy
from backend_metal.engine.schedule.step import TokenDraw
from backend_metal.engine.text.output import SequenceOutput
from deployments.backend import (
    Delta,
    InvalidRequestError,
    Prefill,
    SamplingParams,
    StepError,
    UnavailableError,
)
from tests.support.backend_metal.engine_harness import (
    VOCAB_SIZE,
    byte_tokenizer,
    make_engine,
    request,
    run,
    token_ids,
)
from tests.support.backend_metal.stub_runner import (
    StubDraws,
    StubForward,
    StubRunner,
    expected_tokens,
)

PROMPT = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Any:
    path: Path = tmp_path_factory.mktemp("tokenizer")
    return byte_tokenizer(path)


def expected(count: int, prompt: list[int] = PROMPT) -> list[int]:
    return expected_tokens(prompt, count, VOCAB_SIZE)


def test_a_request_ends_with_length_after_max_tokens(tokenizer: Any) -> None:
    engine, _ = make_engine(tokenizer)
    engine.add_request(*request("a", PROMPT))
    items = run(engine)["a"]
    assert token_ids(items) == expected(8)
    assert [item.finish_reason for item in items] == [None] * 7 + ["length"]
    assert "".join(item.text for item in items) == tokenizer.decode(expected(8))
    assert {item.num_prompt_tokens for item in items} == {len(PROMPT)}


@pytest.mark.parametrize(
    ("holds_up", "order"),
    [
        (False, "submit, submit, return 1, submit, return 1, return 1"),
        (True, "submit, deliver 1, submit, return 0, deliver 1, submit, return 0, return 1"),
    ],
)
def test_tokens_do_not_wait_for_the_next_step_to_be_submitted(
    tokenizer: Any, monkeypatch: pytest.MonkeyPatch, holds_up: bool, order: str
) -> None:
    engine, runner = make_engine(tokenizer)
    runner.holds_up = holds_up
    done: list[str] = []
    sample = StubForward.sample

    def noted(forward: StubForward) -> StubDraws:
        done.append("submit")
        return sample(forward)

    monkeypatch.setattr(StubForward, "sample", noted)
    engine.add_request(*request("a", PROMPT, max_tokens=3))
    while engine.has_work:
        left = engine.step(lambda outputs: done.append(f"deliver {len(outputs)}"))
        done.append(f"return {len(left)}")
    assert ", ".join(done) == order


def test_what_was_delivered_is_of_no_step_that_fails(tokenizer: Any) -> None:
    engine, runner = make_engine(tokenizer)
    runner.holds_up = True
    engine.add_request(*request("a", PROMPT))
    delivered: list[Any] = []

    def deliver(outputs: list[Any]) -> None:
        delivered.extend(output.item for output in outputs)
        runner.fails_at = "sample"

    (failed,) = engine.step(deliver)
    assert [type(item) for item in delivered] == [Delta]
    assert isinstance(failed.item, StepError)
    engine.check_integrity()


def test_eos_ends_a_request_and_leaves_no_text(tokenizer: Any) -> None:
    tokens = expected(8)
    eos = tokens[4]
    first = tokens.index(eos)
    engine, _ = make_engine(tokenizer, eos_token_ids=frozenset({eos}))
    engine.add_request(*request("a", PROMPT))
    engine.add_request(*request("b", PROMPT, ignore_eos=True))
    items = run(engine)
    assert token_ids(items["a"]) == tokens[: first + 1]
    assert items["a"][-1].finish_reason == "stop"
    assert "".join(item.text for item in items["a"]) == tokenizer.decode(tokens[:first])
    assert token_ids(items["b"]) == tokens


def test_stop_token_ids_end_a_request(tokenizer: Any) -> None:
    tokens = expected(8)
    engine, _ = make_engine(tokenizer)
    engine.add_request(*request("a", PROMPT, stop_token_ids=(tokens[2],)))
    items = run(engine)["a"]
    assert token_ids(items) == tokens[: tokens.index(tokens[2]) + 1]
    assert items[-1].finish_reason == "stop"


def test_a_stop_string_ends_a_request_and_never_leaks(tokenizer: Any) -> None:
    # Printable letters only, so that any two tokens make a stop string of two characters.
    text = tokenizer.decode(expected(8))
    stop = text[3:5]
    engine, _ = make_engine(tokenizer)
    engine.add_request(*request("a", PROMPT, stop=(stop,)))
    items = run(engine)["a"]
    assert "".join(item.text for item in items) == text[: text.index(stop)]
    assert items[-1].finish_reason == "stop"


def test_generation_ends_with_the_context(tokenizer: Any) -> None:
    engine, _ = make_engine(tokenizer, max_model_len=len(PROMPT) + 3)
    engine.add_request(*request("a", PROMPT, max_tokens=None))
    items = run(engine)["a"]
    assert token_ids(items) == expected(3)
    assert items[-1].finish_reason == "length"


def test_a_sequence_may_fill_the_whole_pool(tokenizer: Any) -> None:
    engine, _ = make_engine(tokenizer, num_blocks=3)
    assert engine.max_model_len == 24
    engine.add_request(*request("a", PROMPT, max_tokens=None))
    assert token_ids(run(engine)["a"]) == expected(14)


@pytest.mark.parametrize(("num_blocks", "max_model_len"), [(64, 10), (1, 200)])
def test_a_prompt_without_room_is_refused_with_the_figures(
    tokenizer: Any, num_blocks: int, max_model_len: int
) -> None:
    engine, _ = make_engine(tokenizer, num_blocks=num_blocks, max_model_len=max_model_len)
    with pytest.raises(InvalidRequestError, match=r"\(10 in the messages, ") as error:
        engine.add_request(*request("a", PROMPT))
    assert error.value.param == "prompt"
    assert error.value.code == "context_length_exceeded"
    assert engine.stats().request_failure == {"invalid_request_error": 1}
    engine.check_integrity()


@pytest.mark.parametrize(
    ("sampling", "param"),
    [
        ({"logit_bias": {VOCAB_SIZE: 1.0}}, "logit_bias"),
        ({"stop_token_ids": (-1,)}, "stop_token_ids"),
    ],
)
def test_token_ids_outside_the_vocabulary_are_refused(
    tokenizer: Any, sampling: dict[str, Any], param: str
) -> None:
    engine, _ = make_engine(tokenizer)
    with pytest.raises(InvalidRequestError, match="the vocabulary ends at 49") as error:
        engine.add_request(*request("a", PROMPT, **sampling))
    assert error.value.param == param


def test_what_a_request_takes_is_counted_from_its_first_step(
    tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, _ = make_engine(tokenizer, max_num_seqs=2)
    # Each look at the clock is a second later.
    ticks = itertools.count()
    monkeypatch.setattr("time.perf_counter", lambda: float(next(ticks)))
    for number in range(60):
        engine.add_request(*request(str(number), PROMPT, max_tokens=4))
        run(engine)
    assert 4 < engine.seconds_per_request < 30


def test_a_bounded_slowdown_holds_requests_back_and_changes_no_token(
    tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, _ = make_engine(tokenizer, max_num_seqs=16, num_blocks=512, max_slowdown=1.5)
    now, wait = [0.0], StubDraws.wait
    monkeypatch.setattr("time.perf_counter", lambda: now[0])

    def timed(draws: StubDraws) -> list[TokenDraw]:
        now[0] += 0.004 + 0.0004 * draws.step.num_tokens
        return wait(draws)

    monkeypatch.setattr(StubDraws, "wait", timed)
    for wave in range(6):
        # Whatever happens while it is idle says nothing about steps.
        now[0] += 1000.0
        for number in range(16):
            prompt = [wave, number, *PROMPT]
            engine.add_request(*request(str(number), prompt, max_tokens=40))
        most_running, items = 0, {}
        while engine.has_work:
            for output in engine.step():
                if isinstance(output.item, Delta):
                    items.setdefault(output.request_id, []).append(output.item)
            most_running = max(most_running, engine.stats().requests_running)
        for number in range(16):
            prompt = [wave, number, *PROMPT]
            assert token_ids(items[str(number)]) == expected(40, prompt)
    # 6.6 ms a step: 4, and 0.4 for each sequence and its share of prompts.
    assert 3 <= most_running <= 6


def test_samples_of_one_request_have_seeds_of_their_own(tokenizer: Any) -> None:
    engine, _ = make_engine(tokenizer)
    engine.add_request(*request("a", PROMPT, n=3, seed=2**63 - 1))
    seeds, items = set(), []
    while engine.has_work:
        items += [output.item for output in engine.step()]
        seeds |= {sequence.seed for sequence in engine.scheduler.running}
    assert len(seeds) == 3
    assert all(-(2**63) <= seed < 2**63 for seed in seeds)
    assert [token_ids(items, index) for index in range(3)] == [expected(8)] * 3
    assert engine.stats().request_success == {"length": 1}
    assert engine.stats().prompt_tokens == len(PROMPT)


def test_abort_frees_blocks_at_once_and_touches_nobody_else(tokenizer: Any) -> None:
    engine, _ = make_engine(tokenizer)
    engine.add_request(*request("a", PROMPT, n=2))
    engine.add_request(*request("b", [7] * 20))
    engine.step()
    held = engine.scheduler.groups[0].pool.num_free
    outputs = engine.abort("a")
    assert [(out.item.index, out.item.finish_reason) for out in outputs] == [
        (0, "abort"),
        (1, "abort"),
    ]
    assert engine.scheduler.groups[0].pool.num_free > held
    engine.check_integrity()
    assert engine.abort("a") == []
    assert token_ids(run(engine)["b"]) == expected(8, [7] * 20)[1:]
    assert engine.stats().request_success == {"abort": 1, "length": 1}


@pytest.mark.parametrize("prefix_caching", [True, False])
def test_a_paused_request_makes_room_and_goes_on_with_the_tokens_it_would_have_had(
    tokenizer: Any, prefix_caching: bool
) -> None:
    engine, _ = make_engine(tokenizer, max_num_seqs=2, prefix_caching=prefix_caching)
    engine.add_request(*request("slow", [1] * 20, n=2, max_tokens=10))
    before = [output for _ in range(4) for output in engine.step()]
    engine.add_request(*request("next", [3] * 20, max_tokens=10))
    engine.pause("slow")
    engine.check_integrity()
    # What is under way comes, and no more.
    before += engine.step()
    items = run(engine)
    assert [*items] == ["next"]
    assert token_ids(items["next"]) == expected_tokens([3] * 20, 10, VOCAB_SIZE)
    engine.pause("slow")  # Twice is once.
    engine.resume("slow")
    step = engine.scheduler.schedule()
    assert len(step.scheduled) == 2
    assert all(item.num_tokens <= 8 for item in step.scheduled), "its blocks were not found"
    engine.scheduler.preempt_all()
    items = run(engine)
    told = [output.item for output in before] + items["slow"]
    for index in range(2):
        assert token_ids(told, index) == expected_tokens([1] * 20, 10, VOCAB_SIZE)


def test_a_paused_request_can_be_aborted(tokenizer: Any) -> None:
    engine, _ = make_engine(tokenizer)
    engine.add_request(*request("slow", [1] * 20, n=2, max_tokens=10))
    engine.step()
    engine.pause("slow")
    assert [output.item.index for output in engine.step()] == [0]
    assert not engine.has_work
    engine.check_integrity()
    engine.abort("slow")
    engine.resume("slow")  # It is not there any more.
    assert not engine.has_work
    engine.check_integrity()


def test_what_is_paused_while_its_last_token_is_under_way_ends(tokenizer: Any) -> None:
    engine, _ = make_engine(tokenizer)
    engine.add_request(*request("a", PROMPT, max_tokens=2))
    items = [output.item for output in engine.step()]
    engine.pause("a")
    assert engine.stats().requests_running == 0
    engine.resume("a")
    items += run(engine)["a"]
    assert token_ids(items) == expected(2)
    assert engine.stats().request_success == {"length": 1}


def test_siblings_of_a_request_that_is_paused_wait_as_well(tokenizer: Any) -> None:
    engine, _ = make_engine(tokenizer, max_num_batched_tokens=8, max_num_seqs=4)
    engine.add_request(*request("a", PROMPT, n=3, max_tokens=3))
    items = [output.item for output in engine.step()]
    engine.pause("a")
    while engine.has_work:
        items += [output.item for output in engine.step()]
        engine.check_integrity()
    assert [token_ids(items, index) for index in range(3)] == [expected(1), [], []]
    engine.resume("a")
    items += run(engine)["a"]
    assert [token_ids(items, index) for index in range(3)] == [expected(3)] * 3


def test_the_next_step_is_submitted_before_a_token_of_this_one_is_read(
    tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, _ = make_engine(tokenizer)
    told: list[str] = []
    for kind, name in ((StubRunner, "forward"), (StubForward, "sample"), (StubDraws, "wait")):
        spy(monkeypatch, kind, name, told)
    engine.add_request(*request("a", PROMPT, max_tokens=3))
    run(engine)
    one = ["forward", "wait", "sample"]
    assert told == ["forward", "sample", *one, *one, "wait"]


def spy(monkeypatch: pytest.MonkeyPatch, kind: type, name: str, told: list[str]) -> None:
    """Have a method's calls told."""
    method = getattr(kind, name)

    def telling(*arguments: Any) -> Any:
        told.append(name)
        return method(*arguments)

    monkeypatch.setattr(kind, name, telling)


def test_what_is_computed_behind_an_end_is_dropped_and_not_counted(tokenizer: Any) -> None:
    eos = expected(3)[2]
    assert eos not in expected(2)
    engine, _ = make_engine(tokenizer, eos_token_ids=frozenset({eos}))
    engine.add_request(*request("ends", PROMPT))
    engine.add_request(*request("goes on", PROMPT, ignore_eos=True, max_tokens=5))
    items = run(engine)
    assert token_ids(items["ends"]) == expected(3)
    assert token_ids(items["goes on"]) == expected(5)
    stats = engine.stats()
    assert stats.generation_tokens == 8
    assert (stats.steps, stats.step_tokens) == (5, {"prefill": 2 * len(PROMPT), "decode": 6})


def test_an_engine_whose_requests_have_ended_waits_for_no_step(tokenizer: Any) -> None:
    eos = expected(3)[2]
    engine, _ = make_engine(tokenizer, eos_token_ids=frozenset({eos}))
    engine.add_request(*request("ends", PROMPT))
    steps = 0
    while engine.has_work:
        engine.step()
        steps += 1
    assert steps == engine.stats().steps == 3
    engine.check_integrity()


@pytest.mark.parametrize("where", ["forward", "sample", "wait"])
def test_a_step_that_fails_takes_the_one_behind_it_along_and_no_other(
    tokenizer: Any, where: Literal["forward", "sample", "wait"]
) -> None:
    engine, runner = make_engine(tokenizer, max_num_seqs=3, max_num_batched_tokens=16)
    engine.add_request(*request("a", PROMPT))
    items = [output.item for output in engine.step()]
    engine.add_request(*request("b", [8] * 12))
    runner.fails_at = where
    outputs = engine.step()
    engine.check_integrity()
    later = run(engine)
    # The step under way had only the first in it, the one behind it both.
    both = where != "wait"
    items += [output.item for output in outputs if output.request_id == "a"]
    assert token_ids(items) == expected(1 + both)
    assert isinstance(items[-1], StepError)
    if both:
        assert not later
        assert isinstance(outputs[-1].item, StepError)
        assert {output.request_id for output in outputs[-2:]} == {"a", "b"}
    else:
        assert token_ids(later["b"]) == expected(8, [8] * 12)
    assert engine.is_healthy


def test_a_failed_step_ends_its_requests_and_the_engine_goes_on(tokenizer: Any) -> None:
    engine, runner = make_engine(tokenizer, max_num_seqs=1)
    engine.add_request(*request("running", PROMPT))
    engine.add_request(*request("waiting", [8] * 12))
    engine.step()
    runner.fails_at = "wait"
    (failed,) = engine.step()
    assert failed.request_id == "running"
    assert isinstance(failed.item, StepError)
    assert "injected failure" in str(failed.item)
    engine.check_integrity()
    items = run(engine)
    assert list(items) == ["waiting"]
    assert token_ids(items["waiting"]) == expected(8, [8] * 12)
    assert engine.stats().request_failure == {"server_error": 1}
    assert engine.is_healthy


def test_an_engine_that_cannot_step_says_so(tokenizer: Any) -> None:
    engine, runner = make_engine(tokenizer, max_num_seqs=1)
    for index in range(MAX_CONSECUTIVE_FAILURES + 2):
        engine.add_request(*request(str(index), PROMPT))
    failures = []
    while engine.has_work:
        runner.fails_at = "wait"
        failures += engine.step()
    assert not engine.is_healthy
    assert len(failures) == MAX_CONSECUTIVE_FAILURES + 2
    with pytest.raises(UnavailableError, match="must be restarted"):
        engine.add_request(*request("late", PROMPT))
    engine.check_integrity()


def test_a_cache_that_cannot_be_reset_ends_every_request(
    tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, runner = make_engine(tokenizer, max_num_seqs=1)
    for name in "ab":
        engine.add_request(*request(name, PROMPT))
    monkeypatch.setattr(runner, "reset", lambda: 1 / 0)
    runner.fails_at = "wait"
    failed = engine.step()
    assert sorted(output.request_id for output in failed) == ["a", "b"]
    assert all(isinstance(output.item, StepError) for output in failed)
    assert not engine.is_healthy
    engine.check_integrity()


def test_output_that_fails_ends_its_request_alone(
    tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, _ = make_engine(tokenizer)
    engine.add_request(*request("bad", PROMPT, n=2))
    engine.add_request(*request("good", PROMPT))
    push = SequenceOutput.push

    def fail_bad(output: SequenceOutput, draw: TokenDraw) -> Delta:
        if output.sequence.request_id == "bad" and output.sequence.num_output_tokens == 3:
            raise RuntimeError("no such character")
        return push(output, draw)

    monkeypatch.setattr(SequenceOutput, "push", fail_bad)
    items = run(engine)
    assert token_ids(items["good"]) == expected(8)
    assert isinstance(items["bad"][-1], StepError)
    assert "no such character" in str(items["bad"][-1])
    assert engine.stats().request_failure == {"server_error": 1}
    assert engine.stats().request_success == {"length": 1}


def test_stats_add_up(tokenizer: Any) -> None:
    engine, _ = make_engine(tokenizer)
    for index in range(5):
        engine.add_request(*request(str(index), [index] * 20))
    assert engine.stats().requests_waiting == 5
    engine.step()
    assert engine.stats().requests_running == 5
    assert engine.stats().kv_cache_usage_ratio == pytest.approx(15 / 64)
    run(engine)
    stats = engine.stats()
    assert (stats.requests_running, stats.requests_waiting) == (0, 0)
    assert stats.kv_cache_blocks_free == stats.kv_cache_blocks_total == 64
    assert stats.prompt_tokens == 100
    assert stats.generation_tokens == 40
    assert stats.request_success == {"length": 5}
    assert sum(stats.time_to_first_token.counts) == 5
    assert sum(stats.e2e_request_latency.counts) == 5
    assert sum(stats.queue_time.counts) == 5
    assert sum(stats.inter_token_latency.counts) == 35
    assert sum(stats.time_per_output_token.counts) == 5
    assert sum(stats.step_duration.counts) == stats.steps == 8
    assert {sum(part.counts) for part in stats.step_host.values()} == {8}
    assert stats.step_tokens == {"prefill": 100, "decode": 35}
    assert stats.step_sequences == {"prefill": 5, "decode": 35}


def test_salts_keep_tenants_apart(tokenizer: Any) -> None:
    engine, _ = make_engine(tokenizer)
    for index, salt in enumerate(("a", "b", "a")):
        made, prompt = request(str(index), list(range(20)))
        made = type(made)(
            made.request_id, made.prompt, SamplingParams(max_tokens=1), cache_salt=salt
        )
        engine.add_request(made, prompt)
        (item,) = run(engine)[str(index)]
        assert item.num_cached_tokens == (16 if index == 2 else 0)


def test_progress_of_a_prompt_is_told_for_each_step_that_computes_a_part_of_it(
    tokenizer: Any,
) -> None:
    engine, _ = make_engine(tokenizer, max_num_seqs=4, max_num_batched_tokens=8)
    told = engine.add_request(*request("a", list(range(20)), max_tokens=2))
    while engine.has_work:
        told += engine.step()
    progress = [output.item for output in told if isinstance(output.item, Prefill)]
    assert progress == [Prefill(0, 20), Prefill(8, 20), Prefill(16, 20)]
    assert [type(output.item) for output in told[3:]] == [Delta, Delta]


@pytest.mark.parametrize("tells", [True, False])
def test_a_prompt_is_told_to_who_asks(tokenizer: Any, tells: bool) -> None:
    engine, _ = make_engine(tokenizer)
    asked, prompt = request("a", [1, 2, 3])
    [admitted] = engine.add_request(replace(asked, tells_prompt=tells), prompt)
    assert isinstance(admitted.item, Prefill)
    assert admitted.item.prompt_token_ids == ((1, 2, 3) if tells else ())


def test_why_a_prompt_was_not_found_in_the_prefix_cache(tokenizer: Any) -> None:
    """In blocks of 8 tokens."""
    engine, _ = make_engine(tokenizer, num_blocks=8)

    def miss(prompt: list[int], **fields: Any) -> str | None:
        asked, token_ids = request("a", prompt, max_tokens=1)
        engine.add_request(replace(asked, **fields), token_ids)
        (delta,) = run(engine)["a"]
        assert isinstance(delta, Delta)
        return delta.prefix_miss

    long = [1] * 16 + [2] * 16
    assert miss(long) == "new"
    assert miss(long) is None
    assert miss([1] * 16 + [3] * 9) == "diverged"
    assert miss([4] * 9) == "new"
    assert miss([5] * 7) is None, "there is no block to look for"
    assert miss(long, cache_salt="of another") == "new"
    assert miss([6] * 62) == "new"
    assert miss(long) == "evicted"
    assert miss(long) is None
    engine.reset_prefix_cache()
    assert miss(long) == "evicted"
    assert engine.stats().prefix_cache_misses == {"new": 4, "diverged": 1, "evicted": 2}


def test_why_a_state_was_not_found(tokenizer: Any) -> None:
    """Of a model with recurrent layers, in blocks of 8 tokens."""
    engine, _ = make_engine(
        tokenizer, num_state_slots=34, snapshots=SnapshotPolicy(least_gain=8), max_num_seqs=32
    )

    def found(prompt: list[int]) -> tuple[int, str | None]:
        engine.add_request(*request("a", prompt, max_tokens=1))
        (delta,) = run(engine)["a"]
        assert isinstance(delta, Delta)
        return delta.num_cached_tokens, delta.prefix_miss

    assert found([1] * 20) == (0, "new")
    assert found([1] * 20) == (16, None)
    assert found([1] * 12 + [2] * 8) == (0, "no_snapshot")
    assert found([1] * 12 + [3] * 8) == (8, "diverged")
    engine.reset_prefix_cache()
    assert found([1] * 20) == (0, "evicted")
    stats = engine.stats()
    assert stats.prefix_cache_misses == {"new": 1, "no_snapshot": 1, "diverged": 1, "evicted": 1}
    assert (stats.state_slots, stats.state_slots_free) == (34, 34)
    assert stats.state_snapshots == 1
    assert stats.state_snapshots_taken == 5


def test_samples_of_one_request_begin_with_one_state(tokenizer: Any) -> None:
    engine, _ = make_engine(
        tokenizer, num_state_slots=8, snapshots=SnapshotPolicy(least_gain=1), max_num_seqs=4
    )
    prompt = list(range(20))
    engine.add_request(*request("a", prompt, n=4))
    items = run(engine)["a"]
    for index in range(4):
        assert token_ids(items, index) == expected_tokens(prompt, 8, VOCAB_SIZE)
    assert engine.stats().step_tokens["prefill"] == 20 + 3 * 4


def test_a_resumed_request_computes_the_state_of_what_it_has(tokenizer: Any) -> None:
    engine, _ = make_engine(tokenizer, num_state_slots=4, max_num_seqs=2)
    prompt = list(range(20))
    expected = expected_tokens(prompt, 8, VOCAB_SIZE)
    begun, _ = request("a", prompt, seed=1)
    engine.add_request(replace(begun, resume=(tuple(expected[:5]),)), prompt)
    assert token_ids(run(engine)["a"]) == expected[5:]
