"""Streams whose tokens are drawn with ``top_p`` and penalties, against greedy ones.

``python -m ops.bench.serve.drawn [--shape NAME] [--streams N] [--output-len N] [--rounds N]``.
Starts an engine with random weights and a gateway. Both kinds take turns, with as long prompts.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Mapping, Sequence

import uvloop
from tqdm import tqdm

from ops.bench.engine.shapes import SHAPES
from ops.bench.serve.errors import LoadError
from ops.bench.serve.lengths import Fixed
from ops.bench.serve.load import Load
from ops.bench.serve.local import add_shape, checkpoint, served
from ops.bench.serve.result import Result, Spread
from ops.bench.serve.run import run_load
from ops.bench.serve.target import Sampling, Target
from ops.bench.serve.workload import Requests
from ops.bench.serve.writing import TokenWriter, Writer
from ops.bench.timing import markdown_table

GREEDY, DRAWN = "greedy", "drawn"
WAYS: Mapping[str, Sampling] = {
    GREEDY: Sampling(),
    DRAWN: Sampling(1.0, top_p=0.9, presence_penalty=0.5, frequency_penalty=0.5, seed=0),
}
Results = Mapping[str, Sequence[Result]]
"""By way, one a round."""


async def measure(
    target: Target, writer: Writer, *, streams: int, input_len: int, output_len: int, rounds: int
) -> Results:
    """Raises ``LoadError`` if an answer failed."""
    results: dict[str, list[Result]] = {way: [] for way in WAYS}
    with tqdm(total=rounds * len(WAYS), desc="loads", disable=None) as progress:
        for number in range(rounds):
            requests = Requests(Fixed(input_len), Fixed(output_len))
            for way in list(WAYS)[:: 1 if number % 2 == 0 else -1]:
                # Others each time, which the prefix cache does not know.
                seed = 2 * number + (way == DRAWN)
                load = Load(
                    requests.conversations(streams, writer, seed),
                    sampling=WAYS[way],
                    warm_up=Requests(Fixed(input_len), Fixed(8)).conversations(
                        streams, writer, 1000 + seed
                    ),
                )
                result = await run_load(target, load)
                if result.num_failed:
                    raise LoadError(next(iter(result.faults), "a request was refused"))
                results[way].append(result)
                progress.update()
    return results


def report(results: Results) -> str:
    """Each round's two are held against each other, since a machine is not always as fast."""

    def row(way: str) -> tuple[str, ...]:
        rates = [one.output_tokens_per_second for one in results[way]]
        pairs = zip(results[way], results[GREEDY], strict=True)
        ratio = statistics.median(
            own.output_tokens_per_second / greedy.output_tokens_per_second for own, greedy in pairs
        )
        firsts, gaps = (
            Spread.of([time for one in results[way] for answer in one.good for time in of(answer)])
            for of in (lambda a: [a.time_to_first_token], lambda a: a.inter_token_latencies)
        )
        times = (firsts.median, firsts.p99, gaps.median, gaps.p99)
        return (
            way,
            f"{statistics.median(rates):.1f}",
            f"{ratio:.0%}",
            *(f"{1e3 * time:.1f}" for time in times),
        )

    columns = ("", "output tok/s", "of greedy", "TTFT p50, ms", "p99", "ITL p50, ms", "p99")
    return markdown_table(columns, [row(way) for way in WAYS]) + "\n"


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m ops.bench.serve.drawn",
        description=__doc__,
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add_shape(parser)
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--input-len", type=int, default=64)
    parser.add_argument("--output-len", type=int, default=400)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args(arguments)
    shape = SHAPES[options.shape]
    context = options.input_len + options.output_len
    try:
        with (
            checkpoint(shape, options.bits) as model,
            served(model, streams=options.streams, context=context) as target,
        ):
            results = uvloop.run(
                measure(
                    target,
                    TokenWriter(shape.vocab_size),
                    streams=options.streams,
                    input_len=options.input_len,
                    output_len=options.output_len,
                    rounds=options.rounds,
                )
            )
    except (ValueError, LoadError) as error:
        sys.stderr.write(f"{error}\n")
        return 2
    sys.stdout.write(report(results))
    return 0


if __name__ == "__main__":
    sys.exit(main())
