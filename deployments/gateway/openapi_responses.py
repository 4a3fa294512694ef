"""What the OpenAPI document says of responses that are kept."""

from __future__ import annotations

from typing import Any

from deployments.gateway.responses.routes import (
    CANCEL_PATH,
    INPUT_ITEMS_PATH,
    ITEMS,
    MOST_ITEMS,
    ONE_PATH,
)

Schema = dict[str, Any]

_TEXT: Schema = {"type": "string"}
_ITEM: Schema = {"type": "object", "required": ["type", "id"]}
_ID: Schema = {
    "name": "response_id",
    "in": "path",
    "required": True,
    "schema": {"type": "string", "pattern": "^[A-Za-z0-9_-]{1,64}$"},
}
_PAGE: list[Schema] = [
    {
        "name": "limit",
        "in": "query",
        "description": f"Most items; {ITEMS} if left out.",
        "schema": {"type": "integer", "minimum": 1, "maximum": MOST_ITEMS},
    },
    {
        "name": "order",
        "in": "query",
        "description": "The newest first if left out.",
        "schema": {"enum": ["asc", "desc"]},
    },
    {
        "name": "after",
        "in": "query",
        "description": "The id of an item, for those behind it.",
        "schema": _TEXT,
    },
]


def response_paths(errors: Schema) -> Schema:
    """``errors``: what each status means."""
    return {
        ONE_PATH: {
            "get": _operation("retrieveResponse", "As it was made.", "Response", errors),
            "delete": _operation("deleteResponse", "It is forgotten.", "DeletedResponse", errors),
        },
        INPUT_ITEMS_PATH: {
            "get": _operation("listInputItems", "What it answered.", "InputItems", errors, *_PAGE)
        },
        CANCEL_PATH: {
            "post": {
                "operationId": "cancelResponse",
                "parameters": [_ID],
                "responses": errors,
            }
        },
    }


def response_schemas() -> Schema:
    return {
        "DeletedResponse": _object(id=_TEXT, object={"const": "response"}, deleted={"const": True}),
        "InputItems": _object(
            object={"const": "list"},
            data={"type": "array", "items": _ITEM},
            first_id=_TEXT,
            last_id=_TEXT,
            has_more={"type": "boolean"},
        ),
    }


def _operation(
    name: str, description: str, response: str, errors: Schema, *parameters: Schema
) -> Schema:
    content = {"application/json": {"schema": {"$ref": f"#/components/schemas/{response}"}}}
    return {
        "operationId": name,
        "parameters": [_ID, *parameters],
        "responses": {"200": {"description": description, "content": content}, **errors},
    }


def _object(**properties: Schema) -> Schema:
    return {"type": "object", "properties": properties, "required": list(properties)}
