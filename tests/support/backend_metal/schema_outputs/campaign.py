"""Answers by the hundred. Each is made twice: in an engine with room for all, and in two that have
to preempt, of which the second goes on with what the first was left with."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random

from backend_metal import LLM  # isort: skip

from backend_metal.engine.engine import Engine
from backend_metal.models.load.find import DEMO_DIRECTORY
from deployments.backend import BackendError, Delta, InvalidRequestError
from ops.bench.engine import random_model
from tests.support.backend_metal.schema_outputs.cases import Case
from tests.support.backend_metal.schema_outputs.judge import problem_of

SHAPE = {
    "vocab_size": 2048,
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "intermediate_size": 96,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 64,
    "eos_token_id": 2,
}
AT_ONCE = 16
"""Requests."""


@dataclass(frozen=True)
class Answer:
    token_ids: tuple[int, ...] = ()
    text: str = ""
    finish_reason: str | None = None

    def __add__(self, delta: Delta) -> Answer:
        return Answer(self.token_ids + delta.token_ids, self.text + delta.text, delta.finish_reason)


Answers = dict[int, list[Answer]]
"""By the case's number, one for each of its sequences."""


@dataclass
class Report:
    answers: int = 0
    ended: int = 0
    """The others are as long as they may be, and no JSON yet."""
    refused: int = 0
    """Schemas that can't be enforced."""
    resumed: int = 0
    """Requests that went on elsewhere with some of their tokens and without others."""
    preemptions: int = 0
    problems: list[str] = field(default_factory=list)

    def lines(self) -> list[str]:
        counted = {name: value for name, value in vars(self).items() if name != "problems"}
        return [*(f"{name}: {value}" for name, value in counted.items()), *self.problems]


class Engines:
    """One with room for all, and two of other sizes without."""

    def __init__(self, directory: Path) -> None:
        """``directory``: for the model: random weights, and the demo's vocabulary."""
        random_model.save(directory, {**random_model.CONFIG, **SHAPE})
        for name in ("tokenizer.json", "tokenizer_config.json"):
            shutil.copy(DEMO_DIRECTORY / name, directory / name)
        model = str(directory)
        self.large = LLM(model, num_kv_blocks=1024).engine
        self.first = LLM(model, max_num_seqs=8, num_kv_blocks=42, block_size=8).engine
        self.second = LLM(model, max_num_seqs=7, num_kv_blocks=21, max_num_batched_tokens=24).engine

    @property
    def preemptions(self) -> int:
        return self.first.stats().preemptions + self.second.stats().preemptions


def campaign(
    engines: Engines, cases: Sequence[Case], done: Callable[[int], object] = lambda number: None
) -> Report:
    """``done`` hears how many more answers there are."""
    report = Report()
    before = engines.preemptions
    for start in range(0, len(cases), AT_ONCE):
        some = cases[start : start + AT_ONCE]
        in_peace = _in_peace(engines.large, some)
        enforced = [case for case in some if case.number in in_peace]
        disturbed = _disturbed(engines, enforced, in_peace, report)
        for case in enforced:
            _judge(case, in_peace[case.number], disturbed[case.number], report)
        report.refused += len(some) - len(enforced)
        done(sum(case.n for case in enforced))
    report.preemptions = engines.preemptions - before
    return report


def _in_peace(engine: Engine, cases: Sequence[Case]) -> Answers:
    """Of those whose schemas can be enforced."""
    answers: Answers = {}
    for case in cases:
        try:
            _add(engine, case, answers)
        except InvalidRequestError as error:
            if "keyword" not in str(error):
                raise
    while engine.has_work:
        _step(engine, answers)
    return answers


def _disturbed(
    engines: Engines, cases: Sequence[Case], in_peace: Answers, report: Report
) -> Answers:
    """Each is taken from the first engine once it has its part of the tokens that it will have."""
    answers: Answers = {}
    cut_at: dict[int, int] = {}
    for case in cases:
        _add(engines.first, case, answers)
        length = _num_tokens(in_peace[case.number])
        cut_at[case.number] = Random(case.number).randrange(1, length)
    left = list(cases)
    while left or engines.second.has_work:
        if engines.first.has_work:
            _step(engines.first, answers)
        if engines.second.has_work:
            _step(engines.second, answers)
        for case in [one for one in left if _is_due(answers[one.number], cut_at[one.number])]:
            left.remove(case)
            engines.first.abort(str(case.number))
            had = tuple(one.token_ids for one in answers[case.number])
            report.resumed += 0 < sum(map(len, had)) < _num_tokens(in_peace[case.number])
            _add(engines.second, case, answers, had)
    return answers


def _is_due(answers: Sequence[Answer], num_tokens: int) -> bool:
    return _num_tokens(answers) >= num_tokens


def _num_tokens(answers: Sequence[Answer]) -> int:
    return sum(len(one.token_ids) for one in answers)


def _add(
    engine: Engine, case: Case, answers: Answers, resume: tuple[tuple[int, ...], ...] = ()
) -> None:
    """``resume``: what it had elsewhere, which its answer begins with again."""
    matcher = engine.grammars.compile(case.grammar)
    request = replace(case.request, resume=resume)
    outputs = engine.add_request(request, list(case.prompt), matcher=matcher)
    answers[case.number] = [Answer()] * case.n
    for output in outputs:
        _take(output.item, answers[case.number])


def _step(engine: Engine, answers: Answers) -> None:
    for output in engine.step():
        _take(output.item, answers[int(output.request_id)])
    engine.check_integrity()


def _take(item: object, answers: list[Answer]) -> None:
    if isinstance(item, BackendError):
        raise item
    if isinstance(item, Delta):
        answers[item.index] += item


def _judge(
    case: Case, in_peace: Sequence[Answer], disturbed: Sequence[Answer], report: Report
) -> None:
    for one, other in zip(in_peace, disturbed, strict=True):
        report.answers += 1
        problem = ""
        if one.finish_reason == "stop":
            report.ended += 1
            problem = problem_of(case.schema, one.text)
        if one != other:
            problem = f"goes on as {other.text!r} elsewhere"
        if problem:
            report.problems.append(f"case {case.number}: {one.text!r} {problem}")
