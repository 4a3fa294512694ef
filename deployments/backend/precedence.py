"""Who has a host's cores first where they are few: engines, before all that is around them.

On Linux a thread that wakes up takes a core at once from one that computes, and the threads that
share a product of matrices wait for the one whose core is gone. Those of class ``SCHED_BATCH``,
which any process may give itself, wait instead until a core is free, or for a turn of some
milliseconds, and have no less of the cores' time. On a Mac it is the GPU that computes.
"""

from __future__ import annotations

import contextlib
import os
import sys


def give_way() -> None:
    """Have this process's threads, and the processes that they start, leave engines the cores. One
    that was started with a class of its own keeps it."""
    if sys.platform == "linux":
        _change(os.SCHED_OTHER, os.SCHED_BATCH)


def take_precedence() -> None:
    """Undo, in a process that it starts, what ``give_way`` did."""
    if sys.platform == "linux":
        _change(os.SCHED_BATCH, os.SCHED_OTHER)


if sys.platform == "linux":

    def _change(before: int, after: int) -> None:
        for thread in map(int, os.listdir("/proc/self/task")):
            # A thread may end meanwhile, and a sandbox forbid it, which costs a little speed.
            with contextlib.suppress(ProcessLookupError, PermissionError):
                if os.sched_getscheduler(thread) == before:
                    os.sched_setscheduler(thread, after, os.sched_param(0))
