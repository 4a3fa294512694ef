"""What an answer has to be, as far as that is not the model's to say: its grammar, and how long it
may think.

Where either leaves one way to go on, the tokens of it are ``forced``: they need no draw, and a step
runs them together, those that an answer begins with behind its prompt. Which tokens are forced is a
function of the tokens so far, so a sequence that is computed again, here or elsewhere, is forced to
the same.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

from backend_metal.engine.grammar.matcher import GrammarMatcher
from backend_metal.engine.grammar.thought_meter import ThoughtMeter
from backend_metal.engine.grammar.words import Ints


class Guide:
    def __init__(
        self,
        utf8: Callable[[int], bytes],
        matcher: GrammarMatcher | None = None,
        thoughts: ThoughtMeter | None = None,
        end_of_thought: Sequence[int] = (),
        *,
        forces_grammar: bool = True,
    ) -> None:
        """Of an answer that has not begun. ``utf8``: of a token; ``end_of_thought``: the tokens
        that end a thought; ``forces_grammar``: text that the grammar forces is cut as the tokenizer
        would, whatever other ways there are."""
        self._free = matcher.free_text() if matcher else None
        """What of it the matcher need not take."""
        self._free_mask: tuple[int, Ints] | None = None
        """Of the free text that the answer is in: its number, and its mask."""
        self._forces_grammar = forces_grammar
        self._utf8 = utf8
        self._thoughts = thoughts
        self._end_of_thought = end_of_thought
        self._forced: deque[int] = deque()
        self.matcher = matcher
        self._look_ahead()

    @property
    def forced(self) -> int | None:
        """The only token that may come next, if that is certain."""
        return self._forced[0] if self._forced else None

    @property
    def restricts(self) -> bool:
        """Whether not every token may come next."""
        return self.matcher is not None or bool(self._forced)

    @property
    def free_mask(self) -> Ints | None:
        """Which tokens may come next, where it is free text and that was filled before."""
        free, known = self._free, self._free_mask
        if free is None or known is None or not free.is_free or known[0] != free.number:
            return None
        return known[1]

    def filled(self, words: Ints) -> None:
        """The matcher's mask, as it is now, is ``words``."""
        assert self.matcher is not None, "there is a mask, and nothing that fills it"
        # One that fails in it is to fail the answer at the next token.
        if self._free is not None and self._free.is_free and not self.matcher.has_failed:
            self._free_mask = self._free.number, words.copy()

    def moved_by(self, token_id: int) -> GrammarMatcher | None:
        """The matcher, if such a token moves it."""
        is_passed = self._free is not None and self._free.passes(token_id)
        return None if is_passed else self.matcher

    @property
    def is_complete(self) -> bool:
        """Whether nothing but the end may follow."""
        return self.matcher is not None and self.matcher.is_complete

    @property
    def is_thinking(self) -> bool:
        """Whether the answer is within a thought."""
        return self._thoughts is not None and self._thoughts.is_inside

    def check_end(self) -> None:
        """Raises ``DeadEndError`` where the answer may not end: nothing but that was left."""
        if self.matcher is not None:
            self.matcher.check_end()

    @property
    def num_thought_tokens(self) -> int:
        return self._thoughts.num_tokens if self._thoughts else 0

    def advance(self, token_id: int) -> None:
        """Raises ``InvalidRequestError`` as the matcher does."""
        moved = self.moved_by(token_id)
        if moved is not None:
            moved.advance(token_id)
            if self._free is not None:
                self._free.push(token_id)
        if self._thoughts is not None:
            self._thoughts.push(self._utf8(token_id))
        if self.forced == token_id:
            self._forced.popleft()
        else:
            self._forced.clear()
        if not self._forced:
            self._look_ahead()

    def _look_ahead(self) -> None:
        if self._thoughts is not None and self._thoughts.is_due:
            self._forced.extend(self._end_of_thought)
        elif self._free is not None and self._free.is_free:
            return
        elif self.matcher is not None and self._forces_grammar:
            self._forced.extend(self.matcher.forced())
