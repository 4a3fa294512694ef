"""What MLX is told to keep of a device's memory."""

from __future__ import annotations

import ctypes
import subprocess
import sys
from collections.abc import Iterator

import mlx.core as mx
import pytest

from backend_metal.engine.memory import device_limits
from backend_metal.engine.memory.device_limits import (
    BUFFER_CACHE_FRACTION,
    LEAST_SUBMITTED_FRACTION,
    SUBMITTED_FRACTION,
    limit_memory,
    limit_submitted,
)
from backend_metal.engine.memory.kv_blocks import GIB
from tests.support.backend_metal.bare_package import BARE_PACKAGE

CPU = mx.Device(mx.cpu)


@pytest.fixture(autouse=True)
def same_cache_limit() -> Iterator[None]:
    """In between it is what it is with a GPU: none."""
    before = mx.set_cache_limit(2**62)
    yield
    mx.set_cache_limit(before)


@pytest.fixture(autouse=True)
def kept_by_the_heap(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    kept: list[int] = []
    monkeypatch.setattr(device_limits, "keep_freed", kept.append)
    return kept


def test_mlx_keeps_some_of_what_it_frees(kept_by_the_heap: list[int]) -> None:
    limit_memory(10 * GIB)
    assert mx.set_cache_limit(0) == int(10 * GIB * BUFFER_CACHE_FRACTION)
    assert kept_by_the_heap == []


def test_where_mlx_keeps_little_the_heap_keeps_the_rest(kept_by_the_heap: list[int]) -> None:
    mx.set_cache_limit(32 * 2**20)
    limit_memory(10 * GIB)
    assert mx.set_cache_limit(0) == 32 * 2**20
    assert kept_by_the_heap == [int(10 * GIB * BUFFER_CACHE_FRACTION)]


def test_what_is_submitted_leaves_room_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    limits: list[int] = []
    monkeypatch.setattr(mx, "set_memory_limit", limits.append)
    monkeypatch.setattr(mx, "get_active_memory", lambda: 30 * GIB)
    of_kernels: list[int] = []
    limit_submitted(CPU, 40 * GIB, of_kernels.append)
    assert limits == of_kernels == []
    more = int(10 * GIB * SUBMITTED_FRACTION)
    limit_submitted(mx.Device(mx.gpu), 40 * GIB, of_kernels.append)
    assert (limits, of_kernels) == ([30 * GIB + more], [more])
    # Who has asked for more than there is gets something, too.
    least = int(20 * GIB * LEAST_SUBMITTED_FRACTION)
    limit_submitted(mx.Device(mx.gpu), 20 * GIB, None)
    assert (limits[1:], of_kernels) == ([30 * GIB + least], [more])


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallinfo2"), reason="needs glibc")
def test_the_heap_keeps_what_is_freed_at_its_end() -> None:
    # In a process of its own: a heap that keeps what is freed never stops.
    code = """
import ctypes
from backend_metal.engine.memory.heap import keep_freed
libc = ctypes.CDLL(None)
libc.malloc.restype, libc.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
libc.free.argtypes = [ctypes.c_void_p]
class Sizes(ctypes.Structure):
    _fields_ = [(f"field{number}", ctypes.c_size_t) for number in range(10)]
libc.mallinfo2.restype = Sizes
keep_freed(int(sys.argv[1]))
chunks = [libc.malloc(2**20) for _ in range(64)]
full = libc.mallinfo2().field0
for chunk in chunks:
    libc.free(chunk)
print(full - libc.mallinfo2().field0)
"""

    def given_back(kept: int) -> int:
        command = [sys.executable, "-c", BARE_PACKAGE + code, str(kept)]
        return int(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)

    assert given_back(2**40) == 0
    assert given_back(2**20) >= 62 * 2**20
