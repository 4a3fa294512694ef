"""One sequence's place in a grammar."""

from __future__ import annotations

from llguidance import LLMatcher

from backend_metal.engine.grammar.free_text import FreeTextReader
from deployments.backend import DeadEndError, InvalidRequestError


class GrammarMatcher:
    """Knows which tokens may come next. What it knows is a function of the tokens so far, so a
    sequence that is computed again, here or elsewhere, goes on as it would have."""

    def __init__(
        self,
        matcher: LLMatcher,
        param: str,
        free: FreeTextReader | None = None,
        left_out: tuple[str, ...] = (),
    ) -> None:
        """``param``: the field that the grammar came in. ``free``: of an answer that has not begun;
        None: nothing of it is left to the model. ``left_out``: what of it is not enforced."""
        self.left_out = left_out
        self._free = free
        self.native = matcher
        """llguidance's, for a ``MatcherPool``."""
        self._param = param
        self._taken: tuple[int, bool] | None = None

    def copy(self) -> GrammarMatcher:
        """For another sequence that has come as far as this one."""
        return GrammarMatcher(self.native.deep_copy(), self._param, self._free)

    def free_text(self) -> FreeTextReader | None:
        """For an answer that begins."""
        return self._free.fresh if self._free else None

    @property
    def is_complete(self) -> bool:
        """Whether nothing but the end may follow."""
        return self.native.is_stopped()

    @property
    def is_accepting(self) -> bool:
        """Whether the answer may end here."""
        return self.native.is_accepting()

    @property
    def has_failed(self) -> bool:
        """Whether it can't tell any more."""
        return self.native.is_error()

    def check_end(self) -> None:
        """Raises ``DeadEndError`` where the answer may not end."""
        if not self.native.is_accepting():
            raise DeadEndError(self._param)

    def forced(self) -> list[int]:
        """The tokens that come next because nothing else may; they are cut as the tokenizer cuts
        text, short of where what follows might cut them otherwise."""
        forced: list[int] = self.native.compute_ff_tokens()
        # Text that spells a special token is cut as that, and may not be.
        return forced[: self.native.validate_tokens(forced)] if forced else forced

    def has_taken(self, token_id: int, *, is_taken: bool) -> None:
        """``native`` was given the token that comes next; ``advance`` is next. ``is_taken``: it
        may come."""
        self._taken = token_id, is_taken

    def advance(self, token_id: int) -> None:
        """Raises ``InvalidRequestError`` for a token that may not come here, or when the grammar
        has become too complex to tell."""
        taken, self._taken = self._taken, None
        if taken is None:
            taken = token_id, self.native.consume_token(token_id)
        assert taken[0] == token_id, f"{taken[0]} was taken for {token_id}"
        if not taken[1]:
            raise InvalidRequestError(
                f"the answer can't be held to {self._param} any further: {self.native.get_error()}",
                param=self._param,
            )
