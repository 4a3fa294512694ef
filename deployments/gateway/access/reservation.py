"""What a request may take of its key's tokens: reserved before it runs, given back as it turns out.

Nothing that was reserved is given twice, so a key gets no more than its limit and what has refilled
since, whatever its requests do and however they end.
"""

from __future__ import annotations

from dataclasses import dataclass

from deployments.protocol.common import UNBOUNDED_NEW_TOKENS_ESTIMATE, PromptSize


@dataclass(frozen=True)
class Reservation:
    tokens: int
    demand: Demand
    max_tokens: int
    """Of each sequence."""
    max_prompt_tokens: tuple[int, ...] = ()
    """Of each prompt; empty where there is enough for whatever they turn out to be."""

    @property
    def answer_bound(self) -> int | None:
        """What the engine has to be told, since the request does not say it; None: nothing."""
        is_bound = self.demand.max_tokens is None and self.max_tokens < self.demand.max_model_len
        return self.max_tokens if is_bound else None

    def after_prompts(self, num_tokens: int) -> int:
        """What it comes to at most, once the prompts are known to have so many tokens."""
        demand = self.demand
        room = len(demand.prompts) * demand.max_model_len - num_tokens
        answers = min(demand.num_sequences * self.max_tokens, demand.num_choices * room)
        return num_tokens + answers


@dataclass(frozen=True)
class Demand:
    """What a request asks for."""

    prompts: tuple[PromptSize, ...]
    """None longer than the context."""
    num_choices: int
    """Sequences of each prompt."""
    max_tokens: int | None
    """Of each sequence; None: until the context is full."""
    max_model_len: int
    generates: bool = True

    @property
    def num_sequences(self) -> int:
        return len(self.prompts) * self.num_choices

    @property
    def num_at_once(self) -> int:
        """Sequences that count for what may run at a time: prompts that nothing is generated for
        are computed a few at a time, and count as one."""
        return self.num_sequences if self.generates else 1

    def least(self, limit: int) -> int:
        """With fewer tokens it should not begin. Past ``limit``, which a key has at most, it never
        can."""
        least = self.likely_prompt_tokens + self.num_sequences * self._least_answer(limit)
        return min(least, self._longest)

    def fit(self, left: int, limit: int) -> Reservation:
        """``left``: at least ``least``. Without ``max_tokens`` an answer gets half of what is left
        behind the prompts, so that there is something for others at the same time."""
        answer = self._least_answer(limit)
        prompts = min(self._most, left - self.num_sequences * answer)
        if self.max_tokens is None:
            half = (left - prompts) // 2 // self.num_sequences
            answer = max(answer, min(half, self.max_model_len))
        tokens = min(prompts + self.num_sequences * answer, self._longest)
        is_short = prompts < self._most and tokens < self._longest
        return Reservation(tokens, self, answer, self._parts(prompts) if is_short else ())

    @property
    def likely_prompt_tokens(self) -> int:
        return sum(one.likely for one in self.prompts)

    @property
    def _most(self) -> int:
        return sum(one.most for one in self.prompts)

    @property
    def _longest(self) -> int:
        """No sequence gets longer than the context, with its prompt."""
        return self.num_sequences * self.max_model_len

    def _least_answer(self, limit: int) -> int:
        if self.max_tokens is not None:
            return min(self.max_tokens, self.max_model_len)
        affordable = (limit - self.likely_prompt_tokens) // self.num_sequences
        return max(1, min(UNBOUNDED_NEW_TOKENS_ESTIMATE, self.max_model_len, affordable))

    def _parts(self, num_tokens: int) -> tuple[int, ...]:
        """``num_tokens`` divided between the prompts: to each what it likely needs, and of the rest
        in proportion to what it may need beyond."""
        likely = self.likely_prompt_tokens
        spare, needed = num_tokens - likely, self._most - likely
        return tuple(one.likely + spare * (one.most - one.likely) // needed for one in self.prompts)
