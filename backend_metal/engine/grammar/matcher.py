"""One sequence's place in a grammar."""

from __future__ import annotations

from llguidance import LLMatcher

from deployments.backend import InvalidRequestError


class GrammarMatcher:
    """Knows which tokens may come next. What it knows is a function of the tokens so far, so a
    sequence that is computed again, here or elsewhere, goes on as it would have."""

    def __init__(self, matcher: LLMatcher, param: str) -> None:
        """``param``: the field that the grammar came in."""
        self.native = matcher
        """llguidance's, for masks."""
        self._param = param

    def copy(self) -> GrammarMatcher:
        """For another sequence that has come as far as this one."""
        return GrammarMatcher(self.native.deep_copy(), self._param)

    @property
    def is_complete(self) -> bool:
        """Whether nothing but the end may follow."""
        return self.native.is_stopped()

    @property
    def is_accepting(self) -> bool:
        """Whether the answer may end here."""
        return self.native.is_accepting()

    def forced(self) -> list[int]:
        """The tokens that come next because nothing else may; they are cut as the tokenizer cuts
        text, short of where what follows might cut them otherwise."""
        forced: list[int] = self.native.compute_ff_tokens()
        return forced

    def advance(self, token_id: int) -> None:
        """Raises ``InvalidRequestError`` for a token that may not come here, or when the grammar
        has become too complex to tell."""
        if not self.native.consume_token(token_id):
            raise InvalidRequestError(
                f"the answer can't be held to {self._param} any further: {self.native.get_error()}",
                param=self._param,
            )
