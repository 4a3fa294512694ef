"""Mistakes put into copies of the shipped shaders, and steps that must meet them.

``SHADER_BUGS`` are the mistakes; ``first_catch`` says what finds one. Each replaces a text that
occurs exactly once in its file, so that a shader that has changed asks for a new look.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import mlx.core as mx
import numpy as np

from backend_metal import _native
from backend_metal.devices.base import RecurrentKernels
from backend_metal.engine.sampling.kernel import KernelDraw
from deployments.backend import SamplingParams
from tests.metal_on_cpu import host, operators
from tests.metal_on_cpu.host.build import SHADERS
from tests.metal_on_cpu.parity import check
from tests.support.backend_metal.draw_oracle import Case, check_many
from tests.support.backend_metal.draw_oracle import check as check_draws
from tests.support.backend_metal.native_cases import as_numpy, make_case
from tests.support.backend_metal.packed_step import relative_rms
from tests.support.backend_metal.recurrent_cases import check_linear_attention
from tests.support.backend_metal.recurrent_oracle import Layout


@dataclass(frozen=True)
class Bug:
    """``new`` instead of ``old`` in ``file``; ``step`` is one of STEPS that meets it.

    ``caught_by``: "compiler" (it is no Metal), "emulator" (the kernel is stopped) or "numbers" (a
    result or a count of bytes differs).
    """

    name: str
    file: str
    old: str
    new: str
    step: str
    caught_by: str

    def __str__(self) -> str:
        return self.name


@contextmanager
def injected(file: str, old: str, new: str, folder: Path) -> Iterator[None]:
    """Within it kernels are compiled from a copy of the shaders in ``folder``, ``old`` replaced."""
    source = (SHADERS / file).read_text()
    if source.count(old) != 1:
        raise ValueError(f"{file} has {source.count(old)} places like {old!r}, not 1")
    with replaced(file, source.replace(old, new), folder):
        yield


@contextmanager
def replaced(file: str, text: str, folder: Path) -> Iterator[None]:
    """Within it kernels are compiled from a copy of the shaders whose ``file`` is ``text``."""
    shutil.copytree(SHADERS, folder, dirs_exist_ok=True)
    (folder / file).write_text(text)
    with host.shaders(folder):
        yield


def _step(**arguments: object) -> Callable[[], None]:
    options: dict[str, object] = {"heads": (2, 3), "has_sinks": False, "dtype": mx.float16}
    return lambda: check(make_case(7, **(options | arguments)))


def _decode_traffic() -> None:
    _traffic(spans=[(1, 90)], window=33, most=1.1)


def _prefill_traffic() -> None:
    _traffic(spans=[(8, 1000)], window=64, most=1.1)


def _traffic(*, spans: list[tuple[int, int]], window: int | None, most: float) -> None:
    case = make_case(3, heads=(1, 4), has_sinks=False, dtype=mx.float16, spans=spans, window=window)
    operators.scatter_paged_attention(**case.mlx(), **case.mlx_options())
    assert operators.last_launch().kv_read_amplification <= most


def _one_buffer() -> None:
    case = make_case(4, heads=(2, 2), has_sinks=False, dtype=mx.float16, spans=[(1, 40), (5, 20)])
    check(case, layout="one buffer")


def _packed_keys() -> None:
    """Rows of other strides, which are packed one after another into one array first."""
    case = make_case(6, heads=(2, 2), has_sinks=False, dtype=mx.float16, spans=[(1, 40), (5, 20)])
    arrays = case.mlx()
    scattered = {
        name: mx.contiguous(arrays[name].swapaxes(0, -1)).swapaxes(0, -1) for name in ("q", "k")
    }
    check(case, **scattered)


def _with_and_without_softcap() -> None:
    """Two pipelines of one library, that differ in a function constant alone."""
    _step(spans=[(1, 40)])()
    _step(spans=[(1, 40)], softcap=2.0, magnitude=8.0)()


def _unaligned() -> None:
    """Keys and values that start 2 bytes past a multiple of 16."""
    case = make_case(5, heads=(1, 2), has_sinks=False, dtype=mx.float16, spans=[(1, 40), (5, 20)])
    arrays = case.mlx()
    shifted = {
        name: mx.concatenate([arrays[name][..., :1], arrays[name]], axis=-1)[..., 1:]
        for name in ("k", "v", "k_cache", "v_cache")
    }
    check(case, **shifted)


def _every_slot() -> None:
    """All slots of two blocks are written, the first one too."""
    rng = np.random.default_rng(1)
    k, v = (mx.array(rng.standard_normal((16, 2, 64)), mx.float16) for _ in range(2))
    caches = (mx.zeros((2, 8, 2, 64), mx.float16) for _ in range(2))
    written = operators.reshape_and_cache(k, v, *caches, mx.arange(16, dtype=mx.int32))
    for cache, rows in zip(written, (k, v), strict=True):
        np.testing.assert_array_equal(as_numpy(cache).reshape(16, 2, 64), as_numpy(rows))


def _far_blocks() -> None:
    """The third block is further from the first than an int counts; few pages are touched."""
    rng = np.random.default_rng(2)
    far = _native.testing.uninitialized([4, 2**15, 2**9, 72], mx.float16)[..., 4:68]
    k_cache, v_cache = far[:, :8, :1], far[:, 8:16, 5:6]
    k, v, q = (mx.array(rng.standard_normal((8, heads, 64)), mx.float16) for heads in (1, 1, 2))
    slots = mx.arange(16, 24, dtype=mx.int32)
    k_cache, v_cache = operators.reshape_and_cache(k, v, k_cache, v_cache, slots)
    out = operators.paged_attention(
        q[:1],
        k_cache,
        v_cache,
        mx.array([[2]], mx.int32),
        mx.array([8], mx.int32),
        mx.array([0, 1], mx.int32),
        scale=0.125,
    )
    scores = q[0].astype(mx.float32) @ k[:, 0].astype(mx.float32).T * 0.125
    weights = mx.softmax(scores, axis=-1)
    expected = as_numpy(weights @ v[:, 0].astype(mx.float32))
    assert relative_rms(as_numpy(out)[0], expected) <= 1e-3


def _linear_attention(heads: tuple[int, int], dims: tuple[int, int]) -> None:
    module = host.extension()
    for delta_rule in (True, False):
        check_linear_attention(
            RecurrentKernels(module.causal_conv, module.linear_attention),
            Layout((1, 5, 1), (3, 8, -1), (3, 1, 2)),
            heads=heads,
            dims=dims,
            channel_gates=True,
            gates_are_rates=not delta_rule,
            delta_rule=delta_rule,
            is_part=True,
            dtype=mx.float32,
            seed=1,
        )


# A row without keys, one whose tokens are all new, one of each kernel, and one that writes nothing.
_MIXED = [(1, 70), (17, 60), (0, 5), (1, 0), (4, -2), (5, 0)]


def _draw() -> None:
    kernel = KernelDraw(host.extension().draw_tokens, any_float=True)
    params = [
        SamplingParams(),
        SamplingParams(top_k=40, top_p=0.9),
        SamplingParams(top_p=0.9),
        SamplingParams(min_p=0.1),
    ]
    check_draws(kernel, Case(params, 9000, [1, 2], 1, 0, 0.5, ties=True, dtype=mx.bfloat16))


def _draw_of_a_large_vocabulary() -> None:
    check_many(KernelDraw(host.extension().draw_tokens, any_float=True), mx.bfloat16)


STEPS: dict[str, Callable[[], None]] = {
    "decode": _step(spans=[(1, 90), (1, 0), (1, 33)]),
    "decode, many heads": _step(spans=[(1, 40)], heads=(1, 12)),
    "decode, wide": _step(spans=[(1, 40)], heads=(1, 2), head_dims=(576, 512)),
    "decode, widest": _step(spans=[(1, 40)], heads=(1, 12), head_dims=(512, 512)),
    "decode, splits": _step(spans=[(1, 1500), (1, 800), (1, 40)], heads=(1, 2)),
    "decode, window": _step(spans=[(1, 90), (1, 300)], window=33),
    "decode, sinks": _step(spans=[(1, 90)], has_sinks=True),
    "decode, softcap": _step(spans=[(1, 90)], softcap=2.0, magnitude=8.0),
    "prefill": _step(spans=[(40, 30), (5, 0)]),
    "prefill, wide": _step(spans=[(9, 40)], heads=(1, 2), head_dims=(192, 192)),
    "prefill, widest": _step(spans=[(9, 40)], heads=(1, 2), head_dims=(512, 512)),
    "prefill, splits": _step(spans=[(3, 1500)], heads=(1, 2)),
    "prefill, window": _step(spans=[(40, 60)], window=17),
    "prefill, sinks": _step(spans=[(20, 10)], has_sinks=True),
    "mixed": _step(spans=_MIXED, has_sinks=True),
    "skipped slots": _step(spans=_MIXED, skipped_slots=True),
    "rows without keys": _step(spans=[(4, -2), (1, -1), (1, 5)], has_sinks=True),
    "rows without keys or sinks": _step(spans=[(4, -2), (1, -1), (1, 5)]),
    "every slot": _every_slot,
    "far blocks": _far_blocks,
    "one buffer": _one_buffer,
    "packed keys": _packed_keys,
    "with and without softcap": _with_and_without_softcap,
    "unaligned": _unaligned,
    # Rows that don't fill the last threadgroup.
    "linear attention": lambda: _linear_attention((1, 2), (64, 18)),
    "narrow states": lambda: _linear_attention((1, 70), (16, 1)),
    "draw": _draw,
    "draw, large vocabulary": _draw_of_a_large_vocabulary,
    "decode traffic": _decode_traffic,
    "prefill traffic": _prefill_traffic,
}


# They count loads themselves, or have more memory than can be counted.
_NOT_TRACED = ("decode traffic", "prefill traffic", "far blocks")


# What the emulator says of a kernel that it has stopped, or whose buffers it looked at after it.
_STOPPED = re.compile(r": threadgroup \(\d+, \d+, \d+\) thread \d+ |: illegal write: buffer")


def first_catch(step: str) -> str | None:
    """What finds a mistake in the shaders in use: see ``Bug.caught_by``; None if nothing does.

    Runs ``step`` on several schedules, with unmapped memory behind and before each buffer, and with
    every load and store checked.
    """
    runs = (
        {"seed": 0},
        {"seed": 1, "guard_at_start": True, "reverse_unordered": True},
        {"seed": 2, "reverse_unordered": True},
        {"track_loads": True},
    )
    host.extension()
    for settings in runs:
        if settings.get("track_loads") and step in _NOT_TRACED:
            continue
        with host.execution(**settings):
            try:
                STEPS[step]()
            except AssertionError:
                return "numbers"
            except RuntimeError as error:
                if "Unable to build metal library" in str(error):
                    return "compiler"
                if not _STOPPED.search(str(error)):
                    raise
                return "emulator"
            finally:
                # What a stopped kernel left behind is not the next call's.
                mx.synchronize()
                host.extension().end_encoding()
                host.extension().take_launches()
    return None
