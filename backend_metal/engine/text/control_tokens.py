"""Control tokens: those that a chat template writes, and not those that a client's text spells."""

from __future__ import annotations

import json
import re
import secrets
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence, Set
from copy import copy
from functools import partial
from itertools import groupby, takewhile
from typing import Any

from mlx_lm.tokenizer_utils import TokenizerWrapper
from tokenizers import Tokenizer as FastTokenizer

from backend_metal.engine.text.tokenizer import Tokenizer
from deployments.backend import InvalidRequestError

NONCE_DIGITS, CODE_DIGITS = 20, 7
"""No client can guess the first: its text can't look like a mark."""
MARK_DIGITS = NONCE_DIGITS + CODE_DIGITS


class ControlTokens:
    """Of one tokenizer, whose added tokens ``contents`` are control tokens.

    A client's strings are hidden before a template gets them: the first character of whatever
    spells a control token becomes a mark, and the rest stays as it is. Marks are digits, which no
    filter of a template changes. What reads like a control token afterwards, the template wrote.
    """

    def __init__(
        self, tokenizer: Tokenizer, contents: Set[str], read_in_answers: Set[str] = frozenset()
    ) -> None:
        """``read_in_answers`` are not hidden in what a model is said to have written."""
        self._tokenizer = tokenizer
        self._contents = sorted(contents)
        self._longest = max(map(len, contents), default=0)
        self._written = re.compile(any_of(self._contents))
        self._in_texts = _beginnings(self._contents)
        self._in_answers = _beginnings(sorted(contents - read_in_answers))
        self._nonce = random_digits()
        self._marks = {
            c: f"{self._nonce}{ord(c):0{CODE_DIGITS}}" for c in {text[0] for text in contents}
        }
        self._characters = {mark: c for c, mark in self._marks.items()}
        self._mark = re.compile(any_of(sorted(self._characters)))
        self._renamed = _renamed(tokenizer, self._contents)

    def hide(self, value: Any, *, is_answer: bool = False) -> Any:
        """``value``, JSON, with marks in its strings."""
        if isinstance(value, str):
            begins = self._in_answers if is_answer else self._in_texts
            return begins.sub(lambda found: self._marks[found[0]], self._hide_end(value))
        hide = partial(self.hide, is_answer=is_answer)
        if isinstance(value, Mapping):
            return {hide(key): hide(member) for key, member in value.items()}
        return [*map(hide, value)] if isinstance(value, (list, tuple)) else value

    def reveal(self, text: str) -> str:
        return self._mark.sub(lambda mark: self._characters[mark[0]], text)

    def length(self, text: str) -> int:
        """In characters, without what marks add."""
        return len(text) - text.count(self._nonce) * (MARK_DIGITS - 1)

    def separate(self, text: str) -> tuple[Tokenizer, str]:
        """What is to be tokenized for a rendering, and by whom, so that what the template wrote is
        control tokens, and what was hidden is not. Raises ``InvalidRequestError`` for a tokenizer
        that can't tell one from the other."""
        renamed = self._renamed
        if self._nonce not in text and not (renamed and renamed.is_needed):
            return self._tokenizer, text
        if renamed is None:
            raise InvalidRequestError(
                "messages spell a control token, which this model's tokenizer can't read as text",
                param="messages",
            )
        named = self._written.sub(lambda written: renamed.names[written[0]], text)
        return renamed.tokenizer, self.reveal(named)

    def _hide_end(self, text: str) -> str:
        """With marks in what would be a control token if another string followed."""
        end = len(text.rstrip())
        for start in range(end - 1, max(end - self._longest, -1), -1):
            if text[start] in self._marks and self._is_begun(text[start:end]):
                text = f"{text[:start]}{self._marks[text[start]]}{text[start + 1 :]}"
        return text

    def _is_begun(self, beginning: str) -> bool:
        index = bisect_left(self._contents, beginning)
        return index < len(self._contents) and self._contents[index].startswith(beginning)


class _Renamed:
    """A tokenizer whose control tokens have other names, which nobody can guess: to it their own
    text is text, cut into tokens together with what is around it."""

    def __init__(self, tokenizer: Any, contents: Sequence[str]) -> None:
        nonce = random_digits()
        self.names = {text: f"{nonce}{index:0{CODE_DIGITS}}" for index, text in enumerate(contents)}
        backend: FastTokenizer = tokenizer.backend_tokenizer
        added = backend.get_added_tokens_decoder().values()
        self.is_needed = backend.normalizer is not None and any(
            token.normalized and token.content in self.names for token in added
        )
        """For all text: another one may become a control token's before it is looked for."""
        renamed = FastTokenizer.from_str(_with_names(backend.to_str(), self.names))
        self.tokenizer = copy(tokenizer)
        self.tokenizer._tokenizer = renamed


def _renamed(tokenizer: Tokenizer, contents: Sequence[str]) -> _Renamed | None:
    """None: there are no names to change, or the tokenizer is of a kind that can't be had so."""
    inner: Any = tokenizer._tokenizer if isinstance(tokenizer, TokenizerWrapper) else tokenizer
    is_fast = isinstance(getattr(inner, "backend_tokenizer", None), FastTokenizer)
    return _Renamed(inner, contents) if contents and is_fast else None


def _with_names(serialized: str, names: dict[str, str]) -> str:
    """A serialized tokenizer in which control tokens have other names, and the same ids."""
    parts = json.loads(serialized)
    # It would look for the old names, to write what no rendering is to get.
    parts["post_processor"] = None
    for token in parts["added_tokens"]:
        token["content"] = names.get(token["content"], token["content"])
    model = parts["model"]
    vocab = model["vocab"]
    if isinstance(vocab, dict):
        model["vocab"] = {names.get(token, token): i for token, i in vocab.items()}
    else:
        model["vocab"] = [[names.get(token, token), score] for token, score in vocab]
    if "merges" in model:
        # Without those that make such a token out of text.
        model["merges"] = [m for m in model["merges"] if names.keys().isdisjoint({*m, "".join(m)})]
    if isinstance(unknown := model.get("unk_token"), str):
        model["unk_token"] = names.get(unknown, unknown)
    return json.dumps(parts)


def random_digits() -> str:
    return f"{secrets.randbelow(10**NONCE_DIGITS):0{NONCE_DIGITS}}"


def _beginnings(texts: Sequence[str]) -> re.Pattern[str]:
    """The first character of each that is found, wherever they overlap."""
    return re.compile(f"(?={any_of(texts)}).", re.DOTALL)


def any_of(texts: Iterable[str]) -> str:
    """A pattern of the longest of ``texts``, which are sorted, that takes no longer for many."""
    branches, ends = [], False
    for character, group in groupby(texts, lambda text: text[:1]):
        if not character:
            ends = True
            continue
        members = list(group)
        pairs = zip(members[0], members[-1], strict=False)
        common = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
        rests = any_of(text[common:] for text in members)
        branches.append(re.escape(members[0][:common]) + rests)
    if not branches:
        return "" if ends else "(?!)"
    return f"(?:{'|'.join(branches)}){'?' if ends else ''}"
