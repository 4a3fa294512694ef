"""Resumption ids: what is signed comes back, and nothing else is believed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deployments.http.errors import ApiError
from deployments.wire.envelope import Envelope
from deployments.wire.resumption import Resumption, request_digest
from deployments.wire.seen import Seen

KEY = b"k" * 32
REQUEST = request_digest("/v1/chat/completions", b'{"model":"demo"}', "search")
WORDS = st.text("0123456789abcdef#-", min_size=1, max_size=40)
COUNTS = st.dictionaries(st.integers(0, 64), st.integers(0, 10**6), max_size=16)

resumptions = st.builds(
    Resumption,
    answer_id=WORDS,
    created=st.integers(0, 2**40),
    seed=st.integers(0, 2**63 - 1),
    request=st.just(REQUEST),
    max_tokens=st.none() | st.integers(1, 2**31),
    replica_id=WORDS,
    lineage=st.tuples(WORDS, st.integers(0, 10**6)),
    seen=st.builds(Seen, tokens=COUNTS, cached_tokens=COUNTS),
    events_seen=st.dictionaries(st.integers(-1, 64), st.integers(1, 9), max_size=16),
)


def refusal(
    given_id: str, *, key: bytes = KEY, request: str = REQUEST, not_before: float = 0
) -> ApiError:
    with pytest.raises(ApiError) as raised:
        Resumption.verify(given_id, key, request=request, not_before=not_before)
    error = raised.value
    assert (error.status, error.code, error.param) == (400, "resumption_refused", "Last-Event-ID")
    assert "Send the request without it to begin anew." in error.message
    return error


@given(resumptions)
def test_what_was_signed_comes_back(resumption: Resumption) -> None:
    signed = resumption.sign(KEY)
    assert signed.isascii()
    assert signed.split() == [signed]
    assert Resumption.verify(signed, KEY, request=REQUEST, not_before=0) == resumption


@given(resumptions, st.data())
def test_no_altered_id_is_believed(resumption: Resumption, data: st.DataObject) -> None:
    signed = resumption.sign(KEY)
    at = data.draw(st.integers(0, len(signed) - 1))
    other = data.draw(st.characters(codec="ascii").filter(lambda one: one != signed[at]))
    assert "was changed" in refusal(signed[:at] + other + signed[at + 1 :]).message


@pytest.mark.parametrize("given_id", ["", ".", "a.b", "[]", "é.ü", "x" * 10_000])
def test_no_forged_id_is_believed(given_id: str) -> None:
    assert "was not given by this deployment" in refusal(given_id).message


def test_an_id_is_for_one_request_of_one_client_of_one_deployment() -> None:
    signed = Resumption("a", 1, 2, REQUEST).sign(KEY)
    for other in (
        request_digest("/v1/completions", b'{"model":"demo"}', "search"),
        request_digest("/v1/chat/completions", b'{"model":"demo" }', "search"),
        request_digest("/v1/chat/completions", b'{"model":"demo"}', "another"),
    ):
        assert "another request" in refusal(signed, request=other).message
    assert "not given by this deployment" in refusal(signed, key=b"x" * 32).message


def test_an_id_of_an_answer_that_is_long_over_is_refused() -> None:
    signed = Resumption("a", 100, 2, REQUEST).sign(KEY)
    Resumption.verify(signed, KEY, request=REQUEST, not_before=100)
    assert "too old" in refusal(signed, not_before=100.5).message


@given(resumptions)
def test_the_rest_has_the_envelope_of_the_beginning(resumption: Resumption) -> None:
    sent = resumption.address(Envelope.seal(tenant="t", weight=2.5, priority=3)).for_attempt(
        "1", b"0:1 "
    )
    read = Envelope.parse(sent.header())
    assert read == sent
    assert (read.answer_id, read.created, read.seed, read.seen) == (
        resumption.answer_id,
        resumption.created,
        resumption.seed,
        resumption.seen,
    )
    assert (read.tenant, read.weight, read.priority, read.log_bytes) == ("t", 2.5, 3, 4)
