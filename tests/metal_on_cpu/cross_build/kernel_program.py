"""The program of kernels/main.cpp as a process: a request in, arrays out."""

from __future__ import annotations

import struct
import subprocess
from collections.abc import Sequence
from types import TracebackType
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]

ATTENTION, PRODUCT, ACTIVATION = range(3)
ELEMENT_TYPES = {"float32": 0, "float16": 1, "bfloat16": 2}
ACTIVATIONS = {"exp": 0, "tanh": 1, "swiglu": 2}


class Program:
    """``command`` as a process. Its death is a ``RuntimeError`` with what it said."""

    def __init__(self, command: Sequence[str], environment: dict[str, str] | None = None) -> None:
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment,
        )

    def __enter__(self) -> Program:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        _, said = self._process.communicate()
        if kind is None and self._process.returncode:
            raise RuntimeError(said.decode())

    def attention(
        self,
        arrays: dict[str, Array],
        *,
        dtype: str,
        scale: float,
        window: int | None = None,
        softcap: float | None = None,
        sinks: Array | None = None,
        threads: int = 2,
    ) -> tuple[Array, Array, Array]:
        """``scatter_paged_attention`` of contiguous arrays: out, k_cache and v_cache."""
        q, k, v, k_cache, v_cache = (arrays[n] for n in ("q", "k", "v", "k_cache", "v_cache"))
        names = ("slot_mapping", "block_tables", "seq_lens", "cu_seqlens_q")
        metadata = [arrays[name].astype(np.int32) for name in names]
        num_blocks, block_size = k_cache.shape[:2]
        sizes = [ELEMENT_TYPES[dtype], threads, len(q), num_blocks, *metadata[1].shape]
        sizes += [q.shape[1], k.shape[1], q.shape[2], v.shape[2], block_size]
        sizes += [window or 0, sinks is not None]
        logits = [] if sinks is None else [sinks.astype(np.float32)]
        self._send(ATTENTION, sizes, [scale, softcap or 0.0])
        self._send_arrays(q, k, v, k_cache, v_cache, *metadata, *logits)
        out = self._receive((len(q), q.shape[1], v.shape[2]), q.dtype)
        caches = [self._receive(cache.shape, cache.dtype) for cache in (k_cache, v_cache)]
        return out, caches[0], caches[1]

    def product(
        self,
        a: Array,
        b: Array,
        c: Array | None = None,
        *,
        alpha: float = 1.0,
        beta: float = 0.0,
        transposed: tuple[bool, bool] = (False, False),
        threads: int = 2,
    ) -> Array:
        """alpha a b + beta c of float32; ``transposed`` says which lie in memory by columns."""
        (m, k), n = a.shape, b.shape[1]
        c = np.full((m, n), np.nan, np.float32) if c is None else c
        self._send(PRODUCT, [threads, m, n, k, *transposed], [alpha, beta])
        stored = [x.T if flip else x for x, flip in zip((a, b), transposed, strict=True)]
        self._send_arrays(*stored, c)
        return self._receive((m, n), np.dtype(np.float32))

    def activation(self, name: str, a: Array, b: Array | None = None) -> Array:
        """A function of float32, applied to each element; swiglu takes two."""
        self._send(ACTIVATION, [ACTIVATIONS[name], a.size], [])
        self._send_arrays(a, a if b is None else b)
        return self._receive(a.shape, a.dtype)

    def _send(self, operation: int, integers: Sequence[int], reals: Sequence[float]) -> None:
        head = struct.pack(f"<q{len(integers)}q{len(reals)}d", operation, *integers, *reals)
        self._write(head)

    def _send_arrays(self, *arrays: Array) -> None:
        self._write(b"".join(np.ascontiguousarray(array).tobytes() for array in arrays))
        assert self._process.stdin is not None
        self._process.stdin.flush()

    def _write(self, data: bytes) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(data)
        except BrokenPipeError:
            self._died()

    def _receive(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        assert self._process.stdout is not None
        size = int(np.prod(shape)) * dtype.itemsize
        data = self._process.stdout.read(size)
        if len(data) < size:
            self._died()
        return np.frombuffer(data, dtype).reshape(shape)

    def _died(self) -> None:
        assert self._process.stderr is not None
        raise RuntimeError(self._process.stderr.read().decode())
