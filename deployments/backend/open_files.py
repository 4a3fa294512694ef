"""How many files a process may have open: a server has a socket for each request, and a model that
is loaded a file for each shard."""

from __future__ import annotations

import resource

ENOUGH = 10_240
"""What macOS lets any process ask for."""


def raise_limit() -> None:
    """To ``ENOUGH``, or as far as the system allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = ENOUGH if hard == resource.RLIM_INFINITY else min(hard, ENOUGH)
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
