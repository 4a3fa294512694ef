"""How mlx-lm's and transformers' classes use the keys of a config.json, by ``model_type``.

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
    """The keys of one model type."""

    reads: frozenset[str] = frozenset()
    """Those that mlx-lm's class computes with."""
    fixed: Mapping[str, Any] = field(default_factory=dict)
    """Those that it leaves out, with the value that it computes as if there were."""
    defaults: Mapping[str, Any] = field(default_factory=dict)
    """Defaults of the keys for rotary embeddings and the context length."""
    absent: Mapping[str, Any] = field(default_factory=dict)
    """Values that other keys have where a config leaves them out, and mlx-lm's class has others."""
    nested: Mapping[str, Any] = field(default_factory=dict)
    """Values of keys that a ``text_config`` of this type leaves out: it is saved as what differs
    from its class."""
    saved: Mapping[str, str] = field(default_factory=dict)
    """mlx-lm's name of a key to transformers' name of it."""


def family_of_config(config: Mapping[str, Any]) -> Keys:
    """The keys of the config's ``model_type``; empty for an unknown type."""
    return _families().get(config.get("model_type", ""), Keys())


@cache
def _families() -> Mapping[str, Keys]:
    read: dict[str, dict[str, Any]] = json.loads(PATH.read_text(encoding="utf-8"))
    return {name: Keys(**own | {"reads": frozenset(own["reads"])}) for name, own in read.items()}
