"""Logprobs in the two shapes that OpenAI has for them."""

from __future__ import annotations

import codecs
from collections.abc import Iterable
from typing import Any

from deployments.backend import TokenLogprob

LOGPROB_FLOOR = -9999.0
"""JSON has no infinity; OpenAI's own stand-in for an impossible token."""


def chat_logprobs(tokens: Iterable[TokenLogprob], *, as_ids: bool = False) -> dict[str, Any]:
    """``{"content": [...], "refusal": null}``: text, bytes and alternatives of each token.
    ``as_ids``: ids stand for texts."""
    content = [
        _chat_token(token, as_ids)
        | {"top_logprobs": [_chat_token(other, as_ids) for other in token.top]}
        for token in tokens
    ]
    return {"content": content, "refusal": None}


def prompt_logprobs(tokens: Iterable[TokenLogprob], most: int) -> list[dict[str, Any]]:
    """vLLM's: of each token and its ``most`` likely alternatives, by their ids."""
    return [
        {
            str(one.token_id): {
                "logprob": _finite(one.logprob),
                "rank": rank,
                "decoded_token": one.text,
            }
            for rank, one in ((token.rank, token), *enumerate(token.top[:most], 1))
        }
        for token in tokens
    ]


class CompletionLogprobs:
    """Parallel arrays, one element a token, for one choice; remembers where its text has got to."""

    def __init__(self, *, as_ids: bool = False, start: int = 0) -> None:
        """``as_ids``: ids stand for texts; ``start``: where the first token's text begins, which
        may be before the choice's own."""
        self._name = _id_name if as_ids else _token_name
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._offset = start

    def add(self, tokens: Iterable[TokenLogprob]) -> dict[str, Any]:
        """``text_offset`` counts characters of the choice's text, from this choice's first ``add``
        on; a token that starts inside a character has that character's offset."""
        tokens = list(tokens)
        return {
            "tokens": [self._name(token) for token in tokens],
            "token_logprobs": [_finite(token.logprob) for token in tokens],
            "top_logprobs": [
                {self._name(one): _finite(one.logprob) for one in (*token.top, token)}
                for token in tokens
            ],
            "text_offset": [self._advance(token) for token in tokens],
        }

    def skip(self, tokens: Iterable[TokenLogprob]) -> None:
        """``add`` for whoever doesn't need to be told."""
        for token in tokens:
            self._advance(token)

    def _advance(self, token: TokenLogprob) -> int:
        offset = max(self._offset, 0)
        self._offset += len(self._decoder.decode(token.utf8))
        return offset


def _chat_token(token: TokenLogprob, as_ids: bool) -> dict[str, Any]:
    return {
        "token": _id_name(token) if as_ids else token.text,
        "logprob": _finite(token.logprob),
        "bytes": list(token.utf8),
    }


def _token_name(token: TokenLogprob) -> str:
    """The token's text; for part of a character its bytes, so that no two tokens share a name."""
    try:
        return token.utf8.decode("utf-8") or token.text
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in token.utf8)


def _id_name(token: TokenLogprob) -> str:
    return f"token_id:{token.token_id}"


def _finite(logprob: float) -> float:
    return max(logprob, LOGPROB_FLOOR)
