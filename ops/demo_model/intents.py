"""Questions with one fixed answer, and those that the model can't answer at all."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any

from ops.demo_model.grammar import expand, load_knowledge

PHRASING = load_knowledge("phrasing")
UNKNOWN = load_knowledge("unknown")

_COMMON_WORDS: list[str] = load_knowledge("words")["common"].split()

# The first answer is the one that greedy decoding should settle on.
_FIRST_ANSWER = 0.75
_SYLLABLES = tuple(
    first + vowel + last
    for first in ("b", "d", "f", "g", "k", "l", "m", "n", "p", "r", "s", "t", "v", "z", "dr", "st")
    for vowel in ("a", "e", "i", "o", "u")
    for last in ("", "n", "r", "l", "x", "sh", "ck")
)


@dataclass(frozen=True)
class Exchange:
    """A question, its answer, and what the user may say next without naming the topic."""

    question: str
    answer: str
    follow_up: Callable[[Random], Exchange] | None = None
    verbatim: tuple[str, ...] = ()
    """Words of the question that the answer repeats, so no typing mistake may touch them."""


@dataclass(frozen=True)
class Intent:
    """One thing that people ask about. ``topics`` go into the frames of ``phrasing.toml``."""

    name: str
    answers: tuple[str, ...]
    topics: tuple[str, ...] = ()
    ask: tuple[str, ...] = ()
    more: str | None = None
    first_only: bool = False
    """Only as the first turn, since later it would refer to the turn before."""
    plain: bool = True
    """The answer also makes sense as plain text, outside a conversation."""

    def exchange(self, rng: Random) -> Exchange:
        answer = self.answers[0] if rng.random() < _FIRST_ANSWER else self.answers[-1]
        return Exchange(self.question(rng), answer, self._more if self.more else None)

    def question(self, rng: Random) -> str:
        if self.topics and (not self.ask or rng.random() < 0.5):
            topic = expand(rng.choice(self.topics), rng)
            return expand(rng.choice(PHRASING["define"]), rng).replace("{t}", topic)
        return expand(rng.choice(self.ask), rng)

    def _more(self, rng: Random) -> Exchange:
        assert self.more is not None
        return Exchange(expand(rng.choice(PHRASING["more"]), rng), self.more, no_more)


def no_more(rng: Random) -> Exchange:
    return Exchange(expand(rng.choice(PHRASING["more"]), rng), PHRASING["more_answers"][0])


def load_intents(name: str) -> tuple[Intent, ...]:
    """The intents of ``knowledge/{name}.toml``."""
    intents = []
    for entry in load_knowledge(name)["intent"]:
        fields: dict[str, Any] = {
            key: tuple(value) if isinstance(value, list) else value for key, value in entry.items()
        }
        intents.append(Intent(**fields))
    return tuple(intents)


def invented_word(rng: Random) -> str:
    return "".join(rng.choice(_SYLLABLES) for _ in range(rng.randint(2, 3)))


def unknown_topic(rng: Random) -> str:
    """Something that the model has no answer for, often a word that it has never seen."""
    draw = rng.random()
    if draw < 0.6:
        return str(rng.choice(UNKNOWN["topics"]))
    word = invented_word(rng) if draw < 0.85 else str(rng.choice(PHRASING["fillers"]))
    return f"{rng.choice(('a', 'the', 'my', ''))} {word}".strip()


def noun_phrase(rng: Random) -> str:
    """Such as ``my old horse``, or ``the music``; not always a sensible one."""
    determiner = rng.choice(("my", "the", "my", "the", "two", "our", "his", "a"))
    return " ".join((determiner, *rng.choices(_COMMON_WORDS, k=rng.choice((1, 1, 2)))))


def unknown(rng: Random) -> Exchange:
    """A question beyond the model, answered by saying so."""
    frames = PHRASING["define"] if rng.random() < 0.45 else UNKNOWN["ask"]
    question = expand(rng.choice(frames), rng)
    while "{t}" in question:
        question = question.replace("{t}", unknown_topic(rng), 1)
    answers = UNKNOWN["answers"]
    answer = answers[0] if rng.random() < _FIRST_ANSWER else answers[-1]
    return Exchange(question, answer, unknown if rng.random() < 0.3 else None)
