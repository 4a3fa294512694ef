"""Grafana's schema, as its own published models have it: which keys there are, of which types."""

from __future__ import annotations

import enum
import json
import types
import typing
from typing import Any

from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.cog.plugins import register_default_plugins
from grafana_foundation_sdk.models.dashboard import Dashboard


def mistakes(document: dict[str, Any]) -> list[str]:
    """Where ``document`` is no dashboard."""
    register_default_plugins()
    dashboard = Dashboard.from_json(document)
    read = json.loads(JSONEncoder().encode(dashboard))
    return [*_lost(document, read, "dashboard"), *_wrong(dashboard)]


def _lost(given: Any, read: Any, path: str) -> list[str]:
    """Keys that the models don't know are dropped when they are read."""
    if isinstance(given, dict) and isinstance(read, dict):
        return [
            found
            for key, value in given.items()
            for found in (
                _lost(value, read[key], f"{path}.{key}")
                if key in read
                else [f"{path}.{key} is unknown"]
            )
        ]
    if isinstance(given, list) and isinstance(read, list) and len(given) == len(read):
        return [
            found
            for index, (one, other) in enumerate(zip(given, read, strict=True))
            for found in _lost(one, other, f"{path}[{index}]")
        ]
    return [] if given == read else [f"{path} is {given!r}, read as {read!r}"]


def _wrong(model: Any, path: str = "dashboard") -> list[str]:
    """Values of the wrong type, in ``model`` and below."""
    hints = typing.get_type_hints(type(model))
    return [
        found
        for name, hint in hints.items()
        if hasattr(model, name)
        for found in _mismatch(getattr(model, name), hint, f"{path}.{name}")
    ]


def _mismatch(value: Any, hint: Any, path: str) -> list[str]:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if hint is typing.Any or hint is object:
        return _wrong(value, path) if _is_model(value) else []
    if origin in (typing.Union, types.UnionType):
        tries = [_mismatch(value, one, path) for one in arguments]
        return min(tries, key=len)
    if origin is typing.Literal:
        return [] if value in arguments else [f"{path} is {value!r}, not one of {arguments}"]
    if origin is list:
        if not isinstance(value, list):
            return [f"{path} is no list"]
        return [
            found
            for index, one in enumerate(value)
            for found in _mismatch(one, arguments[0], f"{path}[{index}]")
        ]
    if origin is dict:
        if not isinstance(value, dict):
            return [f"{path} is no object"]
        return [
            found
            for key, one in value.items()
            for found in _mismatch(one, arguments[1], f"{path}.{key}")
        ]
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        allowed = [one.value for one in hint]
        return [] if value in allowed else [f"{path} is {value!r}, not one of {allowed}"]
    if isinstance(hint, type):
        fits = isinstance(value, hint) or (hint is float and isinstance(value, int))
        if not fits or (isinstance(value, bool) and hint in (int, float)):
            return [f"{path} is {value!r}, not {hint.__name__}"]
        return _wrong(value, path) if _is_model(value) else []
    return []


def _is_model(value: Any) -> bool:
    return type(value).__module__.startswith("grafana_foundation_sdk.models")
