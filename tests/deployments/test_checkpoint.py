from __future__ import annotations

import tracemalloc
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deployments.backend import Delta
from deployments.http.errors import ApiError
from deployments.wire.checkpoint import CheckpointReader, CheckpointWriter, Progress
from tests.support.fuzzing import fuzz

NUM_CHOICES = 2
Tokens = Sequence[Sequence[int]]
"""By choice."""


def writes(tokens: Tokens, progress: Progress, order: Sequence[int], each: int) -> list[bytes]:
    """What a replica writes of an answer after ``progress``: an event a token, ``each`` a write."""
    writer = CheckpointWriter(NUM_CHOICES, progress)
    said = [len(progress.token_ids.get(choice, ())) for choice in range(len(tokens))]
    written, events = [], b""
    for choice in order:
        if said[choice] == len(tokens[choice]):
            continue
        token = tokens[choice][said[choice]]
        said[choice] += 1
        events += b'data: {"%d":"%d:~"}\n\n' % (choice, token)
        writer.add(choice, Delta(0, "", (token,), 9, num_cached_tokens=16 * choice))
        if sum(said) % each == 0:
            written.append(events + writer.take())
            events = b""
    written.append(events + b"data: [DONE]\n\n" + writer.take())
    return written


def of_choice(events: bytes, choice: int) -> list[bytes]:
    start = b'data: {"%d"' % choice
    return [event for event in events.split(b"\n\n") if event.startswith(start)]


@fuzz(200)
@given(st.data())
def test_wherever_streams_break_the_client_sees_each_event_once(data: st.DataObject) -> None:
    tokens = data.draw(
        st.lists(st.lists(st.integers(0, 99999), min_size=1, max_size=6), min_size=2, max_size=4)
    )
    order = [choice for choice, ids in enumerate(tokens) for _ in ids]
    whole = b"".join(writes(tokens, Progress(), order, 1))
    reader, got = CheckpointReader(), b""
    for is_last in [False] * data.draw(st.integers(0, 3)) + [True]:
        stream = b"".join(
            writes(
                tokens,
                Progress.parse(bytes(reader.log)),
                data.draw(st.permutations(order)),
                data.draw(st.integers(1, 3)),
            )
        )
        reader.restart()
        until = len(stream) if is_last else data.draw(st.integers(0, len(stream)))
        while stream[:until]:
            size = data.draw(st.integers(1, until))
            got += reader.feed(stream[:size])
            stream, until = stream[size:], until - size
        if got.endswith(b"data: [DONE]\n\n"):
            break
    for choice in range(len(tokens)):
        assert of_choice(got, choice) == of_choice(whole, choice)
    assert got.count(b"[DONE]") == 1
    progress = Progress.parse(bytes(reader.log))
    assert [progress.token_ids[choice] for choice in range(len(tokens))] == [*map(list, tokens)]
    assert reader.num_logged == sum(map(len, tokens))
    assert reader.prompt_tokens == 9 * len(progress.cached_tokens)


def test_what_a_prompt_found_in_the_cache_is_told_once() -> None:
    writer = CheckpointWriter(NUM_CHOICES, Progress())
    for choice, cached in ((0, 32), (1, 32), (2, 16)):
        writer.add(choice, Delta(0, "", (7, 8), 40, num_cached_tokens=cached))
    assert writer.take() == b":~0=32/40 0:7,8 1:7,8 1=16/40 2:7,8\n\n"
    assert writer.take() == b":~\n\n"
    writer = CheckpointWriter(NUM_CHOICES, Progress.parse(b"0=32/40 0:7 1:8 "))
    writer.add(1, Delta(0, "", (9,), 40, num_cached_tokens=0))
    assert writer.take() == b":~1:9\n\n"


def test_what_prompts_and_tokens_a_log_tells_of() -> None:
    reader = CheckpointReader()
    # Who doesn't tell of a prompt's length may tell of its tokens.
    reader.feed(b"data: {}\n\n:~0=32/40 0:7,8 1:7 1=0 2:9\n\ndata: {}\n\n:~2=16/70 4:1,2\n\n")
    assert (reader.prompt_tokens, reader.num_logged) == (110, 6)


def test_a_long_event_is_copied_as_often_however_many_chunks_it_comes_in() -> None:
    """An answer that the client wants whole is one event, of many megabytes at times."""
    event = b'data: "%s"\n\n' % bytes(1 << 20)
    stream, size = event + b":~0:7\n\n", 1024
    reader, got, num_copied = CheckpointReader(), b"", 0
    tracemalloc.start()
    for start in range(0, len(stream), size):
        chunk = stream[start : start + size]
        tracemalloc.reset_peak()
        before = tracemalloc.get_traced_memory()[0]
        got += reader.feed(chunk)
        num_copied += tracemalloc.get_traced_memory()[1] - before
    tracemalloc.stop()
    assert got == event
    # Joined, split at its checkpoint, and joined to what is passed on.
    assert num_copied < 8 * len(stream)


def test_progress_by_prompt() -> None:
    progress = Progress.parse(b"0=0/5 0:1,2 1:3 0:4 ")
    assert progress.of_prompt(0, 2) == ((1, 2, 4), (3,))
    # It has not begun, but was let in with the others.
    assert progress.of_prompt(1, 2) == ((), ())
    assert progress.of_prompt(0, 3) == ((1, 2, 4), (3,), ())
    assert progress.cached_tokens == {0: 0}
    assert Progress().of_prompt(0, 2) == ()


@pytest.mark.parametrize("log", [b"x", b"0:", b"0:1,", b"a:1", b"0=x", b"0:1;2"])
def test_a_log_that_is_none(log: bytes) -> None:
    with pytest.raises(ApiError, match="malformed") as error:
        Progress.parse(log)
    assert error.value.status == 400
