"""How much a body holds, before it is decoded."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deployments.http.errors import ApiError
from deployments.protocol import crowded_body, parse_request
from deployments.protocol.crowded_body import HEAVY, MAX_WEIGHT, is_crowded, weight
from tests.support.fuzzing import fuzz

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
TEXT = st.text(alphabet='a,:[{}]"\\\u20ac', max_size=8)
VALUES: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.integers() | TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=20,
)


def counted(value: Any) -> int:
    """What ``weight`` reads from the text, from the value itself."""
    if not isinstance(value, (list, dict)):
        return 0
    members = list(value.values()) if isinstance(value, dict) else value
    own = HEAVY + max(0, len(members) - 1) + (HEAVY * len(members)) * isinstance(value, dict)
    return own + sum(map(counted, members))


@fuzz(300)
@given(value=VALUES, is_ascii=st.booleans())
def test_what_is_in_strings_does_not_count(value: Any, is_ascii: bool) -> None:
    assert weight(json.dumps(value, ensure_ascii=is_ascii).encode()) == counted(value)


@fuzz(300)
@given(value=VALUES, piece_bytes=st.integers(1, 9))
def test_pieces_weigh_as_much_as_the_whole(value: Any, piece_bytes: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(crowded_body, "PIECE_BYTES", piece_bytes)
        assert weight(json.dumps(value).encode()) == counted(value)


def test_no_more_is_read_than_tells_that_it_is_too_much(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[bytes] = []
    pieces = crowded_body._pieces

    def counting(body: bytes) -> Iterator[bytes]:
        for piece in pieces(body):
            read.append(piece)
            yield piece

    monkeypatch.setattr(crowded_body, "_pieces", counting)
    assert is_crowded(b"[" * (64 * MAX_WEIGHT))
    assert sum(map(len, read)) <= 2 * (MAX_WEIGHT // HEAVY + crowded_body.PIECE_BYTES)


def test_long_texts_of_whatever_characters_are_not_crowded() -> None:
    for text in ("a,b[c]:", '\\"', "\\\\", '",'):
        assert not is_crowded(json.dumps({"content": text * 300_000}).encode())


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (CHAT, b'{"messages":[{"role":"user","content":[' + b'{"type":"text"},' * 40_000),
        (CHAT, b'{"x":' + b"[" * 70_000),
        (COMPLETIONS, b'{"logit_bias":{' + b'"1":1,' * 70_000),
        (COMPLETIONS, b'{"prompt":[' + b"5," * MAX_WEIGHT),
    ],
)
def test_a_crowded_body_is_refused_before_it_is_decoded(path: str, body: bytes) -> None:
    """None of these is JSON, which nobody finds out."""
    with pytest.raises(ApiError) as caught:
        parse_request(path, body)
    assert (caught.value.status, caught.value.code) == (400, "too_many_values")
    assert "holds too many values: 262144 at most" in caught.value.message


def test_a_long_prompt_of_token_ids_is_not_crowded() -> None:
    body = json.dumps({"model": "m", "prompt": [7] * 250_000}).encode()
    assert parse_request(COMPLETIONS, body).form.prompt == ((7,) * 250_000,)  # type: ignore[union-attr]
