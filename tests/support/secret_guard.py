"""No log line of any test holds a secret, or what somebody has asked a model.

What is secret is heard where the code under test gets it: every API key that is configured or
presented, wrong ones too, the secret of every replica that a gateway knows, and every prompt.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from deployments.fleet.directory import Replica
from deployments.gateway.access import api_keys, keys_file
from deployments.protocol import CompletionRequest, GenerationForm, ParsedRequest, parsing

LOGGERS = ("deployments", "backend_metal", "uvicorn", "aiohttp", "ray.serve")
SHORTEST = 8
"""A secret below this would be found in words that only contain it."""
USUAL = frozenset(vars(logging.makeLogRecord({})))


class SecretGuard(logging.Handler):
    """Keeps what is logged, and the secrets that should not be in it."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []
        self._secrets: set[str] = set()

    def hear(self, *secrets: str) -> None:
        self._secrets.update(one for one in secrets if len(one) >= SHORTEST)

    def emit(self, record: logging.LogRecord) -> None:
        # JSON lines also have what the record was given beside its message.
        members = {name: value for name, value in vars(record).items() if name not in USUAL}
        self.lines.append(f"{record.name}: {self.format(record)} {members or ''}")

    def leaks(self) -> list[str]:
        return [
            line
            for line in self.lines
            if "Bearer " in line or any(one in line for one in self._secrets)
        ]


@contextmanager
def guarded_logs() -> Iterator[SecretGuard]:
    guard = SecretGuard()
    loggers = [logging.getLogger(name) for name in LOGGERS]
    # Servers of other tests may have silenced some below these.
    below = [logging.getLogger(name) for name in _names_below(LOGGERS)]
    levels = [(logger, logger.level) for logger in (*loggers, *below)]
    for logger in loggers:
        logger.setLevel(logging.INFO)
        logger.addHandler(guard)
    for logger in below:
        logger.setLevel(logging.NOTSET)
    try:
        with pytest.MonkeyPatch.context() as patch:
            _listen(guard, patch)
            yield guard
    finally:
        for logger, level in levels:
            logger.setLevel(level)
            logger.removeHandler(guard)


def _names_below(names: tuple[str, ...]) -> list[str]:
    prefixes = tuple(f"{name}." for name in names)
    return [name for name in logging.root.manager.loggerDict if name.startswith(prefixes)]


def _listen(guard: SecretGuard, patch: pytest.MonkeyPatch) -> None:
    digest, parse, init = api_keys.key_digest, parsing.parse_request, Replica.__init__

    def key_digest(key: str) -> bytes:
        guard.hear(key)
        return digest(key)

    def parse_request(path: str, body: bytes, context: bytes = b"") -> ParsedRequest:
        request = parse(path, body, context)
        guard.hear(*_texts(request.form))
        return request

    def replica_init(replica: Replica, *args: Any, **fields: Any) -> None:
        init(replica, *args, **fields)
        guard.hear(replica.secret)

    patch.setattr(api_keys, "key_digest", key_digest)
    patch.setattr(keys_file, "key_digest", key_digest)
    patch.setattr(parsing, "parse_request", parse_request)
    patch.setattr(Replica, "__init__", replica_init)


def _texts(request: GenerationForm) -> list[str]:
    if isinstance(request, CompletionRequest):
        return [prompt for prompt in request.prompt if isinstance(prompt, str)]
    return [message.text for message in request.messages]
