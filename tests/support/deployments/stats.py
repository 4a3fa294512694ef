"""A backend's stats for tests."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from deployments.backend import BackendStats, Histogram


def idle_stats() -> BackendStats:
    values: dict[str, Any] = {}
    for field in fields(BackendStats):
        values[field.name] = {
            "Histogram": Histogram((0.1, 1.0), (0, 0, 0), 0.0),
            "Mapping[str, int]": {},
            "Mapping[int, float]": {},
            "Mapping[str, Histogram]": {"wait": Histogram((0.1, 1.0), (0, 0, 0), 0.0)},
            "int": 0,
        }[str(field.type)]
    return BackendStats(**{**values, "kv_cache_blocks_total": 8, "kv_cache_blocks_free": 8})
