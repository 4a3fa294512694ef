"""The CUDA kernel that fills in drawn tokens: it compiles, and on the emulator it does what MLX's
operators do."""

from __future__ import annotations

from collections.abc import Iterator

import mlx.core as mx
import pytest
from hypothesis import given

from backend_metal.device import REFERENCE
from tests.cuda.on_cpu.extension import execution, operators
from tests.cuda.on_cpu.nvrtc import compile_kernel
from tests.support.backend_metal.pending_cases import Case, cases, check
from tests.support.fuzzing import fuzz


@pytest.fixture(autouse=True)
def on_the_emulator() -> Iterator[None]:
    # MLX's buffers then start where the stand-in expects them.
    with mx.stream(mx.cpu):
        yield


def test_it_is_one_launch() -> None:
    ids, drawn = mx.array([5, -1, 7, -3], mx.int32), mx.array([10, 11, 12], mx.int32)
    mx.eval(ids, drawn)
    operators().take_nodes()
    with execution():
        assert operators().fill_in_tokens(ids, drawn).tolist() == [5, 10, 7, 12]
    assert [name for name, *_ in operators().take_nodes()] == ["fill_in_tokens_int"]


def test_of_no_tokens_there_is_none() -> None:
    nothing = mx.zeros(0, mx.int32)
    operators().take_nodes()
    with execution():
        assert operators().fill_in_tokens(nothing, nothing).tolist() == []
    assert operators().take_nodes() == []


def test_other_arrays_are_refused() -> None:
    ids = mx.zeros(3, mx.int32)
    for wrong in (ids.astype(mx.uint32), ids[None], mx.zeros(3)):
        for arguments in ((ids, wrong), (wrong, ids)):
            with pytest.raises(ValueError, match="int32 of one dimension"):
                operators().fill_in_tokens(*arguments)


@fuzz(100)
@given(case=cases)
def test_any_step_is_filled_in(case: Case) -> None:
    with execution(backwards=case.seed % 2 == 1):
        check(operators().fill_in_tokens, case)


@fuzz(50)
@given(case=cases)
def test_mlxs_operators_do_the_same(case: Case) -> None:
    check(REFERENCE.fill_in, case)


@pytest.mark.parametrize("architecture", ["sm_80", "sm_90a"])
def test_it_compiles(architecture: str) -> None:
    resources = compile_kernel(
        "fill_in_tokens", "fill_in_tokens", "int", "FillInTokens", 128, architecture, False
    )
    assert resources.spilled_bytes == 0
    assert resources.registers <= 32
