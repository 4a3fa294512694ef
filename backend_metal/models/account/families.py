"""What mlx-lm's and transformers' classes make of the keys of a config.json, by ``model_type``.

``families.json`` is written by ``tests/support/backend_metal/config_keys.py``, and a test holds it
to the installed releases.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

PATH = Path(__file__).with_name("families.json")


@cache
def families() -> Mapping[str, Mapping[str, Any]]:
    """By ``model_type``: ``reads``, the keys that mlx-lm's class computes with; ``fixed``, those
    that it leaves out, with the value that it computes as if there were; ``defaults``."""
    read: dict[str, dict[str, Any]] = json.loads(PATH.read_text(encoding="utf-8"))
    return read


def defaults_of(text: Mapping[str, Any]) -> Mapping[str, Any]:
    """What keys that a config leaves out mean, of rotary embeddings and the context's length."""
    defaults: Mapping[str, Any] = families().get(text.get("model_type", ""), {}).get("defaults", {})
    return defaults
