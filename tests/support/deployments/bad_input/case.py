"""One request that must be refused, and how."""

from __future__ import annotations

from dataclasses import dataclass

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
RESPONSES = "/v1/responses"


@dataclass(frozen=True)
class BadInput:
    name: str
    path: str
    body: bytes
    param: str | None
    says: tuple[str, ...]
    """Parts of the message: the field and what is allowed."""
    status: int = 400
    type: str = "invalid_request_error"
    code: str | None = None
    parsing: bool = True
    """Whether the body alone shows the fault; otherwise the server has to."""
