"""A device that no file but this one knows serves models, by its own verbs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy.typing as npt
import pytest

from backend_metal import LLM, SamplingParams
from backend_metal.device import CPU, REFERENCE, Device, registered
from backend_metal.devices.base import RecurrentKernels
from tests.support.backend_metal import tiny_models

PROMPTS = [[5, 6, 7, 8, 9] * 5, [11, 12], [13]]


class Counting(Device):
    """Counts its calls, and leaves the work to the reference."""

    name = "counting"
    attention = "counted"
    mlx = mx.Device(mx.cpu)
    any_head_dim = True
    writes_in_place = False
    step_tokens = 24

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()
        self.draw_tokens = self._counted("draw_tokens", CPU.draw_tokens)
        self.recurrent = RecurrentKernels(
            self._counted("causal_conv", CPU.recurrent.causal_conv),
            self._counted("linear_attention", CPU.recurrent.linear_attention),
        )

    def scatter_paged_attention(
        self, *arguments: Any, **options: Any
    ) -> tuple[mx.array, mx.array, mx.array]:
        self.calls["scatter_paged_attention"] += 1
        return REFERENCE.scatter_paged_attention(*arguments, **options)

    def paged_attention(self, *arguments: Any, **options: Any) -> mx.array:
        self.calls["paged_attention"] += 1
        return REFERENCE.paged_attention(*arguments, **options)

    def reshape_and_cache(self, *arguments: mx.array) -> tuple[mx.array, mx.array]:
        self.calls["reshape_and_cache"] += 1
        return REFERENCE.reshape_and_cache(*arguments)

    def zeros(self, shape: tuple[int, ...], dtype: mx.Dtype) -> mx.array:
        self.calls["zeros"] += 1
        return super().zeros(shape, dtype)

    def make_array(self, values: npt.NDArray[Any]) -> mx.array:
        self.calls["make_array"] += 1
        return super().make_array(values)

    def adapt_layers(self, layers: Sequence[nn.Module]) -> None:
        self.calls["adapt_layers"] += 1

    def _counted(self, name: str, operator: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*arguments: Any, **options: Any) -> Any:
            self.calls[name] += 1
            return operator(*arguments, **options)

        return counted


@pytest.fixture
def counting() -> Iterator[Counting]:
    previous = mx.default_device()
    device = Counting()
    with registered(device):
        yield device
    mx.set_default_device(previous)


@pytest.mark.parametrize(
    ("family", "verbs"),
    [
        ("qwen3", {"scatter_paged_attention"}),
        ("qwen3_5", {"scatter_paged_attention", "causal_conv", "linear_attention"}),
    ],
)
def test_a_fourth_device_serves(
    family: str, verbs: set[str], counting: Counting, tmp_path: Path
) -> None:
    tiny_models.save(family, tmp_path)
    greedy = SamplingParams(temperature=0.0, max_tokens=6, ignore_eos=True)
    settings: dict[str, Any] = {"max_num_seqs": 4, "num_kv_blocks": 32}

    def tokens(llm: LLM) -> list[list[int]]:
        return [one.token_ids for one in llm.generate(PROMPTS, greedy, show_progress=False)]

    expected = tokens(LLM(str(tmp_path), device="cpu", attention="reference", **settings))
    llm = LLM(str(tmp_path), device=counting.name, **settings)
    assert llm.engine.attention is not None
    assert llm.engine.attention.path == counting.attention
    launches = llm.stats().attention_launches.get(counting.attention, 0)
    before = counting.calls.copy()
    assert before.keys() >= {"zeros", "adapt_layers"}
    assert tokens(llm) == expected
    served = counting.calls - before
    assert served.keys() >= verbs | {"draw_tokens", "make_array"}
    launches = llm.stats().attention_launches[counting.attention] - launches
    assert served["scatter_paged_attention"] == launches > 0
