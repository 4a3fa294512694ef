"""What the OpenAPI document says of the paths that tokenize."""

from __future__ import annotations

from collections.abc import Collection
from copy import deepcopy
from typing import Any

from deployments.protocol import ChatCompletionRequest
from deployments.protocol.anthropic import token_count
from deployments.protocol.anthropic.request import MessagesRequest
from deployments.protocol.anthropic.token_count import COUNT_TOKENS_PATH
from deployments.protocol.field_rules import Refused, without_effect
from deployments.protocol.responses import token_count as input_tokens
from deployments.protocol.responses.request import ResponsesRequest
from deployments.protocol.responses.token_count import INPUT_TOKENS_PATH
from deployments.protocol.strict import StrictModel
from deployments.protocol.tokenization import (
    DETOKENIZE_PATH,
    PROMPT_FIELDS,
    TOKENIZE_PATH,
    DetokenizeRequest,
    TokenizeContent,
    TokenizePrompt,
)

Schema = dict[str, Any]

TOKEN_MODELS = (TokenizePrompt, TokenizeContent, DetokenizeRequest)
_TEXT: Schema = {"type": "string"}
_INTEGERS: Schema = {"type": "array", "items": {"type": "integer"}}


def token_paths(errors: Schema, anthropics_errors: Schema) -> Schema:
    return {
        COUNT_TOKENS_PATH: {
            "post": _operation(
                "countTokens",
                _ref("CountTokensRequest"),
                "TokenCount",
                anthropics_errors,
            )
        },
        INPUT_TOKENS_PATH: {
            "post": _operation(
                "countInputTokens", _ref("InputTokensRequest"), "InputTokens", errors
            )
        },
        TOKENIZE_PATH: {
            "post": _operation(
                "tokenize",
                {"anyOf": [_ref(f"Tokenize{one}") for one in ("Prompt", "Content", "Chat")]},
                "Tokens",
                errors,
            )
        },
        DETOKENIZE_PATH: {
            "post": _operation("detokenize", _ref("DetokenizeRequest"), "Text", errors)
        },
    }


def token_schemas(requests: Schema) -> Schema:
    """``requests``: the schemas of ``TOKEN_MODELS``, chats and messages, by name."""
    chat = _counted(ChatCompletionRequest, PROMPT_FIELDS, requests)
    count = _counted(MessagesRequest, token_count.PROMPT_FIELDS, requests)
    count["required"].remove("max_tokens")
    response = _counted(ResponsesRequest, input_tokens.PROMPT_FIELDS, requests)
    kept = Refused("nothing that is kept is counted: send the items")
    response["properties"]["previous_response_id"] = kept.json_schema()
    boolean: Schema = {"type": ["boolean", "null"], "description": "a boolean"}
    chat["properties"] |= {
        "add_special_tokens": Refused("the template writes its own", (False,)).json_schema(),
        "return_token_strs": boolean,
    }
    schemas = {one.__name__: requests[one.__name__] for one in TOKEN_MODELS}
    schemas |= {"TokenizeChat": chat, "CountTokensRequest": count, "InputTokensRequest": response}
    for schema in schemas.values():
        schema["required"] = [name for name in schema["required"] if name != "model"]
        model = schema["properties"]["model"]
        schema["properties"]["model"] = {
            "anyOf": [{"type": "string", "minLength": 1}, {"type": "null"}],
            "description": model["description"],
        }
    pieces: Schema = {
        "type": "array",
        "items": {
            "type": "object",
            "properties": {"id": {"type": "integer"}, "piece": {"anyOf": [_TEXT, _INTEGERS]}},
        },
    }
    return schemas | {
        "Tokens": {
            "type": "object",
            "properties": {
                "tokens": {"anyOf": [_INTEGERS, pieces]},
                "count": {"type": "integer"},
                "max_model_len": {"type": "integer"},
                "token_strs": {"type": ["array", "null"], "items": _TEXT},
            },
            "required": ["tokens"],
        },
        "InputTokens": {
            "type": "object",
            "properties": {
                "object": {"const": "response.input_tokens"},
                "input_tokens": {"type": "integer"},
            },
            "required": ["object", "input_tokens"],
        },
        "Text": {
            "type": "object",
            "properties": {"prompt": _TEXT, "content": _TEXT},
            "required": ["prompt", "content"],
        },
    }


def _counted(model: type[StrictModel], prompt_fields: Collection[str], requests: Schema) -> Schema:
    """The schema of ``model`` where its prompt alone counts."""
    schema: Schema = deepcopy(requests[model.__name__])
    for name in model.wire_fields().keys() - model.only_checked.keys() - set(prompt_fields):
        field = schema["properties"][name]
        field["description"] = without_effect(field["description"], "nothing is generated")
    return schema


def _operation(name: str, request: Schema, response: str, errors: Schema) -> Schema:
    return {
        "operationId": name,
        "requestBody": {"required": True, "content": {"application/json": {"schema": request}}},
        "responses": {
            "200": {
                "description": "Nothing is generated.",
                "content": {"application/json": {"schema": _ref(response)}},
            },
            **errors,
        },
    }


def _ref(name: str) -> Schema:
    return {"$ref": f"#/components/schemas/{name}"}
