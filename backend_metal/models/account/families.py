"""What mlx-lm's and transformers' classes make of the keys of a config.json, by ``model_type``.

``families.json`` is written by ``tests/support/backend_metal/config_keys.py``, and a test holds it
to the installed releases.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

PATH = Path(__file__).with_name("families.json")


@dataclass(frozen=True)
class Keys:
    """Of one type of model."""

    reads: frozenset[str] = frozenset()
    """Those that mlx-lm's class computes with."""
    fixed: Mapping[str, Any] = field(default_factory=dict)
    """Those that it leaves out, with the value that it computes as if there were."""
    defaults: Mapping[str, Any] = field(default_factory=dict)
    """What those of rotary embeddings and of the context's length mean where they are left out."""
    saved: Mapping[str, str] = field(default_factory=dict)
    """By what mlx-lm's class reads: the name that transformers saves it by."""


def family_of_config(config: Mapping[str, Any]) -> Keys:
    """By its ``model_type``; nothing of one that is unknown."""
    return _families().get(config.get("model_type", ""), Keys())


@cache
def _families() -> Mapping[str, Keys]:
    read: dict[str, dict[str, Any]] = json.loads(PATH.read_text(encoding="utf-8"))
    return {
        name: Keys(frozenset(own["reads"]), own["fixed"], own["defaults"], own["saved"])
        for name, own in read.items()
    }
