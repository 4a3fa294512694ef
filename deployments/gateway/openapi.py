"""The OpenAPI document of a gateway: requests as the protocol's models check them."""

from __future__ import annotations

from functools import cache
from typing import Any

from pydantic.json_schema import models_json_schema

from deployments.gateway.openapi_fleet import fleet_paths, fleet_schemas
from deployments.gateway.openapi_messages import anthropics_errors, messages_schemas
from deployments.gateway.openapi_pooling import POOLING_MODELS, pooling_paths, pooling_schemas
from deployments.gateway.openapi_responses import response_paths, response_schemas
from deployments.gateway.openapi_tokens import TOKEN_MODELS, token_paths, token_schemas
from deployments.gateway.served_by import SERVED_BY_HEADER
from deployments.protocol import (
    CHAT_COMPLETIONS_PATH,
    COMPLETIONS_PATH,
    MESSAGES_PATH,
    RESPONSES_PATH,
    ChatCompletionRequest,
    CompletionRequest,
)
from deployments.protocol.anthropic.request import MessagesRequest
from deployments.protocol.responses.request import ResponsesRequest
from deployments.wire.resumption import LAST_EVENT_HEADER, RESUMABLE_HEADER

OPENAPI_PATH = "/openapi.json"

Schema = dict[str, Any]

_ERRORS = {
    "400": "The request is wrong; `param` names the field.",
    "401": "An API key is required, or it is wrong.",
    "403": "Without API keys only clients on the same machine are served.",
    "404": "No such model, kept response or URL.",
    "405": "No such method.",
    "408": "The request took too long to arrive.",
    "413": "The body is too large.",
    "429": "A limit of the API key is reached, or the queue is full; see `Retry-After`.",
    "431": "The headers are too large.",
    "500": "The server had an error.",
    "502": "The replica was lost.",
    "503": "No replica can take the request now, or this gateway its body; see `Retry-After`.",
    "504": "The request took too long.",
}


@cache
def openapi_document() -> Schema:
    """The document, as JSON's types. Not to be changed."""
    models = (
        ChatCompletionRequest,
        CompletionRequest,
        ResponsesRequest,
        MessagesRequest,
        *POOLING_MODELS,
        *TOKEN_MODELS,
    )
    _, requests = models_json_schema(
        [(model, "validation") for model in models], ref_template="#/components/schemas/{model}"
    )
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Pomona",
            "version": "1",
            "description": "OpenAI's API for generation. A description completes "
            '"<field> must be ...".',
        },
        "security": [{"key": []}, {"anthropicsKey": []}, {}],
        "paths": {
            CHAT_COMPLETIONS_PATH: {"post": _generation("ChatCompletionRequest", "Chat")},
            COMPLETIONS_PATH: {"post": _generation("CompletionRequest", "Completion")},
            RESPONSES_PATH: {"post": _generation("ResponsesRequest", "Response")},
            **response_paths(_errors()),
            MESSAGES_PATH: {"post": _messages()},
            **pooling_paths(_errors()),
            **token_paths(_errors(), anthropics_errors(_ERRORS)),
            "/version": {"get": _reading("version", "Of this server.", "Version")},
            "/v1/models": {"get": _reading("listModels", "The models served.", "Models")},
            "/v1/models/{name}": {
                "get": _reading("retrieveModel", "One model.", "Model")
                | {
                    "parameters": [
                        {
                            "name": "name",
                            "in": "path",
                            "required": True,
                            "schema": {"type": "string", "minLength": 1},
                        }
                    ]
                }
            },
            **fleet_paths(_errors()),
            "/health": {"get": _reading("health", "The gateway is alive.", "Status")},
            "/ready": {"get": _reading("ready", "A replica answers.", "Status")},
        },
        "components": {
            "securitySchemes": {
                "key": {"type": "http", "scheme": "bearer"},
                "anthropicsKey": {"type": "apiKey", "in": "header", "name": "x-api-key"},
            },
            "schemas": requests["$defs"]
            | token_schemas(requests["$defs"])
            | messages_schemas()
            | pooling_schemas()
            | response_schemas()
            | fleet_schemas()
            | _responses(),
        },
    }


_RESUMABLE: list[Schema] = [
    {
        "name": RESUMABLE_HEADER,
        "in": "header",
        "description": "Give the stream's events ids, so that it can go on after its connection "
        "was cut.",
        "schema": {"enum": ["1", "true"]},
    },
    {
        "name": LAST_EVENT_HEADER,
        "in": "header",
        "description": "The id of the last event that has come, to have the rest: with the same "
        f"body, path, key and {RESUMABLE_HEADER}.",
        "schema": {"type": "string"},
    },
]


_SERVED_BY: Schema = {
    "name": SERVED_BY_HEADER,
    "in": "header",
    "description": "Have comments in a stream tell which engine its events come from: "
    "`: served-by ENGINE NODE TOKENS`, before the first one and whenever it goes on at another; "
    "`TOKENS` is how many it had by then.",
    "schema": {"enum": ["1", "true"]},
}


def _generation(request: str, response: str) -> Schema:
    return {
        "operationId": f"create{response}",
        "parameters": [*_RESUMABLE, _SERVED_BY],
        "requestBody": {"required": True, "content": _json(request)},
        "responses": {
            "200": {
                "description": "The answer; with `stream`, server-sent events.",
                "content": {
                    **_json(response),
                    "text/event-stream": {},
                },
            },
            **_errors(),
        },
    }


def _messages() -> Schema:
    described = _generation("MessagesRequest", "MessageAnswer")
    described["responses"] |= anthropics_errors(_ERRORS)
    return described


def _reading(name: str, description: str, response: str) -> Schema:
    return {
        "operationId": name,
        "responses": {
            "200": {"description": description, "content": _json(response)},
            **_errors(),
        },
    }


def _errors() -> Schema:
    return {
        status: {"description": description, "content": _json("Error")}
        for status, description in _ERRORS.items()
    }


def _json(name: str) -> Schema:
    return {"application/json": {"schema": {"$ref": f"#/components/schemas/{name}"}}}


def _responses() -> Schema:
    text: Schema = {"type": "string"}
    integer: Schema = {"type": "integer"}
    maybe_text, maybe_object = {"type": ["string", "null"]}, {"type": ["object", "null"]}
    usage = _object(prompt_tokens=integer, completion_tokens=integer, total_tokens=integer)
    model = _object(id=text, object={"const": "model"}, created=integer, owned_by=text)
    choice: dict[str, Schema] = {
        "index": integer,
        "finish_reason": {"enum": ["stop", "length"]},
        "logprobs": maybe_object,
    }
    message = _object(role={"const": "assistant"}, content=text, refusal={"type": "null"})
    whole: dict[str, Schema] = {"id": text, "created": integer, "model": text, "usage": usage}
    return {
        "Chat": _object(
            object={"const": "chat.completion"},
            choices=_array(_object(message=message, **choice)),
            **whole,
        ),
        "Completion": _object(
            object={"const": "text_completion"},
            choices=_array(_object(text=text, **choice)),
            **whole,
        ),
        "Response": _object(
            id=text,
            object={"const": "response"},
            created_at=integer,
            model=text,
            status={"enum": ["completed", "incomplete"]},
            output=_array({"type": "object", "required": ["type", "id"]}),
            usage=_object(input_tokens=integer, output_tokens=integer, total_tokens=integer),
        ),
        "Model": model,
        "Models": _object(object={"const": "list"}, data=_array(model)),
        "Status": _object(status=text),
        "Version": _object(version=text),
        "Error": _object(error=_object(message=text, type=text, param=maybe_text, code=maybe_text)),
    }


def _object(**properties: Schema) -> Schema:
    return {"type": "object", "properties": properties, "required": list(properties)}


def _array(items: Schema) -> Schema:
    return {"type": "array", "items": items}
