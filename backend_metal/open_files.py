"""How many files a process may have open: mlx-lm, when imported, leaves 2,048 for all that runs in
it, for good."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def limit_kept() -> Iterator[None]:
    """Nothing that runs inside changes a limit, which only root could undo."""
    setrlimit = resource.setrlimit
    resource.setrlimit = lambda limited, limits: None
    try:
        yield
    finally:
        resource.setrlimit = setrlimit
