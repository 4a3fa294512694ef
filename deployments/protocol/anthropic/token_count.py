"""The body of ``POST /v1/messages/count_tokens``, and its answer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from deployments.backend import SpelledToken
from deployments.protocol.anthropic.conversion import to_chat
from deployments.protocol.anthropic.request import MessagesRequest
from deployments.protocol.tokenization import ChatTokens

COUNT_TOKENS_PATH = "/v1/messages/count_tokens"


class CountTokens(ChatTokens):
    """Whatever a message is asked with is taken, and counted as it would run."""

    spells: ClassVar = False

    @classmethod
    def parse(cls, data: dict[str, Any]) -> CountTokens:
        """Raises ``ApiError`` 400."""
        return cls(to_chat(MessagesRequest.parse({"max_tokens": 1} | data)))

    def answer(
        self, token_ids: Sequence[int], spelled: Sequence[SpelledToken], max_model_len: int
    ) -> dict[str, Any]:
        return {"input_tokens": len(token_ids)}
