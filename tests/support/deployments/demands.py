"""Requests, as far as limits are concerned."""

from __future__ import annotations

from deployments.gateway.access.reservation import Demand
from deployments.protocol.common import PromptSize


def demand(
    max_tokens: int | None, *prompts: PromptSize, n: int = 1, max_model_len: int = 1 << 30
) -> Demand:
    return Demand(prompts or (PromptSize(0, 0),), n, max_tokens, max_model_len)
