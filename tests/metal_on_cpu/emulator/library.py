"""A compiled library of kernels, and dispatching them on numpy arrays."""

import ctypes
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from . import toolchain
from .c_api import MAX_BUFFERS, ConstantValue, Dispatch, Result
from .errors import KernelError
from .translate import Translation

Array = np.ndarray[Any, Any]
Size = tuple[int, int, int]
Buffer = Array | tuple[Array, int] | bytes | int | float | np.generic


@dataclass(frozen=True)
class DispatchResult:
    """What a dispatch left behind."""

    buffers: dict[int, Array]  # by index, as the kernel left them
    barriers: int  # threadgroup barriers executed, summed over threadgroups
    simdgroup_barriers: int  # executed, summed over simdgroups
    threadgroup_bytes: int  # most threadgroup memory that one threadgroup used
    loaded: dict[int, int]  # tracked buffers: distinct bytes each threadgroup loaded, summed


class Library:
    """Kernels of one source.

    Attributes:
        kernels: host names, sorted.
        path: the shared library; it exports the functions of runtime/metal_emulator.h.
    """

    def __init__(self, path: Path, translation: Translation, build: str) -> None:
        self.path = path
        self.build = build
        self.translation = translation
        self.kernels = sorted(i.host_name for i in translation.instantiations)
        self._handle: ctypes.CDLL | None = None

    @property
    def handle(self) -> ctypes.CDLL:
        if self._handle is None:
            self._handle = ctypes.CDLL(str(self.path))
        return self._handle

    def dispatch(
        self,
        name: str,
        *,
        grid: Size,
        threadgroup: Size,
        buffers: Mapping[int, Buffer],
        function_constants: Mapping[int, bool | int | float] | None = None,
        threadgroup_memory: Mapping[int, int] | None = None,
        seed: int = 0,
        workers: int = 2,
        guard_at_start: bool = False,
        grid_is_threads: bool = False,
        track: Sequence[int] = (),
    ) -> DispatchResult:
        """Runs a kernel on copies of `buffers`.

        Args:
            name: host name.
            grid: threadgroups in x, y, z; threads if `grid_is_threads`.
            threadgroup: threads in x, y, z.
            buffers: by index: an array, an array and an offset in bytes, bytes, or a scalar
                (bool, int as int32, float as float32, numpy scalars as they are). An array that
                is given twice is one buffer.
            function_constants: by index.
            threadgroup_memory: bytes, by the index of [[threadgroup(index)]].
            seed: the schedule: 0 in order, 1 backwards, others random.
            workers: host threads.
            guard_at_start: buffers begin, rather than end, at unmapped memory.
            track: buffers whose loads are counted.

        Raises:
            KernelError: the dispatch is refused or the kernel misbehaves.
        """
        if track and self.build != "traced":
            return self._traced().dispatch(
                name,
                grid=grid,
                threadgroup=threadgroup,
                buffers=buffers,
                function_constants=function_constants,
                threadgroup_memory=threadgroup_memory,
                seed=seed,
                workers=workers,
                guard_at_start=guard_at_start,
                grid_is_threads=grid_is_threads,
                track=track,
            )
        request = Dispatch()
        request.kernel = name.encode()
        request.grid[:] = grid
        request.threadgroup[:] = threadgroup
        request.grid_is_threads = grid_is_threads
        request.seed = seed
        request.workers = workers
        request.guard_at_start = guard_at_start
        constants = self._constants(function_constants or {})
        request.constants = constants
        request.num_constants = len(constants)
        for index, size in (threadgroup_memory or {}).items():
            request.threadgroup_memory[index] = size
        memory = _GuardedArrays(self.handle, guard_at_start)
        try:
            for index, buffer in buffers.items():
                if not 0 <= index < MAX_BUFFERS:
                    raise KernelError(f"{name}: buffer index {index} is not in 0..30")
                request.buffers[index].data, request.buffers[index].size = memory.add(buffer)
                request.buffers[index].track = index in track
            result = Result()
            if self.handle.metal_emulator_run(ctypes.byref(request), ctypes.byref(result)):
                raise KernelError(self.explain(result.error.decode(), result.fault_offset))
            return DispatchResult(
                buffers={index: memory.read(buffer) for index, buffer in buffers.items()},
                barriers=result.threadgroup_barriers,
                simdgroup_barriers=result.simdgroup_barriers,
                threadgroup_bytes=result.threadgroup_bytes,
                loaded={index: result.loaded[index] for index in track},
            )
        finally:
            memory.free()

    def explain(self, message: str, fault_offset: int) -> str:
        """A dispatch's error with the source line of the failing instruction."""
        if not fault_offset:
            return message
        symbolizer = toolchain.tool("llvm-symbolizer", f"llvm-{toolchain.VERSION}")
        output, _ = toolchain.run(
            [symbolizer, f"--obj={self.path}", "-f", "-s", "--inlines", hex(fault_offset)]
        )
        lines = output.split("\n")
        frames = list(zip(lines[::2], lines[1::2], strict=False))
        reasons = [f for f, _ in frames if f.startswith("__clang_trap_msg$")]
        places = [
            place.rsplit(":", 1)[0]
            for function, place in frames
            if not function.startswith("__clang_trap_msg$") and ":" in place
        ]
        reason = ": " + reasons[0].split("$")[-1] if reasons else ""
        return f"{message}{reason} at {' from '.join(places)}"

    def _traced(self) -> "Library":
        from .compiler import build_library

        return Library(build_library(self.translation, "traced"), self.translation, "traced")

    def _constants(self, values: Mapping[int, bool | int | float]) -> "ctypes.Array[ConstantValue]":
        types = {c.index: c.type for c in self.translation.constants}
        packed = (ConstantValue * len(values))()
        for slot, (index, value) in zip(packed, values.items(), strict=True):
            slot.index = index
            slot.bits = _bits(value, types.get(index, "int"))
        return packed


def _bits(value: bool | int | float, type_name: str) -> int:
    formats = {"float": np.float32, "half": np.float16}
    if type_name in formats:
        return int.from_bytes(np.array(value, formats[type_name]).tobytes(), "little")
    return int(value) & (2**64 - 1)


class _GuardedArrays:
    """Arrays copied into guarded memory, once each."""

    def __init__(self, handle: ctypes.CDLL, at_start: bool) -> None:
        self._handle = handle
        self._at_start = at_start
        self._allocate = handle.metal_emulator_allocate
        self._allocate.restype = ctypes.c_void_p
        self._allocate.argtypes = [ctypes.c_size_t, ctypes.c_int]
        self._copies: dict[int, tuple[int, Array]] = {}

    def add(self, buffer: Buffer) -> tuple[int, int]:
        """Address and bytes of the buffer's copy."""
        array, offset = _array_and_offset(buffer)
        key = id(buffer[0]) if isinstance(buffer, tuple) else id(buffer)
        if key not in self._copies:
            address = self._allocate(array.nbytes, self._at_start)
            if array.nbytes:
                ctypes.memmove(address, array.ctypes.data, array.nbytes)
            self._copies[key] = (address, array)
        return self._copies[key][0] + offset, array.nbytes - offset

    def read(self, buffer: Buffer) -> Array:
        key = id(buffer[0]) if isinstance(buffer, tuple) else id(buffer)
        address, array = self._copies[key]
        data = ctypes.string_at(address, array.nbytes)
        return np.frombuffer(data, array.dtype).reshape(array.shape).copy()

    def free(self) -> None:
        release = self._handle.metal_emulator_free
        release.argtypes = [ctypes.c_void_p]
        for address, _ in self._copies.values():
            release(address)


def _array_and_offset(buffer: Buffer) -> tuple[Array, int]:
    if isinstance(buffer, tuple):
        return np.ascontiguousarray(buffer[0]), buffer[1]
    if isinstance(buffer, bytes):
        return np.frombuffer(buffer, np.uint8), 0
    if isinstance(buffer, bool):
        return np.array(buffer, np.bool_), 0
    if isinstance(buffer, int):
        return np.array(buffer, np.int32), 0
    if isinstance(buffer, float):
        return np.array(buffer, np.float32), 0
    return np.ascontiguousarray(buffer), 0
