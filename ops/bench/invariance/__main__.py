"""How often a request's tokens differ between alone and in a crowd, and what it costs that none do.

``python -m ops.bench.invariance [--shape NAME] [--bits N] [--layers N] [--trials N] [--others N]
[--budget N] [--num-kv-blocks N]``. In each trial a random prompt is continued greedily and another
with a seed, first each alone, then both among others of random lengths. Where the device can be
``deterministic``, an engine that is does the same in turn. Random weights have flat distributions,
which tell small differences sooner than a trained model's; logprobs tell them sooner than tokens. A
small budget cuts prompts into chunks in a crowd, and few blocks have some of it preempted.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

# Before mlx, so that MLX finds the BLAS.
from backend_metal import LLM, Completion, SamplingParams  # isort: skip
import numpy as np
from tqdm import tqdm

from backend_metal.device import select_device
from ops.bench.engine import random_model
from ops.bench.engine.shapes import SHAPES
from ops.bench.timing import markdown_table

LONGEST_PROMPT = 128
WAYS = ("greedy", "seeded")


@dataclass(frozen=True)
class Request:
    prompt: list[int]
    sampling: SamplingParams


@dataclass
class Count:
    """Of one way to draw."""

    trials: int = 0
    differing: int = 0
    differing_bits: int = 0
    """Answers with a token whose logprob is not the same to the last bit."""
    tokens_alike: int = 0
    """Before the first one that differs, or all."""

    def add(self, alone: Completion, among: Completion) -> None:
        self.trials += 1
        pairs = zip(alone.token_ids, among.token_ids, strict=True)
        alike = next(
            (index for index, pair in enumerate(pairs) if len({*pair}) > 1), len(alone.token_ids)
        )
        self.differing += alike < len(alone.token_ids)
        self.tokens_alike += alike
        logprobs = ([one.logprob for one in answer.logprobs] for answer in (alone, among))
        self.differing_bits += len({*map(tuple, logprobs)}) > 1


@dataclass
class Measured:
    """Of one engine."""

    counts: Mapping[str, Count] = field(default_factory=lambda: {way: Count() for way in WAYS})
    crowd_tokens: int = 0
    crowd_s: float = 0.0


def request(random: np.random.Generator, way: str, max_tokens: int, vocab_size: int) -> Request:
    length = int(random.integers(1, LONGEST_PROMPT + 1))
    sampling = SamplingParams(
        temperature=0.0 if way == "greedy" else 1.0,
        seed=int(random.integers(1 << 31)),
        max_tokens=max_tokens,
        ignore_eos=True,
        logprobs=0,
    )
    return Request(random.integers(0, vocab_size, length).tolist(), sampling)


def answers(llm: LLM, requests: Sequence[Request]) -> list[Completion]:
    # What one finds in the cache of another is computed in another company.
    llm.reset_prefix_cache()
    prompts, sampling = [one.prompt for one in requests], [one.sampling for one in requests]
    return llm.generate(prompts, sampling, show_progress=False)


def measure(
    llms: Mapping[str, LLM], trials: int, others: int, max_tokens: int
) -> dict[str, Measured]:
    """``llms``: engines by name; all are asked the same."""
    random = np.random.default_rng(0)
    measured = {name: Measured() for name in llms}
    for _ in tqdm(range(trials), desc="trials", disable=None):
        vocab_size = next(iter(llms.values())).engine.vocab_size
        asked = [request(random, way, max_tokens, vocab_size) for way in WAYS]
        crowd = [
            request(
                random,
                str(random.choice(WAYS)),
                int(random.integers(1, 2 * max_tokens)),
                vocab_size,
            )
            for _ in range(others)
        ]
        at = sorted(random.choice(others + len(WAYS), len(WAYS), replace=False).tolist())
        for place, one in zip(at, asked, strict=True):
            crowd.insert(place, one)
        for name, llm in llms.items():
            alone = [answers(llm, [one])[0] for one in asked]
            started = time.perf_counter()
            among = answers(llm, crowd)
            measured[name].crowd_s += time.perf_counter() - started
            measured[name].crowd_tokens += sum(len(one.token_ids) for one in among)
            for way, place, wanted in zip(WAYS, at, alone, strict=True):
                measured[name].counts[way].add(wanted, among[place])
    return measured


def report(measured: Mapping[str, Measured], others: int, max_tokens: int) -> str:
    rows = [
        (
            f"{name}, {way}",
            str(count.trials),
            str(count.differing),
            str(count.differing_bits),
            f"{count.tokens_alike / max(count.trials, 1):.1f} of {max_tokens}",
            f"{one.crowd_tokens / one.crowd_s:.1f}",
        )
        for name, one in measured.items()
        for way, count in one.counts.items()
    ]
    columns = ("trials", "tokens differ", "any bit differs", "tokens alike", "crowd, tok/s")
    return markdown_table((f"among {others} others", *columns), rows)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m ops.bench.invariance", description=__doc__)
    parser.add_argument("--shape", choices=sorted(SHAPES), default="100m")
    parser.add_argument("--bits", type=int, help="of quantized weights; by default none are")
    parser.add_argument("--layers", type=int, help="fewer than the shape's, to be done sooner")
    parser.add_argument("--trials", type=int, default=200)
    parser.add_argument("--others", type=int, default=30)
    parser.add_argument("--max-tokens", type=int, default=16)
    parser.add_argument("--budget", type=int, help="max_num_batched_tokens")
    parser.add_argument("--num-kv-blocks", type=int, default=2048)
    parser.add_argument("--device", default="auto", help="as in EngineConfig")
    parser.add_argument("--dtype", default="auto", help="as in EngineConfig")
    arguments = parser.parse_args()
    shape = SHAPES[arguments.shape]
    ways = {"as it is": False}
    own = select_device(arguments.device).deterministic()
    # CUDA's has no quantized matrices.
    if own is not None and (arguments.bits is None or own.multiply_alike is None):
        ways["deterministic"] = True
    with tempfile.TemporaryDirectory() as directory:
        layers = arguments.layers or shape.config["num_hidden_layers"]
        config = {**shape.config, "num_hidden_layers": layers}
        random_model.save(Path(directory), config, dtype=shape.dtype, bits=arguments.bits)
        llms = {
            name: LLM(
                directory,
                max_num_batched_tokens=arguments.budget,
                num_kv_blocks=arguments.num_kv_blocks,
                device=arguments.device,
                dtype=arguments.dtype,
                deterministic=deterministic,
            )
            for name, deterministic in ways.items()
        }
        measured = measure(llms, arguments.trials, arguments.others, arguments.max_tokens)
    sys.stdout.write(f"{report(measured, arguments.others, arguments.max_tokens)}\n")


if __name__ == "__main__":
    main()
