"""Requests for answers that match a schema, by number."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from random import Random
from typing import Any

from deployments.backend import GenerationRequest, Grammar, SamplingParams
from tests.support.backend_metal.schema_outputs.bounded import bounded
from tests.support.backend_metal.schema_outputs.generated import Schema, schema_of

WAYS: Sequence[dict[str, Any]] = (
    {"temperature": 0.0},
    {"temperature": 1.0},
    {"temperature": 1.0, "top_p": 0.9},
    {"temperature": 1.3, "top_p": 0.9, "top_k": 200},
)
MAX_TOKENS = 300
PROMPT_TOKENS = range(3, 2000)


@dataclass(frozen=True)
class Case:
    number: int
    schema: Schema

    @property
    def n(self) -> int:
        return 2 if self.number % 3 == 2 else 1

    @property
    def grammar(self) -> Grammar:
        return Grammar("json_schema", json.dumps(self.schema), "schema")

    @property
    def prompt(self) -> tuple[int, ...]:
        return tuple(Random(self.number).sample(PROMPT_TOKENS, 5))

    @property
    def request(self) -> GenerationRequest:
        """Greedy, drawn, and drawn from the likeliest, by turns."""
        sampling = SamplingParams(
            max_tokens=MAX_TOKENS,
            seed=self.number,
            grammar=self.grammar,
            **WAYS[self.number % len(WAYS)],
        )
        return GenerationRequest(str(self.number), self.prompt, sampling, n=self.n)


def generated() -> Iterator[Case]:
    """Without an end."""
    return (Case(number, schema_of(number)) for number in count())


def recorded(folder: Path, seed: int = 1) -> Iterator[Case]:
    """Of MaskBench's files, in an order of ``seed``: their schemas, with bounds."""
    files = sorted(folder.glob("*.json"))
    Random(seed).shuffle(files)
    for number, path in enumerate(files):
        yield Case(number, bounded(json.loads(path.read_text())["schema"]))
