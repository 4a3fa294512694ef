"""Small kernels for tests of the emulator itself."""

from typing import Any

import numpy as np

from .compiler import compile_source
from .library import Buffer, DispatchResult

HEADER = "#include <metal_stdlib>\nusing namespace metal;\n"

Array = np.ndarray[Any, Any]

# One thread an element, `lane` and `index` at hand: what `body` assigns to `out[index]` is tested.
_ELEMENTWISE = (
    HEADER
    + """
[[kernel]] void elementwise(
    device {out}* out [[buffer(0)]],
    const device {in}* a [[buffer(1)]],
    const device {in}* b [[buffer(2)]],
    uint index [[thread_position_in_grid]],
    uint lane [[thread_index_in_simdgroup]]) {{
  {body}
}}
"""
)


def elementwise(
    body: str, a: Array, b: Array | None = None, *, out: str = "float", seed: int = 0
) -> Array:
    """Runs `body` on 32 threads a threadgroup; `a` and `b` are buffers 1 and 2."""
    names = {"float32": "float", "float16": "half", "int32": "int", "uint32": "uint"}
    numpy_types = {"float": np.float32, "half": np.float16, "int": np.int32, "uint": np.uint32}
    source = _ELEMENTWISE.format(out=out, body=body, **{"in": names[a.dtype.name]})
    result = compile_source(source).dispatch(
        "elementwise",
        grid=(len(a) // 32, 1, 1),
        threadgroup=(32, 1, 1),
        buffers={0: np.zeros(len(a), numpy_types[out]), 1: a, 2: a if b is None else b},
        seed=seed,
    )
    return result.buffers[0]


def run(
    kernel: str,
    buffers: dict[int, Buffer],
    *,
    threadgroups: int = 1,
    threads: int = 32,
    **options: Any,
) -> DispatchResult:
    """Compiles `kernel`, whose name is `k`, and dispatches it."""
    return compile_source(HEADER + kernel, name="k.metal").dispatch(
        "k",
        grid=(threadgroups, 1, 1),
        threadgroup=(threads, 1, 1),
        buffers=buffers,
        **options,
    )
