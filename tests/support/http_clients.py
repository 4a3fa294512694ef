"""One TLS context for all of httpx' clients in a process: each would read all certificates that
the system trusts, which takes longer than most tests."""

from __future__ import annotations

from functools import cache

from httpx._transports import default


def pytest_configure() -> None:
    default.create_ssl_context = cache(default.create_ssl_context)
