"""A CPU, by the kernels of ``csrc/cpu``."""

from __future__ import annotations

import mlx.core as mx

from backend_metal import native
from backend_metal.devices.cpu.blas import multiplies_rows_alike
from backend_metal.devices.extension import ExtensionDevice
from backend_metal.devices.row_operators import RowOperators


class Cpu(ExtensionDevice):
    name = attention = "cpu"
    mlx = mx.Device(mx.cpu)
    # It multiplies at its full rate from a hundred rows on, so that a longer chunk only holds up
    # the streams beside it for longer.
    step_tokens = 512
    repeats_graphs = True
    rows = RowOperators(native.rms_norm_of_sum)

    def __init__(self, *, one_kernel: bool = False) -> None:
        super().__init__(native, one_kernel=one_kernel)

    def zeros(self, shape: tuple[int, ...], dtype: mx.Dtype) -> mx.array:
        zeros: mx.array = native.zeros(shape, dtype)
        return zeros

    def deterministic(self) -> Cpu | None:
        return DeterministicCpu(one_kernel=True) if multiplies_rows_alike() else None


class DeterministicCpu(Cpu):
    # Where keys are cut shows in the last bits, and is counted from where a table begins.
    origin_multiple = native.KEYS_PER_SPLIT
    one_way = True
