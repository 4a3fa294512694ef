"""Disguises a question the way people type: politeness, small words left out, case, typos."""

from __future__ import annotations

import re
from random import Random

from ops.demo_model.grammar import expand, load_knowledge
from ops.demo_model.intents import PHRASING, Exchange, invented_word

_QUESTION = re.compile(
    r"^(what|whats|who|why|how|when|where|which|is|are|am|was|were|do|does|did|can|could|would|"
    r"will|should|may|has|have|must|any)\b",
    re.IGNORECASE,
)
_SMALL_WORDS = frozenset(PHRASING["small_words"])
_COMMON_WORDS: list[str] = load_knowledge("words")["common"].split()
_SYNONYMS: dict[str, list[str]] = load_knowledge("words")["synonyms"]
_LETTERS = "abcdefghijklmnopqrstuvwxyz"


def disguise(exchange: Exchange, rng: Random) -> str:
    """The question of ``exchange`` as somebody might type it."""
    text = exchange.question
    keep = exchange.verbatim
    if rng.random() < 0.5:
        text = _use_synonyms(text, keep, rng)
    if rng.random() < 0.12 and re.match(r"(what|who|how|why|where|which) ", text):
        text = expand(rng.choice(PHRASING["wrappers"]), rng).replace("{q}", text)
    if rng.random() < 0.2:
        prefix = _fill(expand(rng.choice(PHRASING["prefixes"]), rng), rng)
        text = f"{prefix}{rng.choice((', ', ', ', ' ', '. ', ': ', '! '))}{text}"
    if rng.random() < 0.15:
        text = f"{text}{rng.choice((' ', ', '))}{rng.choice(PHRASING['suffixes'])}"
    if rng.random() < 0.15:
        text = _drop_small_words(text, keep, rng)
    if rng.random() < 0.22:
        text = _add_words(text, keep, rng)
    if rng.random() < 0.14:
        text = _mistype(text, keep, rng)
    text = _punctuate(text, keep, rng)
    if rng.random() < 0.03:
        text = f"{text} {rng.choice(PHRASING['afterthoughts'])}"
    return text


def system_prompt(rng: Random) -> str:
    return _fill(expand(rng.choice(PHRASING["system"]), rng), rng)


def _fill(text: str, rng: Random) -> str:
    """Any word at all for ``{w}``, because it must not change the answer."""
    word = rng.choice(PHRASING["fillers"]) if rng.random() < 0.6 else invented_word(rng)
    return text.replace("{w}", word)


def _use_synonyms(text: str, keep: tuple[str, ...], rng: Random) -> str:
    kept = _parts(keep)
    return " ".join(
        rng.choice(_SYNONYMS[word])
        if word in _SYNONYMS and word not in kept and rng.random() < 0.35
        else word
        for word in text.split(" ")
    )


def _drop_small_words(text: str, keep: tuple[str, ...], rng: Random) -> str:
    """Leaves out one small word, or all of them as in a search box."""
    words = text.split()
    kept = _parts(keep)
    small = [i for i, word in enumerate(words) if word.lower() in _SMALL_WORDS - kept]
    if len(words) - len(small) < 2 or not small:
        return text
    dropped = set(small) if rng.random() < 0.4 else {rng.choice(small)}
    return " ".join(word for i, word in enumerate(words) if i not in dropped)


def _add_words(text: str, keep: tuple[str, ...], rng: Random) -> str:
    """Slips in words that say nothing, but not between words that belong together."""
    words = text.split(" ")
    kept = _parts(keep)
    for _ in range(rng.choice((1, 1, 2))):
        at = rng.randrange(len(words) + 1)
        if not kept.intersection(words[max(0, at - 1) : at + 1]):
            words.insert(at, rng.choice(_COMMON_WORDS))
    return " ".join(words)


def _mistype(text: str, keep: tuple[str, ...], rng: Random) -> str:
    """One slip of the fingers, outside the words that the answer repeats."""
    kept = _parts(keep)
    words = text.split(" ")
    long = [i for i, word in enumerate(words) if len(word) > 3 and word not in kept]
    if not long:
        return text
    index = rng.choice(long)
    word = words[index]
    at = rng.randrange(1, len(word) - 1)
    words[index] = rng.choice(
        (
            word[:at] + word[at + 1 :],
            word[:at] + word[at] + word[at:],
            word[:at] + word[at + 1] + word[at] + word[at + 2 :],
            word[:at] + rng.choice(_LETTERS) + word[at + 1 :],
        )
    )
    return " ".join(words)


def _parts(keep: tuple[str, ...]) -> set[str]:
    return {part for word in keep for part in word.split()}


def _punctuate(text: str, keep: tuple[str, ...], rng: Random) -> str:
    draw = rng.random()
    # Copying a name or a topic in another case is more than so small a model should have to do.
    if draw < 0.28 and not keep:
        return text.lower()
    if draw < 0.36:
        return text
    if draw < 0.39 and not keep:
        return text.upper()
    mark = "?" if _QUESTION.match(text) else rng.choice((".", "", "!", "?"))
    if text[-1] in "?.!)=":
        mark = ""
    if draw < 0.55:
        return (text if keep else text.lower()) + mark
    first = text[0].upper() + text[1:]
    return re.sub(r"\bi\b", "I", first) + mark
