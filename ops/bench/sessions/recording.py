"""A recording: what one client sent in a session, and when it had its answers.

A folder of recordings has a folder for each place of work, with a file for each session there, in
the order of their names: ``orchard/1.jsonl``. Each line is a request.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

KEPT_HEADERS = ("x-claude-code-session-id", "anthropic-version", "anthropic-beta", "user-agent")


@dataclass(frozen=True)
class RecordedRequest:
    arrived_s: float
    """Since the session began."""
    answered_s: float
    headers: Mapping[str, str]
    """Those of ``KEPT_HEADERS`` that were sent."""
    body: Mapping[str, Any]
    """Of ``POST /v1/messages``, with nothing left out."""


Session = Sequence[RecordedRequest]
Recording = Mapping[str, Sequence[Session]]
"""The sessions of each place of work, one after another."""


def save(session: Session, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{json.dumps(asdict(one))}\n" for one in session))


def load(folder: Path) -> Recording:
    """Raises ``ValueError`` for a folder without any."""
    found: dict[str, list[Session]] = {}
    for path in sorted(folder.glob("*/*.jsonl")):
        session = [RecordedRequest(**json.loads(line)) for line in path.read_text().splitlines()]
        found.setdefault(path.parent.name, []).append(session)
    if not found:
        raise ValueError(f"{folder} has no recordings, such as orchard/1.jsonl")
    return found
