"""Configs as they are published, but for their sizes, which are scaled down.

A size is that of a matrix, or the number of layers, heads, experts or tokens of the vocabulary;
what is listed for each layer, and ``rope_scaling``'s factors, are cut to it. What says how weights
are quantized is left out.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PATH = Path(__file__).with_suffix(".json")


@dataclass(frozen=True)
class Published:
    context: int
    """In tokens."""
    config: dict[str, Any]
    differs: str | None = None
    """How mlx-lm's class computes otherwise than such a config asks for."""


PUBLISHED: Mapping[str, Published] = {
    name: Published(**own) for name, own in json.loads(PATH.read_text(encoding="utf-8")).items()
}
