"""An engine over the checking stub model, with a real tokenizer of one token a byte."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from transformers import AutoTokenizer

from backend_metal.engine.engine import Engine
from backend_metal.engine.grammar.matcher_pool import MatcherPool
from backend_metal.engine.schedule.snapshot_borders import SnapshotPolicy
from backend_metal.engine.schedule.state_slots import StateSlots
from deployments.backend import Delta, EngineConfig, GenerationRequest, Prefill, SamplingParams
from tests.support.backend_metal import tiny_models
from tests.support.backend_metal.block_groups import BLOCK_SIZE as BLOCK_SIZE
from tests.support.backend_metal.block_groups import make_groups
from tests.support.backend_metal.stub_runner import StubRunner

VOCAB_SIZE = 50


def byte_tokenizer(directory: Path) -> Any:
    tiny_models.save_tokenizer(directory)
    return AutoTokenizer.from_pretrained(directory)


def make_engine(
    tokenizer: Any,
    *,
    num_blocks: int = 64,
    windows: dict[int, int] | None = None,
    max_num_batched_tokens: int = 512,
    max_model_len: int = 200,
    eos_token_ids: frozenset[int] = frozenset(),
    num_state_slots: int = 0,
    snapshots: SnapshotPolicy | None = None,
    **settings: Any,
) -> tuple[Engine, StubRunner]:
    """``windows``: as ``make_groups`` has it. ``num_state_slots``: for a model with recurrent
    layers."""
    groups = make_groups(num_blocks, windows)
    runner = StubRunner(groups, VOCAB_SIZE, num_state_slots)
    states = StateSlots(num_state_slots, BLOCK_SIZE, snapshots) if num_state_slots else None
    config = EngineConfig(block_size=BLOCK_SIZE, **settings)
    engine = Engine(
        config,
        runner,
        groups,
        tokenizer,
        max_num_batched_tokens=max_num_batched_tokens,
        vocab_size=VOCAB_SIZE,
        max_model_len=max_model_len,
        default_sampling=SamplingParams(),
        eos_token_ids=eos_token_ids,
        # Stand-ins for matchers have nothing that threads could move.
        matchers=MatcherPool(1),
        states=states,
    )
    return engine, runner


def request(
    request_id: str, prompt: list[int], *, n: int = 1, **sampling: Any
) -> tuple[GenerationRequest, list[int]]:
    params = SamplingParams(**{"temperature": 0.0, "max_tokens": 8, **sampling})
    return GenerationRequest(request_id, tuple(prompt), params, n=n), prompt


def run(engine: Engine) -> dict[str, list[Delta | Exception]]:
    """Step until idle, checking the books after every step; items by request."""
    items: dict[str, list[Delta | Exception]] = {}
    while engine.has_work:
        for output in engine.step():
            if not isinstance(output.item, Prefill):
                items.setdefault(output.request_id, []).append(output.item)
        engine.check_integrity()
    return items


def token_ids(items: list[Delta | Exception], index: int = 0) -> list[int]:
    deltas = [item for item in items if isinstance(item, Delta) and item.index == index]
    return [token for delta in deltas for token in delta.token_ids]
