"""What a replica was asked: by a gateway, in an envelope, or directly by who knows the secret."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from types import MappingProxyType

from deployments.backend import BackendError, GenerationRequest, SamplingParams
from deployments.http import sse
from deployments.http.errors import ApiError, api_error_from, internal_error
from deployments.protocol import CompletionRequest, GenerationForm, ParsedRequest
from deployments.protocol.parsed import in_own_names
from deployments.wire.checkpoint import Progress
from deployments.wire.envelope import CHECKPOINTS_HEADER, Envelope
from deployments.wire.failure import BelatedError

DROPPED_HEADER = "X-Pomona-Dropped"
"""What was asked for and the answer goes without: kinds of tools, kinds of blocks, fields whose
value says nothing here, and places in the schemas of tools that are not enforced."""
MOST_DROPPED = 32
MOST_DROPPED_CHARS = 96
"""Of each that is named, since proxies take headers of some KiB."""
_NO_NAME = re.compile(r"[^a-zA-Z0-9_.:$-]")


@dataclass(frozen=True)
class Answer:
    """A request, and what is known of its answer before it is generated."""

    parsed: ParsedRequest
    envelope: Envelope
    for_gateway: bool
    """Whether checkpoints are understood."""
    progress: Progress = field(default_factory=Progress)
    is_progress_known: bool = True
    """To the gateway: it does not come from what was kept here."""

    @property
    def request(self) -> GenerationForm:
        return self.parsed.form

    @property
    def is_resumable(self) -> bool:
        return self.envelope.seen is not None

    @property
    def tokens_seen(self) -> Mapping[int, int]:
        """By choice; the client of a resumable stream has their events."""
        return self.envelope.seen.tokens if self.envelope.seen else {}

    @property
    def cached_tokens(self) -> Mapping[int, int]:
        """By prompt, of those that have begun: what was cached where they did."""
        seen = self.envelope.seen.cached_tokens if self.envelope.seen else {}
        return {**self.progress.cached_tokens, **seen}

    def dropped(self, left_out: Sequence[str]) -> str:
        """Names with commas between them; of many, the first. ``left_out``: of schemas."""
        form = self.request
        tools = [] if isinstance(form, CompletionRequest) else form.dropped_tools
        names = (_NO_NAME.sub("_", name) for name in (*tools, *self.parsed.dropped, *left_out))
        cut = dict.fromkeys(name[:MOST_DROPPED_CHARS] for name in names)
        return ", ".join([*cut][:MOST_DROPPED])

    def continued(self, requests: Sequence[GenerationRequest]) -> list[GenerationRequest]:
        """``requests``, one a prompt, with what the envelope says of them, and with the tokens
        that the answer has already."""
        continued = []
        bounds = self.envelope.max_prompt_tokens
        for prompt, request in enumerate(requests):
            request = replace(
                request,
                priority=request.priority + self.envelope.priority,
                sampling=self._bounded(request.sampling),
                max_prompt_tokens=bounds[prompt] if bounds else None,
                tenant=self.envelope.tenant,
                weight=self.envelope.weight,
                cache_salt=cache_salt(self.envelope.cache_tenant, request.cache_salt),
            )
            continued.append(self._resumed(prompt, request) if self.for_gateway else request)
        return continued

    def _bounded(self, sampling: SamplingParams) -> SamplingParams:
        bounds = [one for one in (sampling.max_tokens, self.envelope.max_tokens) if one is not None]
        return replace(sampling, max_tokens=min(bounds, default=None))

    def _resumed(self, prompt: int, request: GenerationRequest) -> GenerationRequest:
        sampling = request.sampling
        if sampling.seed is None:
            sampling = replace(sampling, seed=_seed_of_prompt(self.envelope.seed, prompt))
        resume = self.progress.of_prompt(prompt, request.n)
        return replace(request, sampling=sampling, resume=resume)

    def start(self, left_out: Sequence[str]) -> dict[str, object]:
        """The message that begins a response with status 200. ``left_out``: of schemas of tools."""
        headers = {}
        if self.request.stream:
            headers = {"Content-Type": sse.CONTENT_TYPE, **sse.HEADERS}
        if dropped := self.dropped(left_out):
            headers[DROPPED_HEADER] = dropped
        return begin_response(headers, for_gateway=self.for_gateway)

    def refusal(self, error: BackendError) -> ApiError:
        """In the terms of the API that was asked."""
        return in_own_names(api_error_from(error), self.parsed.own_names)

    def failure(self, error: Exception) -> bytes:
        """The end of a response that has begun as a success and can't go on."""
        told = self.refusal(error) if isinstance(error, BackendError) else internal_error()
        if self.for_gateway or not self.request.stream:
            return end_with(told, for_gateway=self.for_gateway)
        return self.parsed.stream_form.failure_event(told.json(), b"")


def begin_response(
    headers: Mapping[str, str] = MappingProxyType({}), *, for_gateway: bool
) -> dict[str, object]:
    """The message that begins a response with status 200, of JSON if ``headers`` say nothing."""
    headers = {"Content-Type": "application/json", **headers}
    if for_gateway:
        headers[CHECKPOINTS_HEADER] = "1"
    return {
        "type": "http.response.start",
        "status": 200,
        "headers": [
            (name.lower().encode("latin-1"), value.encode("latin-1"))
            for name, value in headers.items()
        ],
    }


def end_with(error: ApiError, *, for_gateway: bool) -> bytes:
    """The end of a response of JSON that has begun as a success and can't go on."""
    return BelatedError.render(error) if for_gateway else error.json()


def cache_salt(tenant: str, salt: str) -> str:
    """No tenant can name another's salt: what a client sends stays in a place of its own."""
    return json.dumps([tenant, salt]) if tenant or salt else ""


def _seed_of_prompt(seed: int, prompt: int) -> int:
    """Without a seed from the client, equal prompts of one request are continued differently."""
    digest = blake2b(f"{seed}/{prompt}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big", signed=True)
