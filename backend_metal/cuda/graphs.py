"""Steps as CUDA graphs: captured once, and replayed from then on."""

from __future__ import annotations

from types import ModuleType

import mlx.core as mx

from backend_metal.devices.recording import Forward, Ints


class CudaRecording:
    def __init__(
        self,
        operators: ModuleType,
        forward: Forward,
        ints: Ints,
        newest: mx.array,
        max_drawn: int,
    ) -> None:
        """``operators``: the extension."""
        inputs = mx.zeros(len(ints), mx.int32), mx.zeros(max_drawn, mx.int32)
        mx.eval(inputs)
        self._native = operators.Recording(*inputs)
        self._native.load(ints)
        try:
            # Both graphs are built before either runs, since building takes memory: what is
            # recorded must find the very buffers that the rehearsal has left.
            rehearsed, recorded = (
                self._build(forward, newest, records) for records in (False, True)
            )
            mx.synchronize()
            mx.clear_cache()
            mx.eval(rehearsed)
            mx.synchronize()
            del rehearsed  # Its buffer, too, is asked for again.
            mx.eval(recorded)
            mx.synchronize()
        except BaseException:
            self._native.abandon()
            raise

    def _build(self, forward: Forward, newest: mx.array, records: bool) -> mx.array:
        result: mx.array = self._native.leave(
            forward(*self._native.enter(newest, records)), records
        )
        return result

    def replay(self, ints: Ints, newest: mx.array) -> mx.array:
        self._native.load(ints)
        result: mx.array = self._native.replay(newest)
        return result
