"""Objects of several kinds, told apart by their ``type``, each checked by a model of its own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from deployments.http.errors import ApiError, shown
from deployments.protocol.strict import RefusedError, StrictModel

T = TypeVar("T", bound=StrictModel)


def parse_as(model: type[T], value: Any, where: str) -> T:
    """Raises ``RefusedError`` whose ``where`` is below this one."""
    if not isinstance(value, dict):
        raise RefusedError(f"must be an object, not {shown(value)}", where=where)
    try:
        return model.parse(value)
    except ApiError as error:
        lead, param, said = error.message.partition(error.param or " ")
        said = said.strip().removesuffix(".")
        raise RefusedError(said, where=f"{where}.{param.strip()}", lead=lead) from None


def parse_one_of(
    models: Mapping[str, type[T]], value: Any, where: str, default: str | None = None
) -> T:
    """``default``: the kind of an object without a ``type``. Raises ``RefusedError``."""
    if not isinstance(value, dict):
        raise RefusedError(f"must be an object, not {shown(value)}", where=where)
    kind = value.get("type", default)
    if not isinstance(kind, str) or kind not in models:
        allowed = ", ".join(f'"{name}"' for name in models)
        raise RefusedError(f"must be one of {allowed}, not {shown(kind)}", where=f"{where}.type")
    return parse_as(models[kind], value, where)
