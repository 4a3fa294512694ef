"""The body of ``POST /v1/responses/input_tokens``, and its answer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from deployments.backend import SpelledToken
from deployments.http.errors import ApiError
from deployments.protocol.chat import ChatCompletionRequest
from deployments.protocol.responses.context import UnresolvedError
from deployments.protocol.responses.to_chat import parse_responses
from deployments.protocol.tokenization import CountedChat

INPUT_TOKENS_PATH = "/v1/responses/input_tokens"

PROMPT_FIELDS = ("input", "instructions", "model", "reasoning", "tool_choice", "tools")
"""What the count depends on."""


class InputTokens(CountedChat):
    """Whatever a response is asked with is taken, and counted as it would run."""

    @classmethod
    def parse(cls, data: dict[str, Any]) -> InputTokens:
        """Raises ``ApiError`` 400."""
        try:
            parsed = parse_responses(data)
        except UnresolvedError as error:
            raise ApiError(
                400,
                f"{error.param} is not supported: nothing that is kept is counted; send the items.",
                param=error.param,
            ) from None
        assert isinstance(parsed.form, ChatCompletionRequest)
        return cls(parsed.form, parsed.own_names)

    def answer(
        self, token_ids: Sequence[int], spelled: Sequence[SpelledToken], max_model_len: int
    ) -> dict[str, Any]:
        return {"object": "response.input_tokens", "input_tokens": len(token_ids)}
