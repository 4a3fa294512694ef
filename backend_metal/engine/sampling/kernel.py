"""The draw as one operator of the device."""

from __future__ import annotations

from collections.abc import Callable

import mlx.core as mx
import numpy as np

from backend_metal.devices.base import Device, DrawTokens
from backend_metal.engine.sampling.batch import Biases, SamplingBatch
from backend_metal.native import MakeArray

Draw = Callable[[mx.array, SamplingBatch], mx.array]
"""int32 ``[rows]`` of logits ``[rows, vocab_size]``."""


class KernelDraw:
    def __init__(
        self, operator: DrawTokens, *, any_float: bool, make_array: MakeArray = mx.array
    ) -> None:
        """``any_float``: logits of 2 bytes are taken as they are. ``make_array``: of what is new in
        every step."""
        self._operator = operator
        self._any_float = any_float
        self._make_array = make_array
        self._nothing: dict[int, tuple[mx.array, mx.array]] = {}
        """Masks and counts of a vocabulary where there are none."""
        self._biases: tuple[Biases, mx.array, mx.array] | None = None
        self._options: tuple[bytes, mx.array] | None = None
        """The latest, which mostly are those of the next step, options where nobody draws by
        chance."""

    def __call__(self, logits: mx.array, batch: SamplingBatch) -> mx.array:
        size = batch.vocab_size
        if size not in self._nothing:
            self._nothing[size] = mx.zeros((0, 1), mx.int32), mx.zeros((0, size), mx.int32)
            mx.eval(self._nothing[size])
        masks, counts = self._nothing[size]
        if self._biases is None or self._biases[0] is not batch.biases:
            of = batch.biases
            self._biases = of, mx.array(of.token_ids), mx.array(of.values)
        _, bias_ids, biases = self._biases
        told = batch.options.tobytes()
        if self._options is None or self._options[0] != told:
            words = batch.options.view(np.uint32).reshape(batch.num_rows, -1)
            self._options = told, self._make_array(words)
        _, options = self._options
        return self._operator(
            logits if self._any_float else logits.astype(mx.float32),
            options,
            masks if batch.masks is None else batch.masks.array(self._make_array),
            counts if batch.counts is None else batch.counts,
            bias_ids,
            biases,
            cuts=batch.cuts,
        )


def own_kernel(device: Device) -> KernelDraw | None:
    """None where it has none."""
    if device.draw_tokens is None:
        return None
    return KernelDraw(
        device.draw_tokens, any_float=device.draws_any_float, make_array=device.make_array
    )
