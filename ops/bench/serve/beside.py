"""A long prompt beside streams: what it costs them, and what they cost it.

``python -m ops.bench.serve.beside [--streams N] [--prompt-len N] [--prompts N]``. The long prompts
come one after another, first alone, then beside streams that decode; all are different. A gap
between two tokens of a stream counts as beside a prompt if it overlaps the time from that prompt's
request to its first token. What the last chunk of a prompt takes, which is the slowest, is told by
prompts that lack it.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import uvloop

from ops.bench.serve.__main__ import find_target
from ops.bench.serve.answer import Answer
from ops.bench.serve.conversation import Conversation, Turn
from ops.bench.serve.errors import LoadError
from ops.bench.serve.load import Load
from ops.bench.serve.result import Result, Spread
from ops.bench.serve.run import run_load
from ops.bench.serve.target import SERVERS, Target
from ops.bench.serve.writing import WordWriter, Writer, tokens_of
from ops.bench.timing import markdown_table

STREAM_INPUT_TOKENS = 32
PAUSE_S = 0.5
"""Before each long prompt, so that streams are seen without one, too."""


@dataclass(frozen=True)
class Beside:
    """``prompts_beside`` are those in whose time all streams decoded."""

    prompts_alone: Sequence[Answer]
    prompts_but_a_chunk: Sequence[Answer]
    """Alone, too; none where a chunk is a whole prompt."""
    prompts_beside: Sequence[Answer]
    gaps_alone: Sequence[float]
    gaps_beside: Sequence[float]

    @property
    def chunk_s(self) -> float:
        """What the last chunk of a prompt takes alone."""
        whole = _first_tokens(self.prompts_alone).median
        if not self.prompts_but_a_chunk:
            return whole
        return whole - _first_tokens(self.prompts_but_a_chunk).median

    @property
    def latencies(self) -> tuple[Spread, Spread]:
        """Between tokens, without a prompt beside them and with one."""
        return Spread.of(self.gaps_alone), Spread.of(self.gaps_beside)

    @property
    def first_tokens(self) -> tuple[Spread, Spread]:
        """Of a prompt alone and beside streams."""
        return _first_tokens(self.prompts_alone), _first_tokens(self.prompts_beside)

    def report(self) -> str:
        (gap_alone, gap_beside), (alone, beside) = self.latencies, self.first_tokens
        rows = [
            _row("ITL, median", gap_alone.median, gap_beside.median),
            _row("ITL, P99", gap_alone.p99, gap_beside.p99),
            _row("TTFT of a prompt, median", alone.median, beside.median),
            _row("its last chunk", self.chunk_s, float("nan")),
        ]
        columns = ("ms", "alone", "beside each other", "times")
        measured = f"{len(self.prompts_beside)} prompts came beside {len(self.gaps_beside)} gaps."
        return f"{markdown_table(columns, rows)}\n\n{measured}\n"


def _row(name: str, alone: float, beside: float) -> tuple[str, ...]:
    if np.isnan(beside):
        return (name, f"{1e3 * alone:.1f}", "", "")
    return (name, f"{1e3 * alone:.1f}", f"{1e3 * beside:.1f}", f"{beside / alone:.2f}")


def _first_tokens(prompts: Sequence[Answer]) -> Spread:
    return Spread.of([one.time_to_first_token for one in prompts])


def told_apart(
    alone: Result, but_a_chunk: Result | None, streams: Result, prompts: Result
) -> Beside:
    """Raises ``LoadError`` if an answer failed, or no prompt came while all streams decoded."""
    for result in filter(None, (alone, but_a_chunk, streams, prompts)):
        if result.num_failed:
            raise LoadError(next(iter(result.faults), "a request was refused"))
    begun = max(one.times[0] for one in streams.answers)
    ended = min(one.times[-1] for one in streams.answers)
    beside = [one for one in prompts.answers if begun <= one.sent and one.times[0] <= ended]
    if not beside:
        raise LoadError("no prompt came while all streams decoded: give them more tokens")
    apart: tuple[list[float], list[float]] = ([], [])
    for stream in streams.answers:
        for earlier, later in pairwise(stream.times):
            # Where not all streams decode, a step is a smaller one.
            if begun <= earlier and later <= ended:
                overlaps = any(
                    earlier < one.times[0] and one.sent < later for one in prompts.answers
                )
                apart[overlaps].append(later - earlier)
    shorter = () if but_a_chunk is None else but_a_chunk.answers
    return Beside(alone.answers, shorter, beside, *apart)


async def measure(
    target: Target,
    writer: Writer,
    *,
    streams: int,
    output_len: int,
    prompts: int,
    prompt_len: int,
    chunk: int,
) -> Beside:
    """``chunk``: tokens of a prompt that the server computes in one step."""
    dice = np.random.default_rng(0)

    def one_by_one(count: int, num_tokens: int = prompt_len) -> Load:
        # Two tokens: the first is what is waited for, and an answer of one would be no stream.
        turns = [Turn(writer.write(num_tokens, dice), 2, PAUSE_S) for _ in range(count)]
        return Load([Conversation((turn,)) for turn in turns], concurrency=1)

    decoding = Load(
        [
            Conversation((Turn(writer.write(STREAM_INPUT_TOKENS, dice), output_len),))
            for _ in range(streams)
        ]
    )
    await run_load(target, one_by_one(1))
    alone = await run_load(target, one_by_one(prompts))
    but_a_chunk = None
    if chunk < prompt_len:
        but_a_chunk = await run_load(target, one_by_one(prompts, prompt_len - chunk))
    decoded, beside = await asyncio.gather(
        run_load(target, decoding), run_load(target, one_by_one(prompts))
    )
    return told_apart(alone, but_a_chunk, decoded, beside)


async def run(options: argparse.Namespace) -> Beside:
    target = await find_target(options)
    return await measure(
        target,
        WordWriter(tokens_of(options.tokenizer)) if options.tokenizer else WordWriter(),
        streams=options.streams,
        output_len=options.output_len,
        prompts=options.prompts,
        prompt_len=options.prompt_len,
        chunk=options.chunk,
    )


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m ops.bench.serve.beside",
        description=__doc__,
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("--url", default="http://127.0.0.1:8000", help="what stands before /v1")
    parser.add_argument("--model", help="the first that the server lists, by default")
    parser.add_argument("--server", choices=SERVERS, help="told by its list of models")
    parser.add_argument("--api-key", default="", help="or the variable OPENAI_API_KEY")
    parser.add_argument("--tokenizer", help="a model's folder, to count the tokens of texts by")
    parser.add_argument("--streams", type=int, default=16)
    parser.add_argument("--output-len", type=int, default=512, help="tokens of a stream")
    parser.add_argument("--prompts", type=int, default=5)
    parser.add_argument("--prompt-len", type=int, default=4096)
    parser.add_argument(
        "--chunk", type=int, default=512, help="tokens that the server computes a step"
    )
    parser.set_defaults(api="completions", no_metrics=True)
    options = parser.parse_args(arguments)
    try:
        beside = uvloop.run(run(options))
    except (ValueError, LoadError) as error:
        sys.stderr.write(f"{error}\n")
        return 2
    sys.stdout.write(beside.report())
    return 0


if __name__ == "__main__":
    sys.exit(main())
