"""Text that comes in pieces, read as if it were whole."""

from __future__ import annotations

from collections.abc import Sequence

WHITE = " \t\r\n"


class Stream:
    """What has come and has not been read. Whoever reads takes only what later text can't change,
    so that the pieces in which the text came make no difference."""

    def __init__(self) -> None:
        self.has_ended = False
        self._text = ""
        self._position = 0
        self._is_kept = False

    @property
    def text(self) -> str:
        """What comes next."""
        return self._text[self._position :]

    def add(self, text: str) -> None:
        self._text += text

    def take(self, length: int) -> str:
        start = self._position
        self._position += length
        taken = self._text[start : self._position]
        if not self._is_kept:
            self._drop()
        return taken

    def keep(self) -> None:
        """From here on, so that ``rewind`` can come back."""
        self._drop()
        self._is_kept = True

    def release(self) -> None:
        """What was read is read for good."""
        self._is_kept = False
        self._drop()

    def rewind(self) -> None:
        """To where ``keep`` was called."""
        self._position = 0
        self._is_kept = False

    def take_until(self, markers: Sequence[str], *, leave: bool = False) -> tuple[str, str | None]:
        """What comes before the first of ``markers``, and that one, which is taken, too, unless it
        is to be left; None if none has come yet: then all is taken but an end that may begin one.

        Where several begin at the same place the longest is meant, as soon as that is certain.
        """
        text = self.text
        found = [(at, -len(one), one) for one in markers if (at := text.find(one)) >= 0]
        first = min(found, default=None)
        start = first[0] if first else len(text)
        unsure = len(text) if self.has_ended else _may_begin(text, markers)
        if first is None or unsure <= start:
            return self.take(min(start, unsure)), None
        before = self.take(start)
        self.take(0 if leave else len(first[2]))
        return before, first[2]

    def skip_white(self) -> None:
        text = self.text
        self.take(len(text) - len(text.lstrip(WHITE)))

    def _drop(self) -> None:
        self._text = self._text[self._position :]
        self._position = 0


def _may_begin(text: str, markers: Sequence[str]) -> int:
    """Where the longest end of ``text`` begins that is a part of a marker, but not all of it."""
    longest = max(map(len, markers), default=1) - 1
    for start in range(max(0, len(text) - longest), len(text)):
        end = text[start:]
        if any(len(one) > len(end) and one.startswith(end) for one in markers):
            return start
    return len(text)
