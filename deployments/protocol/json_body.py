"""A request body to a JSON object, or a 400 that says where it stops being one."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable
from typing import Any, NoReturn

from pydantic_core import from_json

from deployments.backend.written import read_number
from deployments.http.errors import ApiError, shown
from deployments.protocol.background import end_if_left
from deployments.protocol.crowded_body import HEAVY, MAX_WEIGHT, is_crowded

_SURROGATE_ESCAPE = re.compile(rb"\\u[dD][89a-fA-F]")


def decode_object(body: bytes) -> dict[str, Any]:
    """Strict JSON: UTF-8, no NaN or infinity, no key twice, no lone surrogates. Raises ApiError."""
    if not body:
        raise _invalid("is empty; send a JSON object")
    if is_crowded(body):
        raise too_many_values("The request body")
    try:
        text = body.decode("utf-8")
    except UnicodeDecodeError as error:
        raise _invalid(f"is not UTF-8: {error.reason} at byte {error.start}") from None
    try:
        value = json.loads(
            text, parse_constant=_no_constant, parse_float=_finite, object_pairs_hook=unique_members
        )
        if _SURROGATE_ESCAPE.search(body):
            # The standard library lets half a surrogate pair through, which no tokenizer can read.
            from_json(body)
    except RecursionError:
        raise _invalid("is nested too deeply") from None
    except ValueError as error:
        raise _invalid(f"is not valid JSON: {error}") from None
    if not isinstance(value, dict):
        raise _invalid(f"must be a JSON object, not {json_type(value)}")
    return value


def too_many_values(what: str) -> ApiError:
    return ApiError(
        400,
        f"{what} holds too many values: {MAX_WEIGHT} at most, of which an array, an "
        f"object and a member of one count {HEAVY} each.",
        code="too_many_values",
    )


def json_type(value: object) -> str:
    """The JSON name of a decoded value's type, with its article."""
    match value:
        case None:
            return "null"
        case bool():
            return "a boolean"
        case int() | float():
            return "a number"
        case str():
            return "a string"
        case list():
            return "an array"
    return "an object"


def is_deeper(value: Any, limit: int) -> bool:
    """Whether a decoded value nests arrays and objects more than ``limit`` levels deep."""
    if not isinstance(value, (dict, list)):
        return False
    members = value.values() if isinstance(value, dict) else value
    return limit == 0 or any(is_deeper(member, limit - 1) for member in members)


def unique_members(pairs: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    """The members of an object in their order. Raises ``ValueError`` for a key that comes twice."""
    end_if_left()
    members: dict[str, Any] = {}
    for key, value in pairs:
        if key in members:
            raise ValueError(f"key {shown(key)} appears twice in one object")
        members[key] = value
    return members


def _finite(digits: str) -> float:
    number = read_number(digits)
    if math.isinf(number):
        raise ValueError(f"{digits[:32]} is too large for a number")
    return number


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number")


def _invalid(problem: str) -> ApiError:
    return ApiError(400, f"The request body {problem}.", code="invalid_json")
