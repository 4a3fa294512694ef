"""Made-up sessions that are built as Claude Code's are, and a tenth as long.

Each begins with a request for a title beside the first of the conversation, which all then repeat
what was before them: a billing line that no two sessions share, instructions that name the place
of work, tools, a reminder of the date, and a mark of what may be cached that moves to the newest
block. No text of these is anybody else's.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ops.bench.sessions.recording import RecordedRequest, Recording, Session

TURNS = 3
STEPS = 3
"""Calls of tools in each turn."""
TOOL_S = 0.4
PERSON_S = 8.0
NUM_TOOLS = 12
MARK = {"cache_control": {"type": "ephemeral"}}
TITLE = {
    "type": "json_schema",
    "schema": {
        "type": "object",
        "properties": {"title": {"type": "string"}},
        "required": ["title"],
        "additionalProperties": False,
    },
}
RULES = "Read before you change anything, say what you did, and keep to the style of the file. " * 4

Block = dict[str, Any]


def synthetic() -> Recording:
    """Two sessions in each of two places."""
    return {
        place: [_session(place, 2 * at + number) for number in range(2)]
        for at, place in enumerate(("orchard", "ledger"))
    }


def _session(place: str, number: int) -> Session:
    headers = {"x-claude-code-session-id": f"session-{number}"}
    requests = [_request(0.0, headers, _title(number))]
    time, messages = 0.05, _beginning(place)
    for turn in range(TURNS):
        messages = [*messages, _said("user", _text(f"Look at part {turn} of {place}, {number}."))]
        for step in range(STEPS + 1):
            requests.append(_request(time, headers, _body(place, number, messages)))
            name = f"{number}-{turn}-{step}"
            messages = [*messages, *(_step(name) if step < STEPS else _end(name))]
            time += TOOL_S
        time += PERSON_S
    return requests


def _request(arrived_s: float, headers: dict[str, str], body: dict[str, Any]) -> RecordedRequest:
    return RecordedRequest(arrived_s, arrived_s + 0.01, headers, body)


def _body(place: str, number: int, messages: list[Block]) -> dict[str, Any]:
    *earlier, last = messages
    *blocks, newest = last["content"]
    return {
        **_common(number),
        "system": [
            _billing_line(f"{number:03x}"),
            _text("You help people with their sources.") | MARK,
            _text(f"{RULES}\nYou work in /home/{place}.\n{RULES}") | MARK,
        ],
        "messages": [*earlier, {**last, "content": [*blocks, newest | MARK]}],
        "tools": list(_tools()),
        "thinking": {"type": "adaptive"},
        "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
    }


def _title(number: int) -> dict[str, Any]:
    return {
        **_common(number),
        "system": [
            _billing_line(f"{number + 100:03x}"),
            _text("Name what the user asks for, in three to seven words. " * 8),
        ],
        "messages": [_said("user", _text(f"Session {number}."))],
        "output_config": {"format": TITLE},
    }


def _common(number: int) -> dict[str, Any]:
    user = f'{{"device_id":"0","session_id":"session-{number}"}}'
    return {
        "model": "scripted",
        "max_tokens": 32_000,
        "stream": True,
        "metadata": {"user_id": user},
    }


def _billing_line(version: str) -> Block:
    return _text(f"x-anthropic-billing-header: cc_version=0.0.0.{version}; cc_entrypoint=cli;")


def _beginning(place: str) -> list[Block]:
    reminder = f"<system-reminder>\nToday is a Monday. {place} has a guide.\n</system-reminder>"
    return [
        _said("user", _text(reminder)),
        {"role": "system", "content": [_text("Agents that may be asked: none. " * 12)]},
    ]


def _step(name: str) -> Iterator[Block]:
    call = {"type": "tool_use", "id": f"toolu_{name}", "name": "tool_1", "input": {"path": name}}
    thought = {"type": "thinking", "thinking": f"{name} comes next.", "signature": "-"}
    yield {"role": "assistant", "content": [thought, call]}
    result = "\n".join(f"{line:5}\t{name} has a line {line}" for line in range(12))
    yield _said("user", {"type": "tool_result", "tool_use_id": call["id"], "content": result})


def _end(name: str) -> Iterator[Block]:
    yield _said("assistant", _text(f"{name} is done, and all parts of it are in order."))


def _tools() -> Iterator[Block]:
    for index in range(NUM_TOOLS):
        yield {
            "name": f"tool_{index}",
            "description": f"Does what part {index} of the work needs. {RULES}",
            "input_schema": {
                "$schema": "https://json-schema.org/draft/2020-12/schema",
                "type": "object",
                "properties": {"path": {"type": "string", "description": "Where it is."}},
                "required": ["path"],
                "additionalProperties": False,
            },
        }


def _said(role: str, *blocks: Block) -> Block:
    return {"role": role, "content": list(blocks)}


def _text(text: str) -> Block:
    return {"type": "text", "text": text}
