"""What an answer has to be, as far as that is not the model's to say: its grammar, and how long it
may think.

Where either leaves one way to go on, the tokens of it are ``forced``: they need no draw, and a step
runs them together. Which tokens are forced is a function of the tokens so far, so a sequence that
is computed again, here or elsewhere, is forced to the same.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

from backend_metal.engine.grammar.matcher import GrammarMatcher
from backend_metal.engine.grammar.thought_meter import ThoughtMeter


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
    def is_complete(self) -> bool:
        """Whether nothing but the end may follow."""
        return self.matcher is not None and self.matcher.is_complete

    @property
    def num_thought_tokens(self) -> int:
        return self._thoughts.num_tokens if self._thoughts else 0

    def advance(self, token_id: int) -> None:
        """Raises ``InvalidRequestError`` as the matcher does."""
        if self.matcher is not None:
            self.matcher.advance(token_id)
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
        elif self.matcher is not None and self._forces_grammar:
            self._forced.extend(self.matcher.forced())
