"""From token ids to text, a token at a time.

Where tokens are bytes, so is the text. Else a window over the last tokens is decoded again for each
new one, and what the new token added is sent: decoders look at neighbours (leading spaces,
characters in several tokens), but never far.
"""

from __future__ import annotations

from collections.abc import Sequence, Set

from backend_metal.engine.text.byte_level import ByteStream
from backend_metal.engine.text.decode import byte_level_vocabulary, decoder_of
from backend_metal.engine.text.stop import StopMatcher
from backend_metal.engine.text.tokenizer import Tokenizer

_REPLACEMENT = "\ufffd"
_MIN_CONTEXT = 6
_MAX_CONTEXT = 32
_MAX_WINDOW = 24
_MAX_UNFINISHED = 3
"""Tokens after which a character that isn't complete never will be: UTF-8 has 4 bytes at most."""


class IncrementalDetokenizer:
    """The text of one sequence's output, cut before the first stop string.

    ``prompt_token_ids`` give the first tokens their context: a SentencePiece word keeps its space,
    and a character that the prompt's last token began is sent whole.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        prompt_token_ids: Sequence[int],
        stop: Sequence[str] = (),
        hidden_ids: Set[int] | None = None,
        *,
        include_stop: bool = False,
    ) -> None:
        """``hidden_ids``: tokens without a text; None: all special ones. ``include_stop``: the text
        is cut behind the stop string."""
        vocabulary = byte_level_vocabulary(tokenizer)
        self._text = (
            _Window(tokenizer, prompt_token_ids, hidden_ids)
            if vocabulary is None
            else ByteStream(vocabulary, prompt_token_ids, hidden_ids)
        )
        self._matcher = StopMatcher(stop, include=include_stop)

    @property
    def stop_hit(self) -> str | None:
        """The stop string that ended the text."""
        return self._matcher.hit

    def append(self, token_id: int, *, may_stop: bool = True) -> str:
        """Text that is safe to send: whole characters, nothing that may begin a stop string.

        Empty once a stop string was hit; without ``may_stop`` none is.
        """
        return self._feed(self._text.push(token_id), may_stop)

    def finish(self, *, may_stop: bool = True) -> str:
        """What was held back; a character that was never completed is U+FFFD. Call it once, when
        the sequence ends; it may hit a stop string."""
        text = self._feed(self._text.flush(), may_stop)
        return text + self._matcher.flush()

    def _feed(self, text: str, may_stop: bool) -> str:
        return self._matcher.feed(text, may_hit=may_stop) if text else ""


class _Window:
    """The last few tokens and the part of their text that was already given out."""

    def __init__(
        self, tokenizer: Tokenizer, prompt_token_ids: Sequence[int], hidden_ids: Set[int] | None
    ) -> None:
        self._decoder = decoder_of(tokenizer)
        self._hidden_ids = hidden_ids
        self._unfinished = 0
        """Tokens since the text last ended with a whole character."""
        self._token_ids, self._whole = self._context(prompt_token_ids)
        """The window, and how much of ``_seen`` stays if its end is part of a character."""
        self._seen = self._decode(self._token_ids)
        self._length = len(self._seen)
        self._boundaries = [] if self._seen.endswith(_REPLACEMENT) else [len(self._token_ids)]
        """Indices in the window before which the text ended with a whole character."""

    def push(self, token_id: int) -> str:
        """The text that is certain now."""
        self._token_ids.append(token_id)
        text = self._decode(self._token_ids)
        # Text gets shorter when the bytes of a real U+FFFD are complete under byte fallback.
        if text.endswith(_REPLACEMENT) and len(text) >= self._length:
            self._unfinished += 1
        else:
            self._unfinished = 0
            self._boundaries.append(len(self._token_ids))
        self._length = len(text)
        new = self._take(self._certain(text))
        settled = self._unfinished == 0 or self._unfinished > _MAX_UNFINISHED
        if settled and len(self._token_ids) > _MAX_WINDOW:
            self._shrink()
        return new

    def flush(self) -> str:
        text = self._decode(self._token_ids)
        if self._boundaries and not text.startswith(self._seen):
            # Byte fallback takes back whole characters when the bytes behind them are cut off.
            return self._decode(self._token_ids[self._boundaries[-1] :])
        return self._take(text)

    def _context(self, token_ids: Sequence[int]) -> tuple[list[int], int]:
        """The shortest tail that begins with a whole character, and the length of its text up to
        the last whole one."""
        available = len(token_ids)
        for length in range(min(_MIN_CONTEXT, available), min(_MAX_CONTEXT, available) + 1):
            tail = list(token_ids[available - length :])
            for end in range(length, max(length - _MAX_UNFINISHED, 0) - 1, -1):
                whole = self._decode(tail[:end])
                if _REPLACEMENT not in (whole[:1], whole[-1:]):
                    # A byte-level token may end one character and begin the next.
                    text = self._decode(tail)
                    text = text.rstrip(_REPLACEMENT) if text.startswith(whole) else whole
                    return tail, len(text)
        tail = list(token_ids[-_MIN_CONTEXT:])
        return tail, len(self._decode(tail)) - 1

    def _certain(self, text: str) -> str:
        """``text`` without an end that later tokens may change.

        Byte-level decoders show an unfinished character as one U+FFFD, byte fallback shows the
        whole run of bytes as such, so all are held back until they can't be a character's start.
        """
        if self._unfinished > _MAX_UNFINISHED:
            return text[:-1]
        return text.rstrip(_REPLACEMENT) if self._unfinished else text

    def _take(self, text: str) -> str:
        new = text[len(self._seen) if text.startswith(self._seen) else self._whole :]
        if new:
            self._seen, self._whole = text, len(text)
        return new

    def _shrink(self) -> None:
        """Forget old tokens, from a whole character on if there is one to start from."""
        latest = len(self._token_ids) - _MIN_CONTEXT
        start = max((b for b in self._boundaries if b <= latest), default=0)
        if start == 0:
            if self._unfinished == 0:
                return
            start = latest
        self._token_ids = self._token_ids[start:]
        self._boundaries = [b - start for b in self._boundaries if b > start]
        text = self._decode(self._token_ids)
        self._length = len(text)
        self._seen = self._certain(text)
        self._whole = len(self._seen)

    def _decode(self, token_ids: list[int]) -> str:
        hidden = self._hidden_ids
        if hidden is not None:
            token_ids = [token_id for token_id in token_ids if token_id not in hidden]
        return self._decoder(token_ids, hidden is None)
