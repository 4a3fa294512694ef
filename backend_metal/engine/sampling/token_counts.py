"""How often each token has come in sequences, kept on the device: what their penalties go by."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from weakref import WeakKeyDictionary, ref

import mlx.core as mx
import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int32]

IN_PROMPT = 1
IN_OUTPUT = 2
"""Added for each time that a token comes there; once for all of the prompt."""


@dataclass(frozen=True)
class History:
    """Of one sequence, so far."""

    owner: object
    """The sequence, which is asked for its identity, and held no longer than others do."""
    num_prompt_tokens: int
    token_ids: Ints


@dataclass
class _Place:
    """A row of the table."""

    owner: ref[object]
    num_counted: int
    last_use: int

    @property
    def age(self) -> tuple[bool, int]:
        """Those whose owner is gone come first."""
        return self.owner() is not None, self.last_use


class TokenCounts:
    """One row of counts for each sequence with penalties. What a step costs are its new tokens; a
    history is read as a whole when its sequence has no row, which the latest users keep."""

    def __init__(self, vocab_size: int) -> None:
        self._vocab_size = vocab_size
        self.clear()

    def clear(self) -> None:
        self.table = mx.zeros((0, self._vocab_size), mx.int32)
        """int32 ``[rows, vocab_size]``, lazy: twice the times that a token has come in the output,
        and one more if it is in the prompt."""
        self._places: list[_Place] = []
        self._row_of: WeakKeyDictionary[object, int] = WeakKeyDictionary()
        self._num_uses = 0

    def rows_of(self, histories: Sequence[History]) -> list[int]:
        """Rows of the table that count all of each. A history begins with what it was the last
        time; token ids outside the vocabulary have no effect."""
        self._num_uses += 1
        for history in histories:
            if (row := self._row_of.get(history.owner)) is not None:
                self._places[row].last_use = self._num_uses
        rows = [self._row(history.owner, len(histories)) for history in histories]
        self._count(rows, histories)
        return rows

    def _row(self, owner: object, num_in_use: int) -> int:
        row = self._row_of.get(owner)
        if row is None:
            row = self._free_row(num_in_use)
            self._row_of[owner] = row
            place = _Place(ref(owner), 0, self._num_uses)
            if row == len(self._places):
                self._places.append(place)
            else:
                self._forget(row)
                self._places[row] = place
        return row

    def _free_row(self, num_in_use: int) -> int:
        oldest = min(range(len(self._places)), key=lambda row: self._places[row].age, default=None)
        if oldest is not None:
            place = self._places[oldest]
            # Sequences take turns where a batch holds only some of them; not at any price.
            is_spare = place.last_use < self._num_uses and len(self._places) >= 2 * num_in_use
            if place.owner() is None or is_spare:
                return oldest
        row = len(self._places)
        if row == self.table.shape[0]:
            more = mx.zeros((max(1, row), self._vocab_size), mx.int32)
            self.table = mx.concatenate([self.table, more])
        return row

    def _forget(self, row: int) -> None:
        owner = self._places[row].owner()
        if owner is not None:
            del self._row_of[owner]
        self.table[row] = 0

    def _count(self, rows: list[int], histories: Sequence[History]) -> None:
        at: list[int] = []
        token_ids: list[int] = []
        values: list[int] = []
        for row, history in zip(rows, histories, strict=True):
            place = self._places[row]
            first, place.num_counted = place.num_counted, len(history.token_ids)
            for value, tokens in _new_tokens(history, first):
                at += [row] * len(tokens)
                token_ids += tokens
                values += [value] * len(tokens)
        new = np.array([at, token_ids, values], np.int32)
        new = new[:, (new[1] >= 0) & (new[1] < self._vocab_size)]
        if new.size:
            places, ids, added = (mx.array(part) for part in new)
            self.table = self.table.at[places, ids].add(added)


def _new_tokens(history: History, first: int) -> list[tuple[int, list[int]]]:
    """From position ``first`` on, with what each adds to its count."""
    output = history.token_ids[max(first, history.num_prompt_tokens) :].tolist()
    if first >= history.num_prompt_tokens:
        return [(IN_OUTPUT, output)]
    # A prompt is counted as a whole, before the first token is drawn.
    assert first == 0, "part of a prompt has been counted"
    prompt = np.unique(history.token_ids[: history.num_prompt_tokens])
    return [(IN_PROMPT, prompt.tolist()), (IN_OUTPUT, output)]
