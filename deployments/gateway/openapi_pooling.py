"""Vectors and rankings in the OpenAPI document."""

from __future__ import annotations

from typing import Any

from deployments.protocol.pooling import (
    EMBEDDINGS_PATH,
    RERANK_PATHS,
    EmbeddingRequest,
    RerankRequest,
)

POOLING_MODELS = (EmbeddingRequest, RerankRequest)

Schema = dict[str, Any]


def pooling_paths(errors: Schema) -> Schema:
    """``errors``: the responses that tell of them."""
    ranked = ("RerankRequest", "Ranking", errors)
    return {
        EMBEDDINGS_PATH: _path("createEmbedding", "EmbeddingRequest", "Embeddings", errors),
        **{path: _path(f"rank{number}", *ranked) for number, path in enumerate(RERANK_PATHS)},
    }


def pooling_schemas() -> Schema:
    integer, number, text = ({"type": kind} for kind in ("integer", "number", "string"))
    usage = _object(prompt_tokens=integer, total_tokens=integer)
    vector = {"anyOf": [{"type": "array", "items": number}, text]}
    embedding = _object(object={"const": "embedding"}, index=integer, embedding=vector)
    result = _object(index=integer, relevance_score=number)
    result["properties"]["document"] = _object(text=text)
    return {
        "Embeddings": _object(
            object={"const": "list"}, data=_array(embedding), model=text, usage=usage
        ),
        "Ranking": _object(id=text, model=text, usage=usage, results=_array(result)),
    }


def _path(operation: str, request: str, response: str, errors: Schema) -> Schema:
    return {
        "post": {
            "operationId": operation,
            "requestBody": {"required": True, "content": _json(request)},
            "responses": {"200": {"description": response, "content": _json(response)}, **errors},
        }
    }


def _json(name: str) -> Schema:
    return {"application/json": {"schema": {"$ref": f"#/components/schemas/{name}"}}}


def _object(**properties: Schema) -> Schema:
    return {"type": "object", "properties": properties, "required": list(properties)}


def _array(items: Schema) -> Schema:
    return {"type": "array", "items": items}
