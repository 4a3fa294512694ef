"""Who has a host's cores where they are few: who computes, until its turn is over.

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
    """Have this process's threads, and the processes that they start, take no core from a thread
    that computes. One that was started with a class of its own keeps it."""
    if sys.platform != "linux":
        return
    for thread in map(int, os.listdir("/proc/self/task")):
        # A thread may end meanwhile, and a sandbox forbid it, which costs a little speed.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if os.sched_getscheduler(thread) == os.SCHED_OTHER:
                os.sched_setscheduler(thread, os.SCHED_BATCH, os.sched_param(0))
