"""The tokens that mlx-lm generates greedily, which are the oracle of engines."""

from __future__ import annotations

from collections.abc import Sequence

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.generate import generate_step
from mlx_lm.models.cache import make_prompt_cache


def greedy_tokens(
    model: nn.Module, prompt: list[int], count: int, candidate: Sequence[int] = ()
) -> list[int]:
    """``count`` tokens after ``prompt``.

    One pass over a ``candidate`` confirms it where each of its tokens has the highest logit;
    otherwise mlx-lm generates token by token.
    """
    if len(candidate) == count and _is_greedy(model, prompt, candidate):
        return [*candidate]
    return [int(token) for token, _ in generate_step(mx.array(prompt), model, max_tokens=count)]


def _is_greedy(model: nn.Module, prompt: list[int], candidate: Sequence[int]) -> bool:
    tokens = mx.array([[*prompt, *candidate[:-1]]])
    logits = model(tokens, cache=make_prompt_cache(model))[0, len(prompt) - 1 :]
    return bool(mx.array_equal(mx.argmax(logits, axis=-1), mx.array([*candidate])).item())
