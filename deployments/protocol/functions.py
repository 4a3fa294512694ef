"""``functions`` and ``function_call``, which are tools for one call at a time, without ids."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Annotated, Any, Literal

from pydantic import PlainValidator

from deployments.http.errors import shown
from deployments.protocol.chat_formats.call_ids import call_id
from deployments.protocol.chat_formats.reader import ChatFormat
from deployments.protocol.messages import Message
from deployments.protocol.strict import RefusedError
from deployments.protocol.tools import ToolChoice

FUNCTION_CHOICE = '"none", "auto" or {"name": …}'


def _parse_choice(value: Any) -> ToolChoice:
    match value:
        case "none" | "auto":
            return ToolChoice(forbidden=value == "none")
        case {"name": str(name), **more} if not more:
            return ToolChoice(required=True, names=(name,))
    raise RefusedError(f"must be {FUNCTION_CHOICE}, not {shown(value)}")


FunctionChoice = Annotated[
    ToolChoice | None,
    PlainValidator(_parse_choice, json_schema_input_type=Literal["none", "auto"] | dict[str, Any]),
]


def with_call_ids(messages: Iterable[Message], form: ChatFormat) -> Iterator[dict[str, Any]]:
    """``messages`` for templates, some of which refuse ids that are not of the model's ``form``."""
    number, latest = 0, dict[str | None, str]()
    for message in messages:
        rendered = message.for_template()
        if old := message.function_call:
            latest[old.name] = call_id(form, old.name, seed=str(number), number=number)
            rendered["tool_calls"][0]["id"] = latest[old.name]
        elif message.role == "function":
            rendered["tool_call_id"] = latest.get(message.name, message.name)
        number += len(message.calls)
        yield rendered
