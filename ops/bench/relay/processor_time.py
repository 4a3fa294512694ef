"""Who had the processors: figures from a machine that has other work to do are no good."""

from __future__ import annotations

import psutil


def cpu_s(*processes: psutil.Process) -> float:
    """Processor time that ``processes`` have used so far, in seconds."""
    times = [process.cpu_times() for process in processes]
    return sum(one.user + one.system for one in times)


class OthersShare:
    """Of the processor time that is used from here on, the part that ``own`` does not use."""

    def __init__(self, *own: psutil.Process) -> None:
        self._own = own
        self._own_at_start = cpu_s(*own)
        self._all_at_start = _all_s()

    def so_far(self) -> float:
        own = cpu_s(*self._own) - self._own_at_start
        return max(0.0, 1.0 - own / max(_all_s() - self._all_at_start, own, 1e-9))


def _all_s() -> float:
    times = psutil.cpu_times()
    return float(sum(times) - times.idle - getattr(times, "iowait", 0.0))
