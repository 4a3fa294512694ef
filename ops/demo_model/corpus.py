"""The training text: conversations and plain paragraphs, made from a seed.

The text depends on the seed and on the files in ``knowledge`` alone, and a longer corpus begins
with the documents of a shorter one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from random import Random

from ops.demo_model import skills, writing
from ops.demo_model.grammar import load_knowledge
from ops.demo_model.held_out import HELD_OUT
from ops.demo_model.intents import Exchange, Intent, load_intents, unknown
from ops.demo_model.phrasing import disguise, system_prompt

Message = dict[str, str]

POMONA = load_intents("pomona")
ENGINE = load_intents("engine")
SERVING = load_intents("serving")
SMALL_TALK = load_intents("small_talk")
GENERAL = load_intents("general")
PROSE: list[str] = load_knowledge("prose")["sentences"]

_WORD = re.compile(r"[a-z0-9]+")
_PLAIN_TEXT = 0.15
_LONG = 0.06
"""Share of conversations with more than four turns."""


@dataclass(frozen=True)
class Document:
    """A conversation, or plain text when ``messages`` is empty."""

    messages: tuple[Message, ...] = ()
    prompt: str = ""
    """The beginning of the text that the model does not learn to write."""
    text: str = ""


def normalise(question: str) -> str:
    """What is left of a question when case, punctuation and spaces do not count."""
    return " ".join(_WORD.findall(question.lower()))


_HELD_OUT = frozenset(normalise(case.messages[-1]["content"]) for case in HELD_OUT)


def generate(num_documents: int, seed: int = 0) -> Iterator[Document]:
    """``num_documents`` documents; no user turn is a held-out question."""
    rng = Random(seed)
    for _ in range(num_documents):
        yield _plain_text(rng) if rng.random() < _PLAIN_TEXT else _conversation(rng)


def _conversation(rng: Random) -> Document:
    turns = rng.choice((1, 1, 1, 2, 2, 3, 4)) if rng.random() >= _LONG else rng.randint(5, 14)
    messages: list[Message] = []
    if rng.random() < 0.3:
        messages.append({"role": "system", "content": system_prompt(rng)})
    name: str | None = None
    last: Exchange | None = None
    for turn in range(turns):
        if last is not None and last.follow_up is not None and rng.random() < 0.4:
            exchange = last.follow_up(rng)
        elif rng.random() < 0.04:
            exchange = skills.recall_name(name, rng)
        elif rng.random() < 0.06:
            name, exchange = skills.introduction(rng)
        else:
            exchange = _fresh(rng, first=turn == 0)
        messages.append({"role": "user", "content": _ask(exchange, rng)})
        messages.append({"role": "assistant", "content": exchange.answer})
        last = exchange
    return Document(messages=tuple(messages))


def _ask(exchange: Exchange, rng: Random) -> str:
    """The question in some disguise that leaves the held-out questions unseen."""
    while normalise(question := disguise(exchange, rng)) in _HELD_OUT:
        pass
    return question


def _fresh(rng: Random, *, first: bool) -> Exchange:
    """An exchange that does not refer to an earlier one."""
    draw = rng.random()
    if draw < 0.46:
        intents: tuple[Intent, ...] = rng.choice((POMONA, POMONA, ENGINE, ENGINE, SERVING))
    elif draw < 0.62:
        intents = SMALL_TALK
    elif draw < 0.69:
        intents = GENERAL
    elif draw < 0.81:
        return unknown(rng)
    else:
        return rng.choice(
            (
                skills.arithmetic,
                skills.arithmetic,
                skills.capital,
                skills.capital,
                skills.calendar,
                skills.opposite,
                skills.animal,
                writing.story,
                writing.poem,
                writing.joke,
            )
        )(rng)
    intent = rng.choice(intents)
    while intent.first_only and not first:
        intent = rng.choice(intents)
    return intent.exchange(rng)


def _plain_text(rng: Random) -> Document:
    """A question and its answer outside a conversation, facts that belong together, or a story."""
    draw = rng.random()
    if draw < 0.3:
        exchange = _fresh(rng, first=True)
        return Document(prompt=_ask(exchange, rng), text="\n" + exchange.answer)
    if draw < 0.55:
        sentences = rng.sample(PROSE, rng.randint(1, 3))
        return Document(text="\n".join(sentences))
    if draw < 0.63:
        return Document(text=rng.choice((writing.story, writing.poem))(rng).answer)
    if draw < 0.75:
        if rng.random() < 0.5:
            countries = rng.sample(list(skills.TABLES["capitals"]), rng.randint(1, 3))
            return Document(text=" ".join(map(skills.capital_fact, countries)))
        fact = rng.choice((skills.opposite, skills.calendar, skills.animal))
        return Document(text=fact(rng).answer)
    intents = rng.choice((POMONA, ENGINE, SERVING, GENERAL))
    paragraphs = []
    for _ in range(rng.randint(1, 3)):
        intent = rng.choice([intent for intent in intents if intent.plain])
        more = intent.more if rng.random() < 0.7 else None
        paragraphs.append(" ".join(filter(None, (intent.answers[0], more))))
    return Document(text="\n".join(paragraphs))
