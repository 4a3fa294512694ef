"""A checked request, in the terms of its own API and in those that all APIs share."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from deployments.http import sse
from deployments.http.errors import ApiError
from deployments.protocol.chat import ChatCompletionRequest
from deployments.protocol.completions import CompletionRequest
from deployments.protocol.strict import StrictModel

GenerationForm = ChatCompletionRequest | CompletionRequest


@dataclass(frozen=True)
class StreamForm:
    """How an API's streams end, for a gateway that passes on what it doesn't read."""

    last_event: bytes = sse.DONE
    """Of a whole answer; no other event is equal to it."""
    failure_event: Callable[[bytes, bytes], bytes] = lambda error, told: sse.event(error)
    """The end of one that breaks off: of an error in OpenAI's shape, on one line, and of the events
    that were passed on last."""
    error_body: Callable[[bytes, str], bytes] = lambda error, request_id: error
    """An error that is the whole answer, of one in OpenAI's shape and of the request's id."""


@dataclass(frozen=True)
class ParsedRequest:
    form: GenerationForm
    """What is to be generated: routing, limits, sizes, sampling, tools and grammars read this."""
    asked: StrictModel
    """The same in the terms of its own API, for whoever tells of the answer."""
    stream_form: StreamForm = StreamForm()
    own_names: Mapping[str, str] = field(default_factory=dict)
    """Of fields of ``form`` that have other names in ``asked``."""
    dropped: tuple[str, ...] = ()
    """What the answer goes without."""


def in_own_names(error: ApiError, own_names: Mapping[str, str]) -> ApiError:
    """``error`` in the terms of the API that was asked, if it speaks of the shared form's."""
    if error.param is None or not own_names:
        return error
    longest_first = sorted(own_names, key=len, reverse=True)
    known = re.compile("|".join(rf"(?<![\w.]){re.escape(name)}(?!\w)" for name in longest_first))

    def own(text: str) -> str:
        return known.sub(lambda found: own_names[found[0]], text)

    return ApiError(
        error.status,
        own(error.message),
        type=error.type,
        param=own(error.param),
        code=error.code,
        headers=error.headers,
    )
