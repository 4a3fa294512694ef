"""Decoding in a process of its own: ``python -m ops.bench.metal.decode MODEL [options]``.

What MLX reads once, when it first uses a GPU, can only be compared between processes. Prints one
line of JSON, a ``Decoding``.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Literal

# Before mlx, so that MLX finds the BLAS.
from backend_metal import LLM, SamplingParams  # isort: skip

from backend_metal.engine.loop import TOUCH_INTERVAL_S
from ops.bench.timing import seconds

IDLE_S = (0.0, 2.0, 12.0, 60.0)
PROMPT_TOKENS = 16
BLOCK_SIZE: Literal[16] = 16


@dataclass(frozen=True)
class Decoding:
    tokens_per_second: float
    """Of all sequences together, in the median round."""
    host_ms: dict[str, float]
    """Of a step, by part; ``StepClock`` says what they are."""
    first_token_ms: dict[str, float]
    """Of one short prompt, by seconds for which the device has been idle."""


def measure(
    model: str,
    *,
    at_once: int,
    output_tokens: int,
    rounds: int,
    idle_s: Sequence[float],
    small_pool: bool = False,
    wired_memory: Literal["auto", "off"] = "auto",
    keep_resident: bool = False,
) -> Decoding:
    blocks_each = -(-(PROMPT_TOKENS + output_tokens) // BLOCK_SIZE)
    llm = LLM(
        model,
        max_num_seqs=at_once,
        # Those of a step that is to be dropped included.
        num_kv_blocks=at_once * (blocks_each + 1) if small_pool else None,
        block_size=BLOCK_SIZE,
        prefix_caching=False,
        wired_memory=wired_memory,
    )
    vocab_size = llm.engine.vocab_size
    prompts = [
        [(31 * row + 7 * i) % vocab_size for i in range(PROMPT_TOKENS)] for row in range(at_once)
    ]

    def generate(tokens: int, count: int = at_once) -> None:
        sampling = SamplingParams(temperature=0.0, max_tokens=tokens, ignore_eos=True)
        llm.generate(prompts[:count], sampling, show_progress=False)

    generate(output_tokens)
    before = llm.stats()
    taken = [seconds(lambda: generate(output_tokens)) for _ in range(rounds)]
    after = llm.stats()
    steps = after.steps - before.steps
    touch = llm.engine.resident.touch if keep_resident and llm.engine.resident else None
    return Decoding(
        tokens_per_second=at_once * output_tokens / statistics.median(taken),
        host_ms={
            part: 1000 * (histogram.sum - before.step_host[part].sum) / steps
            for part, histogram in after.step_host.items()
        },
        first_token_ms={
            f"{idle:g}": 1000 * _after(idle, lambda: generate(1, 1), touch) for idle in idle_s
        },
    )


def _after(idle_s: float, run: Callable[[], None], touch: Callable[[], None] | None) -> float:
    """Seconds that ``run`` takes when the device has been idle but for a ``touch`` a second."""
    over = time.monotonic() + idle_s
    while (left := over - time.monotonic()) > 0:
        time.sleep(min(left, TOUCH_INTERVAL_S) if touch else left)
        if touch:
            touch()
    return seconds(run)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m ops.bench.metal.decode", description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--at-once", type=int, default=16)
    parser.add_argument("--output-tokens", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--idle-s", type=float, nargs="+", default=IDLE_S)
    parser.add_argument("--small-pool", action="store_true")
    parser.add_argument("--wired-memory", choices=("auto", "off"), default="auto")
    parser.add_argument("--keep-resident", action="store_true")
    sys.stdout.write(json.dumps(asdict(measure(**vars(parser.parse_args())))) + "\n")


if __name__ == "__main__":
    main()
