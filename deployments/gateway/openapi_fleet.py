"""What the OpenAPI document says of the fleet."""

from __future__ import annotations

from typing import Any

from pydantic.json_schema import models_json_schema

from deployments.gateway.watch.routes import FLEET_PATH, MOST_EVENTS
from deployments.gateway.watch.view import FleetView

Schema = dict[str, Any]

_REF = "#/components/schemas/"


def fleet_paths(errors: Schema) -> Schema:
    """``errors``: what each status means."""
    return {
        FLEET_PATH: {
            "get": {
                "operationId": "fleet",
                "description": "Every host and engine, as this gateway sees them; of sequences and "
                "cache hits a key sees its own, and an operator's key all. With `Accept: "
                "text/event-stream` again every second, a whole view an event; such a stream ends "
                f"after {MOST_EVENTS} of them. Not there with `gateway.page: false`.",
                "responses": {
                    "200": {
                        "description": "The fleet as it is now.",
                        "content": {
                            "application/json": {"schema": {"$ref": f"{_REF}FleetView"}},
                            "text/event-stream": {},
                        },
                    },
                    **errors,
                },
            }
        }
    }


def fleet_schemas() -> Schema:
    _, told = models_json_schema([(FleetView, "serialization")], ref_template=_REF + "{model}")
    schemas: Schema = told["$defs"]
    return schemas
