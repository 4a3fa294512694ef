"""How many files a process may have open: mlx-lm, when imported, leaves 2,048 for good.

An engine has a socket for each request, and whatever else runs in its process has files as well.
"""

from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import contextmanager

ENOUGH = 10_240
"""What macOS lets any process ask for."""


@contextmanager
def limit_kept() -> Iterator[None]:
    """Nothing that runs inside changes a limit, which only root could undo."""
    setrlimit = resource.setrlimit
    resource.setrlimit = lambda limited, limits: None
    try:
        yield
    finally:
        resource.setrlimit = setrlimit


def raise_limit() -> None:
    """To ``ENOUGH``, or as far as the system allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = ENOUGH if hard == resource.RLIM_INFINITY else min(hard, ENOUGH)
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
