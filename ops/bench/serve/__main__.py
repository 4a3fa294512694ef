"""A load on any server that speaks OpenAI's API: throughput and latencies of its streams.

Requests arrive by a Poisson clock (``--rate``), as soon as others have ended (``--concurrency``),
or both. Each answer is checked: it is streamed to its end, has as many tokens as were asked for
and as its usage says, and with ``--repeats`` is the same again. What Pomona's metrics say is
compared with what was measured. The status is 1 if anything was wrong.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

import uvloop
from tqdm import tqdm

from ops.bench.serve import options as chosen
from ops.bench.serve.agreement import agreement_table, figures
from ops.bench.serve.answer import Answer
from ops.bench.serve.detect import served_models, server_of
from ops.bench.serve.errors import LoadError
from ops.bench.serve.load import Load
from ops.bench.serve.metrics import find_metrics
from ops.bench.serve.report import as_json, as_markdown, as_text, faults_as_text
from ops.bench.serve.result import Result
from ops.bench.serve.run import run_load
from ops.bench.serve.target import SERVERS, Target


async def find_target(options: argparse.Namespace) -> Target:
    """Raises ``LoadError`` if it lists no models where something is to be learnt from them."""
    target = Target(
        options.url,
        options.model or "",
        options.api,
        api_key=options.api_key or os.environ.get("OPENAI_API_KEY", ""),
    )
    model, server = options.model, SERVERS.get(options.server)
    if not (model and server):
        models = await served_models(target.url, target.headers)
        model = model or (models[0]["id"] if models else "")
        server = server or server_of(models)
    metrics = () if options.no_metrics else await find_metrics(target.url, model)
    return Target(target.url, model, target.api, server, target.api_key, metrics)


def planned(options: argparse.Namespace) -> Load:
    workload, count = chosen.workload(options)
    writer = chosen.writer(options)
    return Load(
        workload.conversations(count, writer, options.seed),
        options.concurrency,
        options.rate,
        chosen.sampling(options),
        # None of what is measured, which a prefix cache would know.
        workload.conversations(options.warm_up, writer, options.seed + 1),
        options.repeats,
        seed=options.seed,
    )


async def measure(options: argparse.Namespace) -> Result:
    target, load = await find_target(options), planned(options)
    with tqdm(total=load.num_requests, desc="requests", disable=None) as progress:

        def count(answer: Answer) -> None:
            progress.update()

        return await run_load(target, load, on_answer=count)


def tell(result: Result, options: argparse.Namespace) -> int:
    """The exit status."""
    compared = figures(result, options.tolerance)
    sys.stdout.write(as_text(result) + "\n")
    if compared:
        sys.stdout.write("\n" + agreement_table(compared))
    else:
        sys.stdout.write("\nThe server's own figures are not known, and not compared.\n")
    sys.stderr.write(faults_as_text(result))
    if options.json:
        Path(options.json).write_text(as_json(result, compared))
    if options.markdown:
        Path(options.markdown).write_text(as_markdown(result, compared))
    refused = result.num_refused and not options.allow_refusals
    return int(bool(result.faults or refused or not all(one.agrees for one in compared)))


def main(arguments: list[str] | None = None) -> int:
    options = chosen.parser(__doc__).parse_args(arguments)
    try:
        result = uvloop.run(measure(options))
    except (ValueError, LoadError) as error:
        sys.stderr.write(f"{error}\n")
        return 2
    return tell(result, options)


if __name__ == "__main__":
    sys.exit(main())
