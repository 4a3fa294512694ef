"""A stand-in for MLX's Metal device, with which the shipped dispatch code runs on the CPU.

``extension()`` is the test extension ``_metal_on_cpu``: the shipped operators, primitives and
``csrc/metal``, compiled against ``include/``, where ``mlx/backend/metal/device.h`` keeps each
dispatch and runs it later on MLX's CPU stream. Start reading at ``csrc/evaluation.cpp``.
"""

from tests.metal_on_cpu.host.build import build
from tests.metal_on_cpu.host.launch import Dispatch, Launch, take_launches
from tests.metal_on_cpu.host.stand_in import exact_allocations, execution, extension, gpu, shaders

__all__ = [
    "Dispatch",
    "Launch",
    "build",
    "exact_allocations",
    "execution",
    "extension",
    "gpu",
    "shaders",
    "take_launches",
]
