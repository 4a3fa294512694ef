"""Who is asked, what it understands, and how tokens are to be drawn."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal

Api = Literal["chat", "completions"]
PATHS: Mapping[Api, str] = {"chat": "/v1/chat/completions", "completions": "/v1/completions"}


@dataclass(frozen=True)
class Server:
    """What a server understands beyond OpenAI's own fields."""

    name: str
    knows_ignore_eos: bool = False
    tells_token_ids: bool = False
    """By the field ``return_token_ids``, in each event; where not, an event that has a text counts
    as one token or more."""


SERVERS = {
    server.name: server
    for server in (
        Server("pomona", knows_ignore_eos=True, tells_token_ids=True),
        Server("vllm", knows_ignore_eos=True, tells_token_ids=True),
        Server("llama.cpp", knows_ignore_eos=True),
        Server("mlx-lm"),
        Server("openai"),
    )
}


@dataclass(frozen=True)
class Target:
    """``url`` is what stands before ``/v1``."""

    url: str
    model: str
    api: Api = "chat"
    server: Server = SERVERS["openai"]
    api_key: str = field(default="", repr=False)
    metrics_urls: tuple[str, ...] = ()
    """Of the server's engines and gateways, to compare its figures with one's own."""

    @property
    def endpoint(self) -> str:
        return self.url.rstrip("/") + PATHS[self.api]

    @property
    def headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.api_key}"} if self.api_key else {}


@dataclass(frozen=True)
class Sampling:
    """What is None is not sent, and so is as the server has it."""

    temperature: float = 0.0
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    seed: int | None = None
    """Of the first conversation; each has the next one."""
    ignore_eos: bool = True
    """Where the server knows it: every answer has all of its tokens."""
    extra: Mapping[str, Any] = field(default_factory=dict)
    """Other fields of the body."""

    def as_fields(self, server: Server, number: int) -> dict[str, Any]:
        """``number``: of the conversation."""
        named = {one.name: getattr(self, one.name) for one in fields(self)}
        del named["extra"]
        if self.seed is not None:
            named["seed"] = self.seed + number
        if not (self.ignore_eos and server.knows_ignore_eos):
            del named["ignore_eos"]
        return {name: value for name, value in named.items() if value is not None} | dict(
            self.extra
        )
