"""Every field that the vendors' own packages can send has a fate here, by its name."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal, get_args, get_origin

import pytest
from anthropic.types import message_count_tokens_params, message_create_params
from anthropic.types.beta import message_count_tokens_params as beta_count_params
from anthropic.types.beta import message_create_params as beta_create_params
from openai.types import completion_create_params
from openai.types import embedding_create_params as embedding_params
from openai.types.chat import completion_create_params as chat_params
from openai.types.responses import input_token_count_params, response_create_params
from typing_extensions import get_type_hints, is_typeddict

from deployments.protocol import ChatCompletionRequest, CompletionRequest
from deployments.protocol.anthropic.request import MessagesRequest
from deployments.protocol.anthropic.tools import OWN_KIND, MessagesTool
from deployments.protocol.pooling import EmbeddingRequest
from deployments.protocol.responses.items import HostedItem
from deployments.protocol.responses.request import ResponsesRequest
from deployments.protocol.responses.tools import HostedTool
from deployments.protocol.strict import StrictModel, models_in

IN_HEADERS = {"betas", "anthropic_beta"}
REQUESTS: list[tuple[type[StrictModel], Any]] = [
    (ChatCompletionRequest, chat_params.CompletionCreateParamsStreaming),
    (CompletionRequest, completion_create_params.CompletionCreateParamsStreaming),
    (EmbeddingRequest, embedding_params.EmbeddingCreateParams),
    (MessagesRequest, message_create_params.MessageCreateParamsStreaming),
    (MessagesRequest, beta_create_params.MessageCreateParamsStreaming),
    (MessagesRequest, message_count_tokens_params.MessageCountTokensParams),
    (MessagesRequest, beta_count_params.MessageCountTokensParams),
    (ResponsesRequest, response_create_params.ResponseCreateParamsStreaming),
    (ResponsesRequest, input_token_count_params.InputTokenCountParams),
]
LEAST_OBJECTS = {ChatCompletionRequest: 15, MessagesRequest: 20, ResponsesRequest: 15}
"""That a request is made of: the walk goes below it."""


def typed_dicts(annotation: Any) -> Iterator[Any]:
    if is_typeddict(annotation):
        yield annotation
    for argument in get_args(annotation):
        yield from typed_dicts(argument)


def literals(annotation: Any) -> set[Any]:
    if get_origin(annotation) is Literal:
        return {*get_args(annotation)}
    return {one for argument in get_args(annotation) for one in literals(argument)}


def kinds(annotation: Any) -> set[Any]:
    """Empty: of any kind."""
    return literals(get_type_hints(annotation).get("type"))


def unknown_fields(model: type[StrictModel], theirs: Any, seen: set[Any]) -> Iterator[str]:
    """Objects of a kind that no model here names are for their vendor, with whatever they have."""
    is_hosted = model is MessagesTool and not kinds(theirs) <= {None, OWN_KIND}
    if (model, theirs) in seen or model in (HostedItem, HostedTool) or is_hosted:
        return
    seen.add((model, theirs))
    fields = model.wire_fields()
    for name, annotation in get_type_hints(theirs).items():
        if name in fields:
            models = [*models_in(fields[name].annotation)]
            for one in typed_dicts(annotation):
                for inner in models:
                    ours = kinds(inner)
                    if not ours or not kinds(one) or ours & kinds(one):
                        yield from unknown_fields(inner, one, seen)
        elif name not in model.unsupported and name not in IN_HEADERS:
            yield f"{model.__name__}.{name} of {theirs.__name__}"


@pytest.mark.parametrize(("model", "theirs"), REQUESTS, ids=lambda one: one.__module__)
def test_each_has_a_fate(model: type[StrictModel], theirs: Any) -> None:
    seen: set[Any] = set()
    assert [*unknown_fields(model, theirs, seen)] == []
    assert len(seen) >= LEAST_OBJECTS.get(model, 1)
