"""The bodies of ``POST /tokenize`` and ``/detokenize``, and their answers: vLLM's, and those of
llama.cpp's server, which calls a text ``content``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from pydantic import Field

from deployments.backend import GenerationRequest, SamplingParams, SpelledToken
from deployments.http.errors import ApiError, shown
from deployments.protocol.chat import ChatCompletionRequest
from deployments.protocol.chat_formats.dialect import Dialect
from deployments.protocol.common import TokenId
from deployments.protocol.conversion import to_generation_requests
from deployments.protocol.crowded_body import MAX_WEIGHT
from deployments.protocol.field_rules import FieldRules, Refused
from deployments.protocol.strict import StrictModel

TOKENIZE_PATH = "/tokenize"
DETOKENIZE_PATH = "/detokenize"

_MODEL = "a non-empty string, a model's name; it may be left out where one model is served"
_TEXTS = ("prompt", "content", "messages")

PROMPT_FIELDS = (
    "add_generation_prompt",
    "chat_template_kwargs",
    "continue_final_message",
    "enable_thinking",
    "function_call",
    "functions",
    "messages",
    "model",
    "reasoning",
    "reasoning_effort",
    "thinking",
    "thinking_budget",
    "thinking_token_budget",
    "tool_choice",
    "tools",
)
"""Of a chat, what its tokens depend on."""


class _Text(StrictModel):
    model: str = Field(min_length=1, description=_MODEL)

    @property
    def text(self) -> str:
        raise NotImplementedError

    def to_generation_request(
        self, request_id: str, default_sampling: SamplingParams, dialect: Dialect
    ) -> GenerationRequest:
        return GenerationRequest(request_id, self.text, default_sampling)


class TokenizePrompt(_Text):
    """vLLM's, of a text."""

    prompt: str = Field(description="a string")
    add_special_tokens: bool = Field(True, description="a boolean")
    return_token_strs: bool = Field(False, description="a boolean")

    @property
    def text(self) -> str:
        return self.prompt

    @property
    def spells(self) -> bool:
        return self.return_token_strs

    def answer(
        self, token_ids: Sequence[int], spelled: Sequence[SpelledToken], max_model_len: int
    ) -> dict[str, Any]:
        return _answer(token_ids, spelled if self.spells else None, max_model_len)


class TokenizeContent(_Text):
    """llama.cpp's."""

    unsupported: ClassVar[FieldRules] = {
        "parse_special": Refused("special tokens are read in a text", (True,))
    }

    content: str = Field(description="a string")
    add_special: bool = Field(False, description="a boolean")
    with_pieces: bool = Field(False, description="a boolean")

    @property
    def text(self) -> str:
        return self.content

    @property
    def add_special_tokens(self) -> bool:
        return self.add_special

    @property
    def spells(self) -> bool:
        return self.with_pieces

    def answer(
        self, token_ids: Sequence[int], spelled: Sequence[SpelledToken], max_model_len: int
    ) -> dict[str, Any]:
        if not self.with_pieces:
            return {"tokens": [*token_ids]}
        pairs = zip(token_ids, spelled, strict=True)
        return {"tokens": [{"id": one, "piece": _piece(token.utf8)} for one, token in pairs]}


@dataclass(frozen=True)
class ChatTokens:
    """Those of a chat, as it would run."""

    chat: ChatCompletionRequest
    add_special_tokens: ClassVar = False

    @property
    def model(self) -> str:
        return self.chat.model

    def to_generation_request(
        self, request_id: str, default_sampling: SamplingParams, dialect: Dialect
    ) -> GenerationRequest:
        """Raises ``InvalidRequestError``."""
        (request,) = to_generation_requests(self.chat, request_id, default_sampling, dialect)
        return request


@dataclass(frozen=True)
class CountedChat(ChatTokens):
    """Of another API, which tells how many they are."""

    spells: ClassVar = False
    own_names: Mapping[str, str]
    """Of the chat's fields."""

    def answer(
        self, token_ids: Sequence[int], spelled: Sequence[SpelledToken], max_model_len: int
    ) -> dict[str, Any]:
        raise NotImplementedError


@dataclass(frozen=True)
class TokenizeChat(ChatTokens):
    """vLLM's, of messages. Whatever else a chat may have is taken, too: it changes the prompt as it
    does there, or not at all."""

    return_token_strs: bool

    @classmethod
    def parse(cls, data: dict[str, Any]) -> TokenizeChat:
        """Raises ``ApiError`` 400."""
        chat = dict(data)
        if chat.pop("add_special_tokens", None) not in (None, False):
            raise ApiError(
                400,
                "add_special_tokens must be false with messages: the chat template writes its own.",
                param="add_special_tokens",
            )
        returns = chat.pop("return_token_strs", None)
        if returns is not None and not isinstance(returns, bool):
            raise ApiError(
                400,
                f"return_token_strs must be a boolean, not {shown(returns)}.",
                param="return_token_strs",
            )
        return cls(ChatCompletionRequest.parse(chat), bool(returns))

    @property
    def spells(self) -> bool:
        return self.return_token_strs

    def answer(
        self, token_ids: Sequence[int], spelled: Sequence[SpelledToken], max_model_len: int
    ) -> dict[str, Any]:
        return _answer(token_ids, spelled if self.spells else None, max_model_len)


TokenizeRequest = TokenizePrompt | TokenizeContent | TokenizeChat


class DetokenizeRequest(StrictModel):
    model: str = Field(min_length=1, description=_MODEL)
    tokens: list[TokenId] = Field(max_length=MAX_WEIGHT, description="an array of token ids")

    def answer(self, text: str) -> dict[str, Any]:
        """Under vLLM's name and llama.cpp's."""
        return {"prompt": text, "content": text}


def parse_tokenize(data: dict[str, Any]) -> TokenizeRequest:
    """Raises ``ApiError`` 400."""
    named = [name for name in _TEXTS if data.get(name) is not None]
    if len(named) > 1:
        raise ApiError(400, f"{named[1]} can't be combined with {named[0]}.", param=named[1])
    match named:
        case ["messages"]:
            return TokenizeChat.parse(data)
        case ["content"]:
            return TokenizeContent.parse(data)
    return TokenizePrompt.parse(data)


def _answer(
    token_ids: Sequence[int], spelled: Sequence[SpelledToken] | None, max_model_len: int
) -> dict[str, Any]:
    return {
        "count": len(token_ids),
        "max_model_len": max_model_len,
        "tokens": [*token_ids],
        "token_strs": None if spelled is None else [one.name for one in spelled],
    }


def _piece(utf8: bytes) -> str | list[int]:
    """Its bytes, if it is part of a character."""
    try:
        return utf8.decode()
    except UnicodeDecodeError:
        return [*utf8]
