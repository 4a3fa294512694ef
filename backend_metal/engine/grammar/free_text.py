"""Where in an answer its grammar leaves text to the model, until a marker comes.

There a token of plain text leaves the grammar where it is: its matcher need not take it, and its
mask stays. What a grammar is for, calls and their arguments, is the smaller part of most answers.
"""

from __future__ import annotations

from collections.abc import Set

from llguidance import LLTokenizer

from backend_metal.engine.grammar.utf8 import MOST_BYTES_TO_COME, is_cut
from deployments.backend import FreeText

WHITE = b" \t\r\n"


class FreeTextReader:
    """Reads what a matcher takes of an answer. The tokens that it ``passes`` neither need read."""

    def __init__(
        self,
        vocabulary: LLTokenizer,
        eos_token_ids: Set[int],
        free: FreeText,
        thought_end: str = "",
    ) -> None:
        """``vocabulary``: the matcher's. ``free``: of the answer; ``thought_end``: of a thought
        that the prompt has begun."""
        self._vocabulary = vocabulary
        self._eos_token_ids = eos_token_ids
        self._began_in = thought_end
        self._free = free
        self._thought = free.thought
        """None: none may begin here."""
        self._marker: str | None = None
        """What ends the text that has begun; None: none has."""
        self._is_thought = False
        self._is_over = False
        """No free text may come any more."""
        self._tail = b""
        """Of the text that has begun, what a marker may begin in; or what may begin one."""
        self._passed: dict[int, bool] = {}
        self.is_free = False
        """Whether the grammar is where it is behind all such text."""
        self.number = 0
        """Of the free text: within one, the grammar is in one place."""
        if thought_end:
            self._begin(thought_end, b"", is_thought=True)

    @property
    def fresh(self) -> FreeTextReader:
        """One of an answer that has not begun."""
        return FreeTextReader(self._vocabulary, self._eos_token_ids, self._free, self._began_in)

    def passes(self, token_id: int) -> bool:
        """Whether such a token changes nothing."""
        if not self.is_free:
            return False
        passed = self._passed.get(token_id)
        if passed is None:
            passed = self._passed[token_id] = self._is_plain(token_id)
        return passed

    def push(self, token_id: int) -> None:
        """A token that it does not pass."""
        if self._is_over:
            return
        text = self._vocabulary.decode_bytes([token_id])
        if self._is_special(token_id):
            self._push_special(text)
        else:
            self._tail += text
            while not self._is_over and self._turns():
                pass
        self.is_free = (
            self._marker is not None
            and bool(self._tail)
            and not (is_cut(self._tail) or any(_begins_in(self._tail, one) for one in self._ends))
        )
        if self._marker is not None:
            longest = max(len(one.encode()) for one in self._ends)
            self._tail = self._tail[-(longest + MOST_BYTES_TO_COME) :]

    def _is_plain(self, token_id: int) -> bool:
        """Whether it is whole characters, and no marker begins in them."""
        text = self._vocabulary.decode_bytes([token_id])
        if not text or self._is_special(token_id):
            return False
        try:
            whole = text.decode()
        except UnicodeDecodeError:
            return False
        return self._marker is not None and not any(one[:1] in whole for one in self._ends)

    @property
    def _ends(self) -> list[str]:
        """What may end the text that has begun."""
        call = self._free.call if self._is_thought else ""
        return [one for one in (self._marker, call) if one]

    def _is_special(self, token_id: int) -> bool:
        """Whether it is none that text is cut into."""
        return token_id in self._eos_token_ids or self._vocabulary.is_special_token(token_id)

    def _push_special(self, text: bytes) -> None:
        self._tail = b""
        if self._marker is not None and text == self._marker.encode():
            self._end()
        elif self._marker is None and self._thought and text == self._thought[0].encode():
            self._begin(self._thought[1], b"", is_thought=True)
        else:
            self._is_over = True
            self._marker = None

    def _turns(self) -> bool:
        """Whether a text begins or ends in the tail: then what follows is left there."""
        if self._marker is None:
            return self._may_begin()
        found = [(at, one) for one in self._ends if (at := self._tail.find(one.encode())) >= 0]
        if not found:
            return False
        at, marker = min(found)
        self._tail = self._tail[at + len(marker.encode()) :]
        self._end()
        # Behind a call's there is none any more.
        self._is_over = self._is_over or marker == self._free.call
        return True

    def _may_begin(self) -> bool:
        text = self._tail.lstrip(WHITE)
        if not text:
            return False
        begin = (self._thought[0] if self._thought else "").encode()
        if begin and begin.startswith(self._tail) and begin != self._tail:
            return False
        if begin and self._tail.startswith(begin):
            assert self._thought is not None
            self._begin(self._thought[1], self._tail[len(begin) :], is_thought=True)
            return True
        if not self._free.marker or text.decode(errors="replace")[0] in self._free.unlike:
            self._is_over = True
        elif not is_cut(text):
            self._begin(self._free.marker, text, is_thought=False)
            return True
        return False

    def _begin(self, marker: str, text: bytes, *, is_thought: bool) -> None:
        self._marker, self._tail, self._is_thought = marker, text, is_thought
        self._thought = None
        self._passed.clear()
        self.number += 1

    def _end(self) -> None:
        self._marker = None
        self._is_over = not self._is_thought


def _begins_in(text: bytes, marker: str) -> bool:
    """Whether ``text`` ends in the beginning of ``marker``."""
    whole = marker.encode()
    return any(text.endswith(whole[:length]) for length in range(1, len(whole)))
