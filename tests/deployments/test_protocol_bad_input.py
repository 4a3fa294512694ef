"""Every body that must be refused is refused by the parser, by name and with what is allowed."""

from __future__ import annotations

import json
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deployments.backend import SamplingParams
from deployments.http.errors import ApiError
from deployments.protocol import CHAT_COMPLETIONS_PATH as CHAT
from deployments.protocol import COMPLETIONS_PATH as COMPLETIONS
from deployments.protocol import (
    ChatCompletionRequest,
    CompletionRequest,
    GenerationForm,
    parse_request,
    to_generation_requests,
)
from deployments.protocol.json_body import decode_object, unique_members
from tests.support.deployments.bad_input import BadInput, bad_inputs
from tests.support.fuzzing import fuzz

CASES = bad_inputs(model="echo", max_body_bytes=1024, max_model_len=64)
FIELDS = sorted({*ChatCompletionRequest.model_fields, *CompletionRequest.model_fields, "tools"})


def test_the_table_is_large_and_its_names_are_unique() -> None:
    assert len(CASES) >= 100
    assert len({case.name for case in CASES}) == len(CASES)


@pytest.mark.parametrize(
    "case", [case for case in CASES if case.parsing], ids=lambda case: case.name
)
def test_refused_by_name(case: BadInput) -> None:
    with pytest.raises(ApiError) as caught:
        parse_request(case.path, case.body)
    error = caught.value
    assert (error.status, error.type, error.param) == (case.status, case.type, case.param)
    assert error.code == case.code
    for part in (*case.says, case.param or ""):
        assert part in error.message
    assert len(error.message) < 400


@pytest.mark.parametrize(
    "case", [case for case in CASES if not case.parsing], ids=lambda case: case.name
)
def test_what_only_a_server_refuses_parses(case: BadInput) -> None:
    assert parse_request(case.path, case.body).form.model


def test_another_path_is_unknown() -> None:
    with pytest.raises(ApiError, match="/v1/images") as caught:
        parse_request("/v1/images", b"{}")
    assert caught.value.status == 404


class CountedKey(str):
    comparisons = 0

    __hash__ = str.__hash__

    def __eq__(self, other: object) -> bool:
        CountedKey.comparisons += 1
        return str.__eq__(self, other)


def test_a_repeated_key_is_found_in_one_pass() -> None:
    pairs = [(CountedKey(f"k{i}"), 0) for i in range(2000)]
    with pytest.raises(ValueError, match='"k1999" appears twice'):
        unique_members([*pairs, (CountedKey("k1999"), 1)])
    assert CountedKey.comparisons < 4 * len(pairs)


@pytest.mark.parametrize(
    "messages", [[0] * 3000, [{"role": "user", "content": [0] * 3000}]], ids=["messages", "parts"]
)
def test_the_first_mistake_is_the_last_one_looked_at(messages: list[Any]) -> None:
    calls = 0

    def count(*event: object) -> None:
        nonlocal calls
        calls += 1

    body = {"model": "m", "messages": messages, **{f"unknown{i}": 0 for i in range(3000)}}
    data = decode_object(json.dumps(body).encode())
    sys.setprofile(count)
    try:
        error = _refused(data)
    finally:
        sys.setprofile(None)
    assert error.param is not None
    assert calls < 1000


def _refused(data: dict[str, Any]) -> ApiError:
    with pytest.raises(ApiError) as caught:
        ChatCompletionRequest.parse(data)
    return caught.value


def outcome(path: str, body: bytes) -> GenerationForm | ApiError:
    try:
        return parse_request(path, body).form
    except ApiError as error:
        return error


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=6,
)


@fuzz(300)
@given(
    path=st.sampled_from([CHAT, COMPLETIONS]),
    fields=st.dictionaries(st.sampled_from(FIELDS), json_values, max_size=3),
)
def test_any_fields_are_refused_by_name_or_run(path: str, fields: dict[str, Any]) -> None:
    base: dict[str, Any] = {"model": "m", "prompt": "hi"}
    if path == CHAT:
        base = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
    body = json.dumps(base | fields).encode()
    request = outcome(path, body)
    if isinstance(request, ApiError):
        assert request.status == 400
        assert request.param
        assert request.param.replace(".", "[").split("[")[0] in fields
    else:
        assert to_generation_requests(request, "r", SamplingParams())
        assert request.prompt_size_estimate() > 0
        assert request.max_new_tokens_estimate() >= 0


@fuzz(200)
@given(body=st.binary(max_size=40))
def test_any_bytes_are_refused(body: bytes) -> None:
    with pytest.raises(ApiError) as caught:
        parse_request(CHAT, body)
    assert caught.value.status == 400
