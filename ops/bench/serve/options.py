"""The command line."""

from __future__ import annotations

import argparse
import json
import math
from typing import Any, get_args

from ops.bench.serve.lengths import SHAREGPT_INPUT, SHAREGPT_OUTPUT, Lengths, parse_lengths
from ops.bench.serve.target import SERVERS, Api, Sampling
from ops.bench.serve.workload import AGENT_INPUT, AGENT_OUTPUT, Agents, Requests, Workload
from ops.bench.serve.writing import TokenWriter, WordWriter, Writer, tokens_of

LENGTHS = "512, 32-512, lognormal:MEDIAN:SIGMA:LONGEST or sharegpt"


def parser(description: str | None) -> argparse.ArgumentParser:
    options = argparse.ArgumentParser(
        prog="python -m ops.bench.serve",
        description=description,
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    target = options.add_argument_group("who is asked")
    target.add_argument("--url", default="http://127.0.0.1:8000", help="what stands before /v1")
    target.add_argument("--model", help="the first that the server lists, by default")
    target.add_argument("--api", choices=get_args(Api), default="chat")
    target.add_argument(
        "--server", choices=SERVERS, help="what else it understands; told by its list of models"
    )
    target.add_argument("--api-key", default="", help="or the variable OPENAI_API_KEY")

    load = options.add_argument_group("when")
    load.add_argument("--num-requests", type=_positive, default=100, help="or --agents")
    load.add_argument("--concurrency", type=_positive, help="most at the same time")
    load.add_argument(
        "--rate", type=_rate, default=math.inf, help="a second, by a Poisson clock, or inf"
    )
    load.add_argument("--warm-up", type=int, default=0, metavar="N", help="requests sent before")
    load.add_argument("--seed", type=int, default=0)

    said = options.add_argument_group("what")
    said.add_argument(
        "--input-len", type=_lengths(SHAREGPT_INPUT), default="sharegpt", help=LENGTHS
    )
    said.add_argument(
        "--output-len", type=_lengths(SHAREGPT_OUTPUT), default="sharegpt", help=LENGTHS
    )
    said.add_argument(
        "--prompts", choices=("text", "tokens"), default="text", help="tokens: for completions"
    )
    said.add_argument("--tokenizer", help="a model's folder, to count the tokens of texts by")
    said.add_argument("--vocab-size", type=_positive, default=32_000, help="of --prompts tokens")
    said.add_argument("--shared-prefixes", type=int, default=0, metavar="N", help="drawn by lot")
    said.add_argument("--shared-prefix-len", type=_positive, default=512)
    said.add_argument(
        "--agents",
        type=_positive,
        metavar="N",
        help="that go on until a conversation has --grow-to tokens, instead of single requests",
    )
    said.add_argument("--grow-to", type=_positive, default=16_384)
    said.add_argument("--agent-system-len", type=int, default=2048)
    said.add_argument("--agent-input-len", type=_lengths(AGENT_INPUT), default=AGENT_INPUT)
    said.add_argument("--agent-output-len", type=_lengths(AGENT_OUTPUT), default=AGENT_OUTPUT)
    said.add_argument("--agent-pause", type=float, default=0.5, help="mean, in seconds")

    sampling = options.add_argument_group("how tokens are drawn")
    sampling.add_argument("--temperature", type=float, default=0.0)
    for name, kind in (
        ("--top-p", float),
        ("--top-k", int),
        ("--min-p", float),
        ("--presence-penalty", float),
        ("--frequency-penalty", float),
        ("--repetition-penalty", float),
        ("--sampling-seed", int),
    ):
        sampling.add_argument(name, type=kind)
    sampling.add_argument(
        "--may-stop", action="store_true", help="an answer may end before its length"
    )
    sampling.add_argument(
        "--extra", type=_fields, default={}, metavar="JSON", help="other fields of each body"
    )

    checks = options.add_argument_group("what is checked and told")
    checks.add_argument(
        "--repeats", type=int, default=0, metavar="N", help="asked again, to be answered the same"
    )
    checks.add_argument(
        "--allow-refusals", action="store_true", help="429 is no reason for status 1"
    )
    checks.add_argument(
        "--tolerance", type=float, default=0.2, help="part of a time that the server's may differ"
    )
    checks.add_argument("--no-metrics", action="store_true", help="don't ask the server for its")
    checks.add_argument("--json", metavar="FILE")
    checks.add_argument("--markdown", metavar="FILE")
    return options


def workload(options: argparse.Namespace) -> tuple[Workload, int]:
    """And how many conversations."""
    if options.agents:
        agents = Agents(
            options.grow_to,
            options.agent_system_len,
            options.agent_input_len,
            options.agent_output_len,
            options.agent_pause,
        )
        return agents, options.agents
    requests = Requests(
        options.input_len, options.output_len, options.shared_prefixes, options.shared_prefix_len
    )
    return requests, options.num_requests


def writer(options: argparse.Namespace) -> Writer:
    if options.prompts == "tokens":
        return TokenWriter(options.vocab_size)
    return WordWriter(tokens_of(options.tokenizer)) if options.tokenizer else WordWriter()


def sampling(options: argparse.Namespace) -> Sampling:
    return Sampling(
        options.temperature,
        options.top_p,
        options.top_k,
        options.min_p,
        options.presence_penalty,
        options.frequency_penalty,
        options.repetition_penalty,
        options.sampling_seed,
        not options.may_stop,
        options.extra,
    )


def _lengths(sharegpt: Lengths) -> Any:
    def lengths(text: str) -> Lengths:
        return parse_lengths(text, sharegpt)

    return lengths


def _positive(text: str) -> int:
    if (value := int(text)) <= 0:
        raise ValueError
    return value


def _rate(text: str) -> float:
    if not (value := float(text)) > 0:
        raise ValueError
    return value


def _fields(text: str) -> dict[str, Any]:
    fields = json.loads(text)
    if not isinstance(fields, dict):
        raise ValueError
    return fields
