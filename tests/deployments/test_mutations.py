"""Requests that somebody has mangled: no server error, no hang, nothing left of them."""

from __future__ import annotations

from itertools import count
from random import Random

import pytest

from deployments.gateway.responses import accepting
from deployments.http.bounded_protocol import ClientTimeouts
from deployments.http.errors import internal_error
from deployments.protocol import ParsedRequest, parse_body
from tests.support.deployments import fuzz
from tests.support.deployments.fuzz.campaign import Finding, campaign
from tests.support.deployments.fuzz.mutations import Input, Manner, Mutations
from tests.support.deployments.fuzz.recorded import recorded
from tests.support.deployments.fuzz.target import STATUS, target

SEED = 1


async def test_a_thousand_mutations() -> None:
    sent: list[int] = []
    findings = await campaign(Mutations(SEED), range(1000), sent.append)
    assert sum(sent) == 1000
    assert findings == []


async def test_what_was_recorded_is_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise all of its mutations would fail at the same line."""
    monkeypatch.setattr(fuzz.target, "TIMEOUTS", ClientTimeouts())
    answered = {}
    async with target() as one:
        for name, raw in recorded().items():
            received = await one.exchange(raw, Manner.AT_ONCE, Random(1))
            answered[name] = STATUS.findall(received)[0]
    refused = {"chat_tools": b"400", "preflight": b"403", "expect": b"100"}
    # What is kept has other ids.
    refused |= {"responses_previous": b"400", "responses_items": b"404"}
    assert answered == {name: refused.get(name, b"200") for name in recorded()}


def test_an_input_is_the_same_wherever_it_is_made() -> None:
    one, other = Mutations(7), Mutations(7)
    assert [one.input(number) for number in range(50)] == [
        other.input(number) for number in reversed(range(50))
    ][::-1]
    assert len({one.input(number).raw for number in range(50)}) > 40
    assert one.input(3) != Mutations(8).input(3)


def has_pepper(one: Input) -> bool:
    return one.manner is Manner.AT_ONCE and b'"pepper"' in one.raw and len(one.raw) < 600


async def test_what_breaks_a_server_is_found_and_made_small(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def broken(
        path: str, body: bytes, context: bytes = b"", *, tenant: str = ""
    ) -> ParsedRequest:
        if b"pepper" in body:
            raise internal_error()
        return await parse_body(path, body, context, tenant=tenant)

    monkeypatch.setattr(accepting, "parse_body", broken)
    # What is made smaller is often cut short.
    monkeypatch.setattr(fuzz.target, "TIMEOUTS", ClientTimeouts(receive_s=0.1))
    monkeypatch.setattr(fuzz.target, "IDLE_S", 0.1)
    mutations = Mutations(SEED)
    findings: list[Finding] = []
    for number in (one for one in count() if has_pepper(mutations.input(one))):
        # Some are refused before anybody looks for pepper.
        if findings := await campaign(mutations, range(number, number + 1), lambda sent: None):
            break
    [finding] = findings
    assert "is answered with 500" in finding.problem
    [one] = finding.inputs
    assert one.number == number
    assert b"pepper" in one.raw
    assert len(one.raw) < len(mutations.input(number).raw)
