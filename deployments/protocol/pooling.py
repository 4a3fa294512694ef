"""The bodies of ``POST /v1/embeddings`` (OpenAI's) and of ``/v1/rerank`` (Jina's and vLLM's)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, Field, PlainValidator

from deployments.backend import ChatPrompt, InvalidRequestError, PoolingInfo, PoolingInput
from deployments.http.errors import shown
from deployments.protocol import unsupported
from deployments.protocol.common import CHARS_PER_TOKEN, PromptSize, num_bytes
from deployments.protocol.completions import (
    SPECIAL_TOKENS,
    TextAsSent,
    TextOrTokens,
    TokensAsSent,
    allowed_prompts,
    parse_prompts,
)
from deployments.protocol.json_body import decode_object
from deployments.protocol.parsing import off_the_loop
from deployments.protocol.strict import RefusedError, StrictModel

EMBEDDINGS_PATH = "/v1/embeddings"
RERANK_PATHS = ("/v1/rerank", "/rerank")
MAX_INPUTS = 2048
"""Of one request; OpenAI's own bound."""
TEMPLATE_TOKENS = 256
"""That stand around a query and a document, at most."""
_INT32_MAX = 2**31 - 1
_TRUNCATED = "an integer of at least 1, or -1 for as many as fit"


class PoolingForm(StrictModel):
    """What both have in common, and what a gateway has to know of either."""

    model: str = Field(min_length=1, description="a non-empty string, a model's name")
    priority: int = Field(
        0, ge=-_INT32_MAX, le=_INT32_MAX, description="an integer of 32 bits; lower runs first"
    )

    n: ClassVar[int] = 1
    max_new_tokens: ClassVar[int] = 0

    def prompt_sizes(self) -> tuple[PromptSize, ...]:
        """Tokens of each input, for limits."""
        raise NotImplementedError

    def size_estimate(self) -> int:
        """Tokens of all inputs, roughly, for routing."""
        return sum(size.likely for size in self.prompt_sizes())


def _not_zero(value: int) -> int:
    if value == 0:
        raise RefusedError(f"must be {_TRUNCATED}, not 0")
    return value


class EmbeddingRequest(PoolingForm):
    unsupported: ClassVar = unsupported.EMBEDDING_FIELDS

    input: Annotated[
        tuple[TextOrTokens, ...],
        PlainValidator(
            partial(parse_prompts, most=MAX_INPUTS),
            json_schema_input_type=TextAsSent
            | TokensAsSent
            | Annotated[
                list[TextAsSent | TokensAsSent], Field(min_length=1, max_length=MAX_INPUTS)
            ],
        ),
    ] = Field(description=allowed_prompts(MAX_INPUTS))
    encoding_format: Literal["float", "base64"] = Field("float", description='"float" or "base64"')
    dimensions: int | None = Field(
        None, ge=1, le=_INT32_MAX, description="an integer of at least 1"
    )
    truncate_prompt_tokens: Annotated[int, AfterValidator(_not_zero)] | None = Field(
        None, ge=-1, le=_INT32_MAX, description=_TRUNCATED
    )

    def prompt_sizes(self) -> tuple[PromptSize, ...]:
        most = self.truncate_prompt_tokens
        sizes = (
            PromptSize.of_bytes(num_bytes(one), added=SPECIAL_TOKENS)
            if isinstance(one, str)
            else PromptSize(len(one), len(one))
            for one in self.input
        )
        return tuple(size if most in (None, -1) else size.within(most) for size in sizes)

    def inputs(self, info: PoolingInfo) -> tuple[PoolingInput, ...]:
        """Raises ``InvalidRequestError``."""
        if self.dimensions is not None and self.dimensions > info.size:
            raise InvalidRequestError(
                f"dimensions must be at most {info.size}, the size of this model's vectors, not "
                f"{self.dimensions}",
                param="dimensions",
            )
        return tuple(
            PoolingInput(
                info.default_prompt + one if isinstance(one, str) else one,
                "input" if len(self.input) == 1 else f"input[{index}]",
                truncate_prompt_tokens=self.truncate_prompt_tokens,
            )
            for index, one in enumerate(self.input)
        )


class _Document(StrictModel):
    text: str = Field(min_length=1, description="a non-empty string")


def _parse_documents(value: Any) -> tuple[str, ...]:
    if not isinstance(value, list) or not value:
        raise RefusedError(f"must be a non-empty array of strings, not {shown(value)}")
    if len(value) >= MAX_INPUTS:
        raise RefusedError(f"must be at most {MAX_INPUTS - 1} documents; {len(value)} were sent")
    return tuple(_text_of(one, f"[{index}]") for index, one in enumerate(value))


def _text_of(value: Any, where: str) -> str:
    if isinstance(value, dict) and value.keys() == {"text"}:
        value = value["text"]
    if isinstance(value, str) and value:
        return value
    raise RefusedError(
        f"must be a non-empty string, or an object with a text and nothing else, not "
        f"{shown(value)}",
        where=where,
    )


class RerankRequest(PoolingForm):
    unsupported: ClassVar = unsupported.RERANK_FIELDS

    query: str = Field(min_length=1, description="a non-empty string")
    documents: Annotated[
        tuple[str, ...],
        PlainValidator(
            _parse_documents,
            json_schema_input_type=Annotated[
                list[TextAsSent | _Document], Field(min_length=1, max_length=MAX_INPUTS - 1)
            ],
        ),
    ] = Field(
        description=f"an array of at most {MAX_INPUTS - 1} non-empty strings, or objects with a "
        "text"
    )
    top_n: int | None = Field(
        None, ge=0, le=_INT32_MAX, description="an integer of at least 0; 0 gives all"
    )
    return_documents: bool = Field(True, description="a boolean")

    def prompt_sizes(self) -> tuple[PromptSize, ...]:
        """The query stands before each document, or is an input by itself."""
        query = num_bytes(self.query)
        behind = [num_bytes(one) + query for one in self.documents]
        return tuple(PromptSize.of_bytes(size, added=TEMPLATE_TOKENS) for size in (query, *behind))

    def size_estimate(self) -> int:
        characters = len(self.query) + sum(map(len, self.documents))
        return characters // CHARS_PER_TOKEN + 1

    def inputs(self, info: PoolingInfo) -> tuple[PoolingInput, ...]:
        """Of a model that scores one for each document; else the query and then these."""
        params = [f"documents[{index}]" for index in range(len(self.documents))]
        if info.ranks_by == "score":
            return tuple(
                PoolingInput(_pair(self.query, document), param)
                for document, param in zip(self.documents, params, strict=True)
            )
        before = info.prompts.get("document", "")
        query = PoolingInput(info.prompts.get("query", "") + self.query, "query")
        documents = (
            PoolingInput(before + document, param)
            for document, param in zip(self.documents, params, strict=True)
        )
        return (query, *documents)


def _pair(query: str, document: str) -> ChatPrompt:
    return ChatPrompt(
        ({"role": "query", "content": query}, {"role": "document", "content": document})
    )


POOLING_MODELS: Mapping[str, type[EmbeddingRequest] | type[RerankRequest]] = {
    EMBEDDINGS_PATH: EmbeddingRequest,
    **dict.fromkeys(RERANK_PATHS, RerankRequest),
}
"""By the path that is asked."""
POOLING_PATHS = tuple(POOLING_MODELS)


async def parse_pooling_body(
    path: str, body: bytes, *, tenant: str = ""
) -> EmbeddingRequest | RerankRequest:
    """``path`` is one of ``POOLING_PATHS``. Raises ``ApiError`` 400."""
    parse: Callable[[Mapping[str, Any]], EmbeddingRequest | RerankRequest]
    parse = POOLING_MODELS[path].parse
    return await off_the_loop(len(body), lambda: parse(decode_object(body)), tenant=tenant)
