"""Whether an answer is what was asked for, however often it went on elsewhere."""

from __future__ import annotations

import json
from typing import Any

import jsonschema

from tests.support.cluster.requests import SCHEMA, TOOL, Request
from tests.support.cluster.said import Said

MARKERS = ("<think>", "</think>", "<tool_call>", "</tool_call>")
"""What the model writes around thoughts and calls; no part of either, nor of a text."""


def problem_of(request: Request, said: Said) -> str | None:
    """Why a whole answer is not valid; None: it is."""
    if request.thinks != bool(said.thought):
        return f"it {'has no thought' if request.thinks else 'thinks unasked'}: {said}"
    arguments = [text for _, text in said.calls]
    if any(mark in text for mark in MARKERS for text in (said.text, said.thought, *arguments)):
        return f"a marker is left: {said}"
    if request.form == "call":
        if [name for name, _ in said.calls] != [TOOL] or said.text:
            return f"it is not one call of {TOOL}: {said}"
        return _problem_of_json(arguments[0])
    if said.calls or not said.text:
        return f"it is no text: {said}"
    return _problem_of_json(said.text) if request.form == "json" else None


def _problem_of_json(text: str) -> str | None:
    try:
        value: Any = json.loads(text)
        jsonschema.validate(value, SCHEMA)
    except (ValueError, jsonschema.ValidationError) as error:
        return f"{error}: {text}"
    return None
