"""Items of an input as they are told later: with ids, and in the form of answers."""

from __future__ import annotations

from hashlib import blake2b
from typing import Any

from deployments.protocol.responses.items import (
    CustomCallItem,
    FunctionCallItem,
    MessageItem,
    OutputItem,
    OwnItem,
    ReasoningItem,
)

_PREFIXES = {
    "message": "msg",
    "function_call": "fc",
    "function_call_output": "fco",
    "custom_tool_call": "ctc",
    "custom_tool_call_output": "ctco",
    "reasoning": "rs",
}


def stored_item(item: OwnItem, answer_id: str, index: int) -> dict[str, Any]:
    """The item at ``index`` of an input. Its id is new, and follows from the answer's: what clients
    call their items need not be unique."""
    digest = blake2b(f"{answer_id}/input/{index}".encode(), digest_size=24).hexdigest()
    named = {"type": item.type, "id": f"{_PREFIXES[item.type]}_{digest}", "status": "completed"}
    return named | _members(item)


def _members(item: OwnItem) -> dict[str, Any]:
    match item:
        case MessageItem(role="assistant"):
            told = {"type": "output_text", "annotations": [], "logprobs": []}
            return {"role": item.role, "content": [told | {"text": text} for text in item.content]}
        case MessageItem():
            return {"role": item.role, "content": _texts(item.content)}
        case FunctionCallItem():
            return _call(item) | {"arguments": item.arguments}
        case CustomCallItem():
            return _call(item) | {"input": item.input}
        case OutputItem():
            output = item.output[0] if len(item.output) == 1 else _texts(item.output)
            return {"call_id": item.call_id, "output": output}
        case ReasoningItem():
            return {
                "summary": [part.model_dump() for part in item.summary],
                "content": [part.model_dump() for part in item.content],
                "encrypted_content": item.encrypted_content,
            }


def _texts(texts: tuple[str, ...]) -> list[dict[str, str]]:
    return [{"type": "input_text", "text": text} for text in texts]


def _call(item: FunctionCallItem | CustomCallItem) -> dict[str, Any]:
    named = {"call_id": item.call_id, "name": item.name}
    return named | ({"namespace": item.namespace} if item.namespace is not None else {})
