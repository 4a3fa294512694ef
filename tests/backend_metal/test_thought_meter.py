"""Tokens of thoughts, counted one by one, against the whole text read at once."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from backend_metal.engine.grammar.thought_meter import ThoughtMeter
from deployments.backend import Thoughts

START, END, CALL = b"<think>", b"</think>", b"<tool_call>"
THOUGHTS = Thoughts("<think>", "</think>", before=("<tool_call>",))

PIECES = (
    *(START, END, CALL, b"<", b"think>", b"</th", b"ink>", b"/", b"a", b" b", b"\n\n", b"t</"),
    *(b"x</think>", b"</think>y", b"<think>z", b"\xc3", b"\xa9", b"k><think>q</think>"),
)
tokens_of_text = st.lists(st.sampled_from(PIECES), max_size=24)


def thought_spans(text: bytes, begun: bool, by_calls: bool) -> list[tuple[int, int]]:
    spans, at, inside = [], 0, begun
    while True:
        if inside:
            end = text.find(END, at)
            call = text.find(CALL, at) if by_calls else -1
            if call >= 0 and not 0 <= end < call:
                return [*spans, (at, call)]
            spans.append((at, len(text) if end < 0 else end))
            if end < 0:
                return spans
            at, inside = end + len(END), False
        start, call = text.find(START, at), text.find(CALL, at)
        if start < 0 or 0 <= call < start:
            return spans
        at, inside = start + len(START), True


@pytest.mark.parametrize("by_calls", [False, True])
@given(tokens=tokens_of_text, begun=st.booleans())
@example(tokens=[b"a", b"</th", b"ink>", b"b"], begun=True)
@example(tokens=[b"<think>", b"a", b"</think>", b"<tool_call>", b"<think>", b"b"], begun=False)
def test_a_token_counts_if_any_of_it_is_thought(
    by_calls: bool, tokens: list[bytes], begun: bool
) -> None:
    meter = ThoughtMeter(replace(THOUGHTS, ended_by_calls=by_calls), has_begun=begun)
    for token in tokens:
        meter.push(token)
    spans = thought_spans(b"".join(tokens), begun, by_calls)
    expected, at = 0, 0
    for token in tokens:
        expected += any(at < end and start < at + len(token) for start, end in spans)
        at += len(token)
    assert meter.num_tokens == expected


@pytest.mark.parametrize(
    ("tokens", "due_after"),
    [
        ([b"a"] * 6, 3),
        ([b"a", b"b", b"\xc3", b"\xa9", b"c"], 4),
        ([b"a", b"b", b"\xf0", b"\x9f", b"\x8d", b"\x8f", b"c"], 6),
        ([b"a", b"b", b"c\xf0\x9f", b"\x8d\x8f", b"c"], 4),
        # What is no character is not waited for.
        ([b"a", b"b", *[b"\xf0"] * 9], 6),
        ([b"a", b"b", b"\xa9", b"c"], 3),
    ],
)
def test_it_is_due_with_the_last_token_but_not_within_a_character(
    tokens: list[bytes], due_after: int
) -> None:
    meter = ThoughtMeter(Thoughts("<think>", "</think>", 3), has_begun=True)
    due = []
    for token in tokens:
        due.append(meter.is_due)
        meter.push(token)
    assert [*due, meter.is_due].index(True) == due_after


def test_a_budget_is_of_all_thoughts() -> None:
    meter = ThoughtMeter(Thoughts("<think>", "</think>", 3), has_begun=False)
    for token in (b"no", b"<think>", b"a", b"b", b"</think>", b"so", b"<think>"):
        meter.push(token)
        assert not meter.is_due
    meter.push(b"c")
    assert meter.is_due
    meter.push(END)
    assert not meter.is_due
    meter.push(START)
    assert meter.is_due
    assert meter.num_tokens == 3


def test_without_a_budget_it_is_never_due() -> None:
    meter = ThoughtMeter(Thoughts("<think>", "</think>"), has_begun=True)
    for _ in range(100):
        meter.push(b"a")
    assert (meter.is_due, meter.num_tokens) == (False, 100)


def test_tokens_without_text_count() -> None:
    meter = ThoughtMeter(Thoughts("<think>", "</think>", 2), has_begun=False)
    for token in (b"", START, b"", b""):
        meter.push(token)
    assert (meter.is_due, meter.num_tokens) == (True, 2)
    for token in (END, b""):
        meter.push(token)
    assert meter.num_tokens == 2


def test_a_budget_is_not_negative() -> None:
    with pytest.raises(ValueError, match="budget must be at least 0, not -1"):
        Thoughts("<think>", "</think>", -1)
