"""What the openai package makes of an answer, with nothing in it that the package doesn't know."""

from __future__ import annotations

from typing import Any, TypeVar

from openai.types.responses import Response, ResponseStreamEvent
from pydantic import BaseModel, TypeAdapter

T = TypeVar("T")
OF_OPEN_RESPONSES = {"bytes", "frequency_penalty", "presence_penalty", "store"}
"""That document has them, in a response and in a token of an event, and the package doesn't."""
_EVENT: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)


def response(data: Any) -> Response:
    """Raises ``ValidationError``, or ``AssertionError`` for a member that is unknown."""
    return known(Response.model_validate(data, strict=True))


def response_event(data: Any) -> Any:
    """As ``response``, for one event of a stream."""
    return known(_EVENT.validate_python(data, strict=True))


def known(value: T, where: str = "") -> T:
    if isinstance(value, BaseModel):
        extra = value.model_extra or {}
        assert not extra.keys() - OF_OPEN_RESPONSES, (where, extra)
        for name in value.model_fields_set:
            known(getattr(value, name), f"{where}.{name}")
    elif isinstance(value, list):
        for index, one in enumerate(value):
            known(one, f"{where}[{index}]")
    return value
