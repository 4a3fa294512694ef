"""What becomes of every field of every request, written from what checks them, and of every event
of streams.

``python -m ops.api_reference`` prints it; with ``--write`` it replaces
``deployments/protocol/fields.md``. It is made of the gateway's OpenAPI document, and of
``api_events``.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from deployments.gateway.openapi import openapi_document
from ops.api_events import STREAMS, Fates, NeverSent, Sent

DOCUMENT = Path(__file__).resolve().parent.parent / "deployments" / "protocol" / "fields.md"
INTRODUCTION = """# What becomes of each field

Written by `python -m ops.api_reference --write` from what checks the requests. There are three
kinds of fields:

- **honoured**: the answer is what the field asks for; the table says which values are allowed;
- **accepted**: an answer without it is as right, for the reason given; a value of another type is
  named in the header `X-Pomona-Dropped`;
- **refused**: an answer that ignored it would be wrong. It is a 400 that names the field, unless
  its value asks for nothing; which values do is in the table.

A field that is in no table is refused as unknown, with the nearest name. `null` means that a field
is absent. The whole document, with all types, is at `/openapi.json` of each gateway.

What answers that are streamed are made of stands [at the end](#streams).
"""
STREAMS_INTRODUCTION = """## Streams

What the APIs' events are, and which are sent. Comments, which clients skip, show beside them that a
stream is alive (`: keep-alive`), how far a prompt is (`: prefill 12288/40960`) and, for requests
with `X-Pomona-Served-By: 1`, which engine goes on behind which token (`: served-by ENGINE NODE 9`).
All streams but those of `/v1/messages` end with `data: [DONE]`, unless they break off: then their
last event tells the error. Streams of `/v1/completions` have chunks like a chat's, with `text` in
place of `delta`.
"""
_REFERENCE = "#/components/schemas/"
_ACCEPTED = "; without effect: "
_REFUSED = "is not supported: "

Schema = Mapping[str, Any]


def reference() -> str:
    """The document, in Markdown."""
    document = openapi_document()
    parts = [INTRODUCTION]
    told: set[str] = set()
    for path, operations in document["paths"].items():
        if body := operations.get("post", {}).get("requestBody"):
            parts.append(f"## `POST {path}`\n")
            schema = body["content"]["application/json"]["schema"]
            parts.extend(_sections(schema, document["components"]["schemas"], told))
    parts.append(STREAMS_INTRODUCTION)
    for path, kinds in STREAMS.items():
        parts.append(f"### Streams of `POST {path}`\n")
        parts.extend("\n".join(_fates(kind, fates)) for kind, fates in kinds.items())
    return "\n".join(parts)


def _fates(kind: str, fates: Fates) -> Iterator[str]:
    """A table of what is sent, and of what never is."""
    yield f"| {kind} | what becomes of it | when, or why not |"
    yield "| --- | --- | --- |"
    told = [(name, "sent", fate.when) for name, fate in fates.items() if isinstance(fate, Sent)]
    told += [
        (name, "never sent", fate.why)
        for name, fate in fates.items()
        if isinstance(fate, NeverSent)
    ]
    for name, becomes, text in told:
        yield f"| `{name}` | {becomes} | {_cell(text)} |"
    yield ""


def _sections(schema: Schema, schemas: Schema, told: set[str]) -> Iterator[str]:
    """A table for each object in it, and in these, that has had none."""
    for name in _names(schema):
        if name in told:
            yield f"As [{name}](#{name.lower()}).\n"
            continue
        waiting = [name]
        while waiting:
            one = waiting.pop(0)
            if one in told:
                continue
            told.add(one)
            yield "\n".join(_table(one, schemas[one]))
            waiting += _names(schemas[one])


def _names(schema: Any) -> list[str]:
    """Of what it refers to, in order."""
    if isinstance(schema, list):
        return [name for one in schema for name in _names(one)]
    if not isinstance(schema, dict):
        return []
    found = [schema["$ref"].removeprefix(_REFERENCE)] if "$ref" in schema else []
    return found + [name for key, one in schema.items() if key != "$ref" for name in _names(one)]


def _table(name: str, schema: Schema) -> Iterator[str]:
    yield f"### {name}\n"
    yield "| field | what becomes of it | allowed | why |"
    yield "| --- | --- | --- | --- |"
    rows = [(_kind(one), field, one) for field, one in schema.get("properties", {}).items()]
    for kind in ("honoured", "accepted", "refused"):
        for _, field, one in sorted(
            (row for row in rows if row[0] == kind), key=lambda row: row[1]
        ):
            yield f"| `{field}` | {kind} | {_cell(_allowed(one))} | {_cell(_why(one))} |"
    yield ""


def _kind(field: Schema) -> str:
    description = field.get("description", "")
    if description.startswith(_REFUSED):
        return "refused"
    return "accepted" if _ACCEPTED in description else "honoured"


def _allowed(field: Schema) -> str:
    if _kind(field) == "refused":
        return ", ".join(f"`{_json(value)}`" for value in field["enum"] if value is not None)
    return str(field.get("description", "")).partition(_ACCEPTED)[0]


def _why(field: Schema) -> str:
    description = str(field.get("description", ""))
    if _kind(field) == "refused":
        return description.removeprefix(_REFUSED)
    return description.partition(_ACCEPTED)[2]


def _json(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value) or '""'


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def main() -> None:
    if "--write" in sys.argv[1:]:
        DOCUMENT.write_text(reference())
    else:
        print(reference())


if __name__ == "__main__":
    main()
