"""Has the C library keep memory that MLX has freed, where arrays are the heap's.

A prompt's arrays are as large as it is long, so MLX's cache of buffers, which are handed out again
for about their own size alone, has none for the next prompt and fills up with what nobody asks for.
The heap joins and splits what is free. But by default it returns what is free at its end to the
system, which then clears each page again when it is next touched: for short prompts that takes a
tenth to a third of their time.
"""

from __future__ import annotations

import ctypes

MMAP_THRESHOLD, TRIM_THRESHOLD = -3, -1
"""As in glibc's ``malloc.h``."""
LARGEST_IN_HEAP = 32 * 2**20
"""The most that glibc takes for a size below which memory is the heap's."""
MOST = 2**31 - 1


def keep_freed(num_bytes: int) -> None:
    """Keep up to so many free bytes at the heap's end. Nothing to do without glibc."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(MMAP_THRESHOLD, LARGEST_IN_HEAP)
        mallopt(TRIM_THRESHOLD, min(num_bytes, MOST))
