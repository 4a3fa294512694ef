"""Every field that OpenAI's own types have is honoured, without effect or refused, by its name."""

from __future__ import annotations

from typing import Any, get_type_hints

import pytest
from openai.types import chat as of_chat
from openai.types import completion_create_params
from openai.types.chat import chat_completion_assistant_message_param
from openai.types.chat import completion_create_params as chat_create_params
from openai.types.shared_params import FunctionDefinition

from deployments.protocol import ChatCompletionRequest, CompletionRequest
from deployments.protocol.common import StreamOptions
from deployments.protocol.messages import Message, TextPart
from deployments.protocol.strict import StrictModel
from deployments.protocol.tools import CalledFunction, Function, Tool, ToolCall

MESSAGES = [
    of_chat.ChatCompletionAssistantMessageParam,
    of_chat.ChatCompletionDeveloperMessageParam,
    of_chat.ChatCompletionFunctionMessageParam,
    of_chat.ChatCompletionSystemMessageParam,
    of_chat.ChatCompletionToolMessageParam,
    of_chat.ChatCompletionUserMessageParam,
]
TYPES: list[tuple[type[StrictModel], Any]] = [
    (ChatCompletionRequest, chat_create_params.CompletionCreateParamsStreaming),
    (CompletionRequest, completion_create_params.CompletionCreateParamsStreaming),
    (StreamOptions, of_chat.ChatCompletionStreamOptionsParam),
    (TextPart, of_chat.ChatCompletionContentPartTextParam),
    (TextPart, of_chat.ChatCompletionContentPartRefusalParam),
    (Tool, of_chat.ChatCompletionFunctionToolParam),
    (Tool, of_chat.ChatCompletionCustomToolParam),
    (ToolCall, of_chat.ChatCompletionMessageFunctionToolCallParam),
    (ToolCall, of_chat.ChatCompletionMessageCustomToolCallParam),
    (Function, FunctionDefinition),
    (Function, chat_create_params.Function),
    (CalledFunction, chat_completion_assistant_message_param.FunctionCall),
    *((Message, kind) for kind in MESSAGES),
]


@pytest.mark.parametrize(("model", "of_openai"), TYPES, ids=lambda one: one.__name__)
def test_each_has_one_fate(model: type[StrictModel], of_openai: Any) -> None:
    fields = get_type_hints(of_openai).keys()
    assert fields, "nothing was compared"
    assert fields - model.wire_fields().keys() - model.unsupported.keys() == set()
