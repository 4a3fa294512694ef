"""The CUDA kernels of recurrent layers: they compile, and on the emulator they match float64."""

from __future__ import annotations

from collections.abc import Iterator

import mlx.core as mx
import pytest

from backend_metal.devices.base import RecurrentKernels
from backend_metal.devices.extension import GPU_HEAD_DIMS
from tests.cuda.on_cpu.extension import execution, operators
from tests.cuda.on_cpu.nvrtc import compile_kernel
from tests.support.backend_metal import recurrent_oracle as oracle
from tests.support.backend_metal.recurrent_cases import check_conv, check_linear_attention

LAYOUTS = {
    "decode": oracle.Layout((1, 1, 1), (0, 7, -1), (0, 3, 5)),
    "short": oracle.Layout((2, 1, 3, 2, 9), (4, -1, 2, 6, 1), (4, 3, 2, 0, 1)),
    # Nine of them, of which a thread may go over several.
    "decodes": oracle.Layout((1,) * 9, (0, -1, 2, 3, -1, 5, 6, 7, -1), tuple(range(9))),
    "mixed": oracle.Layout((1, 17, 1, 5), (3, 8, -1, 8), (3, 1, 2, 0)),
}
ELEMENTS = {mx.float32: "float", mx.float16: "half", mx.bfloat16: "bfloat"}


@pytest.fixture(autouse=True)
def on_the_emulator() -> Iterator[None]:
    # MLX's buffers then start where the stand-in expects them.
    with mx.stream(mx.cpu):
        yield


@pytest.fixture(scope="module")
def kernels() -> RecurrentKernels:
    module = operators()
    return RecurrentKernels(module.causal_conv, module.linear_attention)


@pytest.mark.parametrize("backwards", [False, True])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", ELEMENTS)
def test_convolutions(
    kernels: RecurrentKernels, dtype: mx.Dtype, layout: str, backwards: bool
) -> None:
    with execution(backwards=backwards):
        check_conv(
            kernels,
            LAYOUTS[layout],
            channels=300,
            kernel=4,
            has_bias=True,
            is_part=True,
            dtype=dtype,
            seed=1,
        )


@pytest.mark.parametrize("backwards", [False, True])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(
    ("dtype", "dims", "delta_rule"),
    [(mx.bfloat16, (128, 18), True), (mx.float16, (64, 32), False), (mx.float32, (64, 32), True)],
)
def test_linear_attention(
    kernels: RecurrentKernels,
    dtype: mx.Dtype,
    dims: tuple[int, int],
    delta_rule: bool,
    layout: str,
    backwards: bool,
) -> None:
    with execution(backwards=backwards):
        check_linear_attention(
            kernels,
            LAYOUTS[layout],
            heads=(2, 2),
            dims=dims,
            channel_gates=not delta_rule,
            gates_are_rates=layout == "short",
            delta_rule=delta_rule,
            is_part=True,
            dtype=dtype,
            seed=1,
        )


@pytest.mark.parametrize("is_part", [False, True])
@pytest.mark.parametrize("backwards", [False, True])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(
    ("dtype", "heads", "dims", "delta_rule"),
    [
        # As Mamba 1 has them, a head for each channel.
        (mx.bfloat16, (1, 70), (16, 1), False),
        (mx.float16, (2, 2), (8, 5), True),
        (mx.float32, (1, 130), (4, 1), False),
        (mx.float32, (1, 3), (16, 6), True),
        # Griffin's.
        (mx.bfloat16, (1, 150), (1, 1), False),
    ],
)
def test_narrow_states(
    kernels: RecurrentKernels,
    dtype: mx.Dtype,
    heads: tuple[int, int],
    dims: tuple[int, int],
    delta_rule: bool,
    layout: str,
    backwards: bool,
    is_part: bool,
) -> None:
    with execution(backwards=backwards):
        check_linear_attention(
            kernels,
            LAYOUTS[layout],
            heads=heads,
            dims=dims,
            channel_gates=not delta_rule,
            gates_are_rates=layout != "mixed",
            delta_rule=delta_rule,
            is_part=is_part,
            dtype=dtype,
            seed=1,
        )


@pytest.mark.parametrize("element", ELEMENTS.values())
def test_they_compile_for_hopper(element: str) -> None:
    compile_kernel("causal_conv", "causal_conv", element, "Conv", 256, "sm_90a", False)
    for dim in GPU_HEAD_DIMS:
        name = "linear_attention" if dim >= 32 else "narrow_linear_attention"
        for seqs, aligned in ((0, False),) if dim >= 32 else ((1, False), (4, False), (4, True)):
            resources = compile_kernel(
                name, name, element, "LinearAttention", 128, "sm_90a", aligned, sizes=(dim, seqs)
            )
            assert resources.spilled_bytes <= 128
