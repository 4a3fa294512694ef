"""What sentence-transformers puts beside a checkpoint that makes vectors or scores."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

OLD_MODES = {"last": "lasttoken", "mean": "mean_tokens", "cls": "cls_token"}
NEW_MODES = {"last": "lasttoken", "mean": "mean", "cls": "cls"}


def write_pooling_files(
    directory: Path,
    pooling: str,
    *,
    normalizes: bool = True,
    prompts: Mapping[str, str] | None = None,
    default_prompt_name: str | None = None,
    is_new: bool = False,
    extra_modules: tuple[str, ...] = (),
    **settings: Any,
) -> None:
    """``is_new``: as since version 5.4. ``settings`` are the pooling's own."""
    kinds = ["Transformer", "Pooling", *(["Normalize"] if normalizes else []), *extra_modules]
    _write_modules(directory, kinds)
    of_pooling: dict[str, Any] = {"word_embedding_dimension": 64}
    if is_new:
        of_pooling["pooling_mode"] = NEW_MODES.get(pooling, pooling)
    else:
        for mode in (*OLD_MODES, pooling):
            name = OLD_MODES.get(mode, mode)
            of_pooling[f"pooling_mode_{name}"] = mode == pooling
    _write(directory / "1_Pooling" / "config.json", of_pooling | settings)
    named = {"prompts": prompts or {}, "default_prompt_name": default_prompt_name}
    _write(directory / "config_sentence_transformers.json", named)


def write_score_files(directory: Path, true_token_id: int, false_token_id: int | None) -> None:
    _write_modules(directory, ["Transformer", "LogitScore"])
    tokens = {"true_token_id": true_token_id, "false_token_id": false_token_id}
    _write(directory / "1_LogitScore" / "config.json", tokens)


def _write_modules(directory: Path, kinds: list[str]) -> None:
    modules = [
        {
            "idx": index,
            "name": str(index),
            "path": f"{index}_{kind}" if index else "",
            "type": f"sentence_transformers.models.{kind}",
        }
        for index, kind in enumerate(kinds)
    ]
    _write(directory / "modules.json", modules)


def _write(path: Path, content: object) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(content))
