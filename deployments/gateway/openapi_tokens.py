"""What the OpenAPI document says of the paths that tokenize."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

from deployments.protocol.tokenization import (
    DETOKENIZE_PATH,
    TOKENIZE_PATH,
    DetokenizeRequest,
    TokenizeContent,
    TokenizePrompt,
)

Schema = dict[str, Any]

TOKEN_MODELS = (TokenizePrompt, TokenizeContent, DetokenizeRequest)
_TEXT: Schema = {"type": "string"}
_INTEGERS: Schema = {"type": "array", "items": {"type": "integer"}}


def token_paths(errors: Schema) -> Schema:
    return {
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
    """``requests``: the schemas of ``TOKEN_MODELS`` and of chats, by name."""
    chat = deepcopy(requests["ChatCompletionRequest"])
    boolean: Schema = {"type": ["boolean", "null"], "description": "a boolean"}
    chat["properties"] |= {
        "add_special_tokens": {"enum": [False, None], "description": "the template writes its own"},
        "return_token_strs": boolean,
    }
    schemas = {one.__name__: requests[one.__name__] for one in TOKEN_MODELS}
    schemas["TokenizeChat"] = chat
    for schema in schemas.values():
        schema["required"] = [name for name in schema["required"] if name != "model"]
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
        "Text": {
            "type": "object",
            "properties": {"prompt": _TEXT, "content": _TEXT},
            "required": ["prompt", "content"],
        },
    }


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
