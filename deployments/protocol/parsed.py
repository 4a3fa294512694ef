"""A checked request, in the terms of its own API and in those that all APIs share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from deployments.http import sse
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


@dataclass(frozen=True)
class ParsedRequest:
    form: GenerationForm
    """What is to be generated: routing, limits, sizes, sampling, tools and grammars read this."""
    asked: StrictModel
    """The same in the terms of its own API, for whoever tells of the answer."""
    stream_form: StreamForm = StreamForm()
