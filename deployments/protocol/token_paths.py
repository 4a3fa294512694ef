"""The paths that tokenize and generate nothing, and what their bodies hold."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from deployments.protocol.anthropic.token_count import COUNT_TOKENS_PATH, CountTokens
from deployments.protocol.json_body import decode_object
from deployments.protocol.parsing import off_the_loop
from deployments.protocol.responses.token_count import INPUT_TOKENS_PATH, InputTokens
from deployments.protocol.tokenization import (
    DETOKENIZE_PATH,
    TOKENIZE_PATH,
    CountedChat,
    DetokenizeRequest,
    TokenizeRequest,
    parse_tokenize,
)

TokenRequest = TokenizeRequest | CountedChat | DetokenizeRequest

TOKEN_PATHS: Mapping[str, Callable[[dict[str, Any]], TokenRequest]] = {
    TOKENIZE_PATH: parse_tokenize,
    DETOKENIZE_PATH: DetokenizeRequest.parse,
    COUNT_TOKENS_PATH: CountTokens.parse,
    INPUT_TOKENS_PATH: InputTokens.parse,
}
"""By path: its parser, which raises ``ApiError`` 400."""


async def parse_token_body(
    path: str, body: bytes, only_model: str | None, *, tenant: str = ""
) -> TokenRequest:
    """``only_model``: meant where the body names none; None: there are several. Raises ``ApiError``
    400."""
    parse = partial(_parse, path, body, only_model)
    return await off_the_loop(len(body), parse, tenant=tenant)


def _parse(path: str, body: bytes, only_model: str | None) -> TokenRequest:
    data = decode_object(body)
    if data.get("model") is None and only_model is not None:
        data["model"] = only_model
    return TOKEN_PATHS[path](data)
