"""What the model makes of a prompt's own tokens, collected while the prompt is computed."""

from __future__ import annotations

from dataclasses import dataclass

MAX_ROWS_PER_STEP = 128
"""Of logits that are computed for prompts, of all sequences: each is as wide as the vocabulary."""


@dataclass(frozen=True)
class PromptToken:
    """A token of the prompt, by the logits of what stands before it."""

    token_id: int
    logprob: float = 0.0
    rank: int = 0
    """Among all tokens, from 1; 0 for the first of a prompt, which nothing stands before."""
    top: tuple[tuple[int, float], ...] = ()
    """The most likely (token id, logprob), best first."""


class PromptReadings:
    """Of one sequence. A prompt that is computed again, after a preemption, goes on being read
    where it had got to."""

    def __init__(self, num_alternatives: int, first_token: int, num_prompt_tokens: int) -> None:
        self.num_alternatives = num_alternatives
        self._num_prompt_tokens = num_prompt_tokens
        self._tokens = [PromptToken(first_token)]
        self._num_taken = 0

    @property
    def is_complete(self) -> bool:
        return len(self._tokens) == self._num_prompt_tokens

    @property
    def next_row(self) -> int:
        """The first position whose logits are still to be read."""
        return len(self._tokens) - 1

    def rows(self, start: int, stop: int) -> range:
        """Of the positions from ``start`` to ``stop``, those whose logits are still to be read."""
        return range(max(start, self.next_row), min(stop, self._num_prompt_tokens - 1))

    def add(self, tokens: list[PromptToken], first_row: int) -> None:
        """What the logits of rows from ``first_row`` on say of the tokens behind them. Those of a
        prompt that was begun again may come twice."""
        self._tokens += tokens[self.next_row - first_row :]

    def take(self) -> list[PromptToken]:
        """What was added since the last time, the first token included."""
        taken = self._tokens[self._num_taken :]
        self._num_taken = len(self._tokens)
        return taken
