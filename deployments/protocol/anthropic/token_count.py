"""The body of ``POST /v1/messages/count_tokens``, and its answer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from deployments.backend import SpelledToken
from deployments.protocol.anthropic.conversion import own_names, to_chat
from deployments.protocol.anthropic.request import MessagesRequest
from deployments.protocol.tokenization import CountedChat

COUNT_TOKENS_PATH = "/v1/messages/count_tokens"

PROMPT_FIELDS = ("messages", "model", "output_config", "system", "thinking", "tool_choice", "tools")
"""What the count depends on."""


class CountTokens(CountedChat):
    """Whatever a message is asked with is taken, and counted as it would run."""

    @classmethod
    def parse(cls, data: dict[str, Any]) -> CountTokens:
        """Raises ``ApiError`` 400."""
        asked = MessagesRequest.parse({"max_tokens": 1} | data)
        return cls(to_chat(asked), own_names(asked))

    def answer(
        self, token_ids: Sequence[int], spelled: Sequence[SpelledToken], max_model_len: int
    ) -> dict[str, Any]:
        return {"input_tokens": len(token_ids)}
