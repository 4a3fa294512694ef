"""What both generation endpoints accept: OpenAI's sampling fields and vLLM's extensions."""

from __future__ import annotations

import re
from typing import Annotated, Any, ClassVar, NamedTuple, Self

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from deployments.http.errors import shown
from deployments.protocol import unsupported
from deployments.protocol.strict import HINT, RefusedError, StrictModel
from deployments.protocol.structured_output import StructuredOutputFields

MAX_CHOICES = 16
MAX_STOP_STRINGS = 16
MAX_STOP_CHARS = 1000
MAX_LISTED_TOKENS = 1024
MAX_ALLOWED_TOKENS = 16_384
MAX_BAD_WORDS = 128
MAX_BAD_WORD_CHARS = 256
MAX_LOGPROBS = 20
CHARS_PER_TOKEN = 4
BYTES_PER_TOKEN = 4
UNBOUNDED_NEW_TOKENS_ESTIMATE = 256
MOST_NEW_TOKENS_ESTIMATE = 1024
"""Agents ask for as much as there is room for, and few answers are longer than this."""


def likely_new_tokens(most: int | None) -> int:
    """Of one answer, roughly, for routing; ``most``: what its client allows."""
    return UNBOUNDED_NEW_TOKENS_ESTIMATE if most is None else min(most, MOST_NEW_TOKENS_ESTIMATE)


_TOKEN_ID_KEY = re.compile(r"0|[1-9][0-9]{0,9}")
TokenIdKey = Annotated[str, Field(pattern=f"^({_TOKEN_ID_KEY.pattern})$")]
_INT32_MAX = 2**31 - 1


def _as_list(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


def _known_token_keys(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    if len(value) > MAX_LISTED_TOKENS:
        raise RefusedError(f"must have at most {MAX_LISTED_TOKENS} token ids, not {len(value)}")
    for key in value:
        if not _TOKEN_ID_KEY.fullmatch(key) or int(key) > _INT32_MAX:
            raise RefusedError(f"must have token ids as keys, not {shown(key)}")
    return value


def _truncate_to(value: int) -> int:
    if value == 0:
        raise RefusedError("must leave at least one token, not 0")
    return value


TokenId = Annotated[int, Field(ge=0, le=_INT32_MAX)]
TruncateTo = Annotated[
    int,
    AfterValidator(_truncate_to),
    Field(ge=-1, le=_INT32_MAX, json_schema_extra={"not": {"const": 0}}),
]
Bias = Annotated[float, Field(ge=-100, le=100)]
BadWord = Annotated[str, Field(pattern=r"\S", max_length=MAX_BAD_WORD_CHARS)]
StopString = Annotated[str, Field(min_length=1, max_length=MAX_STOP_CHARS)]


def num_bytes(text: str) -> int:
    """In UTF-8; a lone surrogate, which nobody can encode, counts as a character there."""
    return len(text.encode("utf-8", "surrogatepass"))


class PromptSize(NamedTuple):
    """What a prompt's tokens are reckoned with before anybody has tokenized it."""

    likely: int
    most: int
    """A byte may be a token, and no token is less."""

    @classmethod
    def of_bytes(cls, num_bytes: int, *, added: int) -> Self:
        """``added``: tokens that stand in no text of the request."""
        return cls(num_bytes // BYTES_PER_TOKEN + 1, num_bytes + added)

    def within(self, longest: int) -> PromptSize:
        return PromptSize(min(self.likely, longest), min(self.most, longest))


class StreamOptions(StrictModel):
    unsupported: ClassVar = unsupported.STREAM_OPTIONS_FIELDS

    include_usage: bool = Field(False, description="a boolean")
    continuous_usage_stats: bool = Field(False, description="a boolean")


class GenerationFields(StructuredOutputFields):
    """Fields with the same meaning on both endpoints. How tokens are drawn has no defaults here:
    the model's hold, which its replicas know."""

    model: str = Field(min_length=1, description="a non-empty string, a model's name")
    stream: bool = Field(False, description="a boolean")
    stream_options: StreamOptions | None = Field(None, description="an object")
    n: int = Field(1, ge=1, le=MAX_CHOICES, description=f"an integer from 1 to {MAX_CHOICES}")
    stop: Annotated[
        list[StopString],
        BeforeValidator(
            _as_list,
            json_schema_input_type=StopString
            | Annotated[list[StopString], Field(max_length=MAX_STOP_STRINGS)],
        ),
    ] = Field(
        [],
        max_length=MAX_STOP_STRINGS,
        description=f"a non-empty string of at most {MAX_STOP_CHARS} characters, or an array of "
        f"at most {MAX_STOP_STRINGS} of them",
    )
    seed: int | None = Field(
        None, ge=-(2**63), lt=2**63, description="an integer of at most 64 bits, signed"
    )
    max_tokens: int | None = Field(
        None, ge=0, le=_INT32_MAX, description="an integer of at least 0"
    )
    min_tokens: int = Field(0, ge=0, le=_INT32_MAX, description="an integer of at least 0")
    temperature: float | None = Field(None, ge=0, le=2, description="a number from 0 to 2")
    top_p: float | None = Field(None, gt=0, le=1, description="a number more than 0 and at most 1")
    presence_penalty: float = Field(0.0, ge=-2, le=2, description="a number from -2 to 2")
    frequency_penalty: float = Field(0.0, ge=-2, le=2, description="a number from -2 to 2")
    logit_bias: Annotated[
        dict[str, Bias],
        BeforeValidator(
            _known_token_keys,
            json_schema_input_type=Annotated[
                dict[TokenIdKey, Bias], Field(max_length=MAX_LISTED_TOKENS)
            ],
        ),
    ] = Field(
        {},
        description=f"an object of at most {MAX_LISTED_TOKENS} token ids (as strings) to numbers "
        "from -100 to 100",
    )

    prompt_cache_key: Annotated[str | None, HINT] = Field(None, description="a string")

    top_k: int | None = Field(
        None, ge=-1, le=_INT32_MAX, description="an integer of at least -1; 0 and -1 turn it off"
    )
    min_p: float | None = Field(None, ge=0, le=1, description="a number from 0 to 1")
    repetition_penalty: float | None = Field(
        None, gt=0, le=10, description="a number more than 0 and at most 10"
    )
    bad_words: list[BadWord] = Field(
        [],
        max_length=MAX_BAD_WORDS,
        description=f"an array of at most {MAX_BAD_WORDS} strings of at most {MAX_BAD_WORD_CHARS} "
        "characters, none of them blank",
    )
    allowed_token_ids: list[TokenId] | None = Field(
        None,
        min_length=1,
        max_length=MAX_ALLOWED_TOKENS,
        description=f"a non-empty array of at most {MAX_ALLOWED_TOKENS} token ids",
    )
    include_stop_str_in_output: bool = Field(False, description="a boolean")
    skip_special_tokens: bool = Field(True, description="a boolean")
    prompt_logprobs: int | None = Field(
        None, ge=0, le=MAX_LOGPROBS, description=f"an integer from 0 to {MAX_LOGPROBS}"
    )
    return_token_ids: bool = Field(False, description="a boolean")
    return_tokens_as_token_ids: bool = Field(False, description="a boolean")
    truncate_prompt_tokens: TruncateTo | None = Field(
        None, description="a number of tokens to keep, or -1 for as many as there is room for"
    )
    ignore_eos: bool = Field(False, description="a boolean")
    stop_token_ids: list[TokenId] = Field(
        [],
        max_length=MAX_LISTED_TOKENS,
        description=f"an array of at most {MAX_LISTED_TOKENS} token ids",
    )
    priority: int = Field(
        0, ge=-_INT32_MAX, le=_INT32_MAX, description="an integer of 32 bits; lower runs first"
    )
    cache_salt: str = Field("", description="a string")

    @model_validator(mode="after")
    def _stream_options_need_a_stream(self) -> Self:
        if self.stream_options is not None and not self.stream:
            raise RefusedError("is only allowed when stream is true", where=".stream_options")
        if self.prompt_logprobs is not None and self.stream:
            raise RefusedError("are only told without stream", where=".prompt_logprobs")
        if self.return_tokens_as_token_ids and self.num_logprobs is None:
            raise RefusedError(
                "is only allowed with logprobs, whose tokens it names",
                where=".return_tokens_as_token_ids",
            )
        return self

    @model_validator(mode="after")
    def _least_is_no_more_than_most(self) -> Self:
        most = self.max_new_tokens
        if most is not None and self.min_tokens > most:
            raise RefusedError(
                f"is {self.min_tokens}, but the answer has {most} tokens at most",
                where=".min_tokens",
            )
        return self

    @model_validator(mode="after")
    def _one_says_which_tokens_may_come(self) -> Self:
        """Together they may leave none."""
        for name in ("min_tokens", "bad_words", "allowed_token_ids"):
            if getattr(self, name) and (other := self._what_tokens_must_match()):
                raise RefusedError(
                    f"can't be combined with {other}, which says what tokens may come",
                    where=f".{name}",
                )
        return self

    def _what_tokens_must_match(self) -> str | None:
        """The field that has a grammar, if any."""
        return None if self.grammar is None else self.grammar.param

    @property
    def max_new_tokens(self) -> int | None:
        """None: until the context is full."""
        return self.max_tokens

    @property
    def num_logprobs(self) -> int | None:
        """Alternatives of each token; None: no logprobs."""
        raise NotImplementedError

    @property
    def num_prompt_logprobs(self) -> int | None:
        """Alternatives of each token of the prompt; None: no logprobs."""
        return self.prompt_logprobs

    @property
    def has_logprobs(self) -> bool:
        return self.num_logprobs is not None or self.num_prompt_logprobs is not None

    @property
    def tells_prompt(self) -> bool:
        """Whether the answer has the prompt's tokens or text."""
        return self.return_token_ids

    def truncated(self, size: PromptSize) -> PromptSize:
        """What is left of a prompt of this size, for limits."""
        kept = self.truncate_prompt_tokens
        return size if kept is None or kept < 0 else size.within(kept)

    @property
    def continuous_usage(self) -> bool:
        """Whether each event tells how many tokens its choice has so far."""
        return self.stream_options is not None and self.stream_options.continuous_usage_stats

    @property
    def include_usage(self) -> bool:
        return self.stream_options is not None and self.stream_options.include_usage
