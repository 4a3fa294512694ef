"""Checkpoints whose tokens attend to those behind them, which no cache of earlier ones serves."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

ENCODERS = frozenset(
    {
        "albert",
        "bert",
        "camembert",
        "deberta-v2",
        "distilbert",
        "electra",
        "modernbert",
        "mpnet",
        "nomic_bert",
        "roberta",
        "xlm-roberta",
    }
)
"""Model types that are never causal."""


def check_causal(config: Mapping[str, Any]) -> None:
    """Raises ``ValueError`` with what in config.json says that attention goes both ways."""
    for part in (config, config.get("text_config") or {}):
        why = None
        if part.get("model_type") in ENCODERS:
            why = f"model_type {part['model_type']!r}"
        elif part.get("is_causal") is False:
            why = "is_causal: false"
        elif part.get("use_bidirectional_attention") in (True, "all"):
            why = f"use_bidirectional_attention: {part['use_bidirectional_attention']}"
        if why is not None:
            raise ValueError(
                f"config.json says {why}: its tokens attend to those behind them, and only causal "
                "models are served"
            )
