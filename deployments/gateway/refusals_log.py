"""Refusals: a log line and a count for each request that is answered with an error of its own."""

from __future__ import annotations

import logging
import re

from starlette.types import Scope

from deployments.gateway.access.api_keys import SCOPE_KEY as API_KEY
from deployments.gateway.access.api_keys import ApiKey
from deployments.gateway.openapi import openapi_document
from deployments.http.errors import ApiError, cut
from deployments.http.request_id import SCOPE_KEY
from deployments.observe.logs import log_request
from deployments.observe.metrics import GatewayMetrics

logger = logging.getLogger(__name__)

OTHER_PATH = "other"
# What paths and fields are made of. Whatever else a client has sent in their place, such as a key,
# is for no log.
_WORD = re.compile(r"[A-Za-z]{1,24}(?:[_-][A-Za-z]{1,24}){0,2}\d?|\d{1,4}")
_BETWEEN_WORDS = re.compile(r"[^/.\[\]]+")


class RefusalRecorder:
    """Clients choose paths and fields freely: metrics have only those that are known."""

    def __init__(self, metrics: GatewayMetrics) -> None:
        self._metrics = metrics
        self._paths = frozenset(openapi_document()["paths"])

    def tell(self, scope: Scope, error: ApiError) -> None:
        path = scope["path"]
        self._metrics.failed("", error.type)
        record_refusal(self._metrics, scope, path if path in self._paths else OTHER_PATH, error)


def record_refusal(metrics: GatewayMetrics, scope: Scope, counted: str, error: ApiError) -> None:
    """``counted`` is the path as metrics have it."""
    reason = error.code or ("invalid_field" if error.param else error.type)
    metrics.refused(counted, reason)
    key: ApiKey | None = scope.get(API_KEY)
    log_request(
        logger,
        f"refused with status {error.status}",
        path=words_of(scope["path"]),
        param=words_of(error.param) if error.param else "-",
        reason=reason,
        key=key.name if key else "-",
        request_id=scope.get(SCOPE_KEY, "-"),
    )


def words_of(name: str) -> str:
    """A path or the name of a field, with ``*`` for each part that is no word."""
    return cut(_BETWEEN_WORDS.sub(lambda part: part[0] if _WORD.fullmatch(part[0]) else "*", name))
