"""How long a sequence a model was made for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from backend_metal.models.load.account.families import family_of_config
from backend_metal.models.load.account.rope import ropes_of

LENGTH_KEYS = (
    *("max_position_embeddings", "n_positions", "n_ctx", "max_seq_len", "max_sequence_length"),
    *("seq_length", "model_max_length", "max_context_length", "context_length", "block_size"),
)


def stated_length(text: Mapping[str, Any]) -> int | None:
    """Tokens by the config's own account, or by what its family's configs mean without one."""
    known = {
        **family_of_config(text).defaults,
        **{key: text[key] for key in LENGTH_KEYS if text.get(key)},
    }
    return next((int(known[key]) for key in LENGTH_KEYS if key in known), None)


def check_wanted(wanted: int | None, context: int, model: str) -> None:
    """Raises ``ValueError`` for a context that ``model`` does not have."""
    if wanted is not None and wanted > context:
        raise ValueError(
            f"engine.max_model_len must be at most {context}, the context of {model}, not {wanted}"
        )


def context_length(
    text: Mapping[str, Any], stated: int, wanted: int | None = None
) -> tuple[int, bool]:
    """Tokens that the rotary embeddings are made for, and whether they take the long factors of
    ``longrope``.

    ``stated`` already counts the stretch of every published scaling but YaRN, where it may still
    be the length before the stretch. ``longrope`` rotates a sequence otherwise as soon as it is
    longer than the context before the stretch, so it is either that, or, if ``wanted`` is more,
    all of it, rotated alike at every length.
    """
    length, long = stated, False
    for rope in ropes_of({"max_position_embeddings": stated, **text}).values():
        if rope is None:
            continue
        original = rope.original or stated
        if rope.kind == "yarn":
            length = max(length, int(original * rope.factor))
        elif rope.kind == "longrope" and original < stated:
            long = wanted is not None and wanted > original
            length = stated if long else original
    return length, long
