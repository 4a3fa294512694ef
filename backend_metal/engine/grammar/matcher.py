"""One sequence's place in a grammar, and the masks of many of them for one step."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt
from llguidance import LLExecutor, LLMatcher
from llguidance.numpy import fill_next_token_bitmask_par

from deployments.backend import InvalidRequestError

BITS = 32
EVERYTHING = -1
"""A word of a mask that allows all of its tokens."""

Masks = npt.NDArray[np.int32]


class GrammarMatcher:
    """Knows which tokens may come next. What it knows is a function of the tokens so far, so a
    sequence that is computed again, here or elsewhere, goes on as it would have."""

    def __init__(self, matcher: LLMatcher, param: str) -> None:
        """``param``: the field that the grammar came in."""
        self._matcher = matcher
        self._param = param

    def copy(self) -> GrammarMatcher:
        """For another sequence that has come as far as this one."""
        return GrammarMatcher(self._matcher.deep_copy(), self._param)

    @property
    def is_complete(self) -> bool:
        """Whether nothing but the end may follow."""
        return self._matcher.is_stopped()

    @property
    def is_accepting(self) -> bool:
        """Whether the answer may end here."""
        return self._matcher.is_accepting()

    def advance(self, token_id: int) -> None:
        """Raises ``InvalidRequestError`` for a token that may not come here, or when the grammar
        has become too complex to tell."""
        if not self._matcher.consume_token(token_id):
            raise InvalidRequestError(
                f"the answer can't be held to {self._param} any further: "
                f"{self._matcher.get_error()}",
                param=self._param,
            )


class MaskFiller:
    """Fills masks in threads of its own, without Python's lock."""

    def __init__(self) -> None:
        self._executor = LLExecutor()

    def fill(
        self, matchers: Iterable[tuple[int, GrammarMatcher]], num_rows: int, vocab_size: int
    ) -> Masks:
        """int32 ``[num_rows, ceil(vocab_size / 32)]``, a bit for each token; rows without a
        matcher allow every token, as does one whose matcher has failed: ``advance`` tells."""
        masks = np.full((num_rows, -(-vocab_size // BITS)), EVERYTHING, np.int32)
        alive = [
            (matcher._matcher, row) for row, matcher in matchers if not matcher._matcher.is_error()
        ]
        if alive:
            fill_next_token_bitmask_par(self._executor, alive, masks)
        return masks
