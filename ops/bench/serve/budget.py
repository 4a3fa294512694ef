"""What the token budget of a step trades: streams' latencies, a long prompt's, and throughput.

``python -m ops.bench.serve.budget [--shape NAME] [--budgets N ...] [--out FOLDER]``. For each
budget an engine with random weights and a gateway are started. Long prompts are sent alone and
beside streams, as in ``ops.bench.serve.beside``; then as many requests as there are streams, with
prompts and answers of the shape's workload, for throughput. The table is printed, with how many
prompts came while all streams decoded: where these are few, streams want more ``--output-len``.
``budget.svg`` has the streams' slowest tokens over the prompt's first, a point for each budget.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import uvloop
from tqdm import tqdm

from ops.bench.compare.chart import Point, draw
from ops.bench.engine.shapes import SHAPES, Shape
from ops.bench.serve.beside import Beside, measure
from ops.bench.serve.errors import LoadError
from ops.bench.serve.lengths import Fixed, Uniform
from ops.bench.serve.load import Load
from ops.bench.serve.local import add_shape, checkpoint, served
from ops.bench.serve.result import Result
from ops.bench.serve.run import run_load
from ops.bench.serve.target import Target
from ops.bench.serve.workload import Requests
from ops.bench.serve.writing import TokenWriter
from ops.bench.timing import markdown_table

BUDGETS = (64, 128, 256, 512, 1024, 2048, 4096)
CHART = "budget.svg"


@dataclass(frozen=True)
class Measured:
    """With one ``budget``."""

    budget: int
    beside: Beside
    crowd: Result
    """Of requests that all came at once."""

    def row(self) -> tuple[str, ...]:
        (gap_alone, gap_beside), (alone, with_others) = (
            self.beside.latencies,
            self.beside.first_tokens,
        )
        times = (
            gap_alone.p99,
            gap_beside.p99,
            gap_beside.p99 - gap_alone.p99,
            self.beside.chunk_s,
            alone.median,
            with_others.median,
        )
        return (
            str(self.budget),
            *(f"{1e3 * time:.0f}" for time in times),
            f"{with_others.median / alone.median:.2f}",
            str(len(self.beside.prompts_beside)),
            f"{self.crowd.output_tokens_per_second:.1f}",
            f"{self.crowd.total_tokens_per_second:.0f}",
        )


COLUMNS = (
    "budget",
    "ITL P99, ms",
    "beside a prompt",
    "more",
    "a chunk alone",
    "TTFT, ms",
    "beside streams",
    "times",
    "prompts",
    "output tok/s",
    "all tok/s",
)


def report(measured: Sequence[Measured]) -> str:
    return markdown_table(COLUMNS, [one.row() for one in measured]) + "\n"


def chart(measured: Sequence[Measured]) -> str:
    """As SVG. Raises ``ValueError`` if there is nothing to draw."""
    points = [
        Point(one.beside.first_tokens[1].median, 1e3 * one.beside.latencies[1].p99, str(one.budget))
        for one in measured
    ]
    panels = {"token budget of a step": {"budgets": points}}
    return draw(panels, "TTFT of the long prompt, s", "ITL P99 of the streams, ms")


async def crowd(target: Target, shape: Shape, writer: TokenWriter, count: int) -> Result:
    lengths = Uniform(shape.workload.shortest, shape.workload.longest)
    requests = Requests(lengths, Fixed(shape.workload.output_tokens))
    load = Load(requests.conversations(count, writer, seed=1))
    result = await run_load(target, load)
    if result.num_failed:
        raise LoadError(next(iter(result.faults), "a request was refused"))
    return result


async def measure_budget(
    target: Target, shape: Shape, budget: int, options: argparse.Namespace
) -> Measured:
    writer = TokenWriter(shape.vocab_size)
    beside = await measure(
        target,
        writer,
        streams=options.streams,
        output_len=options.output_len,
        prompts=options.prompts,
        prompt_len=options.prompt_len,
        chunk=budget,
    )
    return Measured(budget, beside, await crowd(target, shape, writer, options.streams))


def run(options: argparse.Namespace) -> list[Measured]:
    shape = SHAPES[options.shape]
    context = max(options.prompt_len, options.output_len) + 64
    measured = []
    with checkpoint(shape, options.bits) as model:
        for budget in tqdm(options.budgets, desc="budgets", disable=None):
            # One more place, for the prompt.
            places = options.streams + 1
            with served(model, streams=places, context=context, budget=budget) as target:
                measured.append(uvloop.run(measure_budget(target, shape, budget, options)))
    return measured


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m ops.bench.serve.budget",
        description=__doc__,
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add_shape(parser)
    parser.add_argument("--budgets", type=int, nargs="+", default=list(BUDGETS))
    parser.add_argument("--streams", type=int, default=16)
    parser.add_argument("--output-len", type=int, default=512, help="tokens of a stream")
    parser.add_argument("--prompts", type=int, default=3)
    parser.add_argument("--prompt-len", type=int, default=4096)
    parser.add_argument("--out", type=Path, default=Path(), help="folder for the chart")
    options = parser.parse_args(arguments)
    try:
        measured = run(options)
    except (ValueError, LoadError) as error:
        sys.stderr.write(f"{error}\n")
        return 2
    sys.stdout.write(report(measured))
    (options.out / CHART).write_text(chart(measured))
    return 0


if __name__ == "__main__":
    sys.exit(main())
