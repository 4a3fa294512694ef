"""How much a step may run without slowing its tokens by more than a factor: by measured cost.

As in Sarathi-Serve (Agrawal et al., 2024) prompts are prefilled in what decodes leave of a step's
time. Here all times are measured while serving, and so is the one that they are held against, a
decode alone: a factor fits any model and machine, where seconds could be out of its reach.
"""

from __future__ import annotations

from math import floor

import numpy as np
from numpy.typing import NDArray

from backend_metal.engine.schedule.decode_times import FORGOTTEN_AFTER, DecodeTimes, Mean
from backend_metal.engine.schedule.step import Step

FORGETTING = 0.995
"""Weight of each step against the one after it: some two hundred steps count."""
ENOUGH_ALONE = 16
"""Steps with one decode alone after which their own times count, and no longer the fit's."""
PRIOR_STEPS = 0.1
"""How many steps' worth of weight what was known before has."""
FEW_TOKENS = 64
"""Beside decodes: they cost hardly more than it does to compute anything beside decodes."""
SCALE = np.array([1.0, 1 / 8, 1 / 64])
"""Brings decodes and prefill tokens of a typical step to about one."""


class StepCost:
    """Seconds of a step: a base, so much a decode, and so much a prefill token.

    A least squares fit that forgets. Where the latest steps say nothing about one of the three, it
    stays as it was. Each step weighs the less the longer it took, so that one stall counts little.
    """

    def __init__(self) -> None:
        self._moments = np.zeros((3, 3))
        self._sums = np.zeros(3)
        self._latest = 1.0
        """Seconds."""
        self._cost = np.zeros(3)
        self._is_solved = True

    def observe(self, num_decodes: int, num_prefill_tokens: int, seconds: float) -> None:
        """``seconds`` is more than 0."""
        features = SCALE * (1, num_decodes, num_prefill_tokens)
        self._moments = FORGETTING * self._moments + np.outer(features, features) / seconds
        self._sums = FORGETTING * self._sums + features
        self._latest = seconds
        self._is_solved = False

    @property
    def base(self) -> float:
        return float(self._solved()[0])

    @property
    def per_decode(self) -> float:
        return float(self._solved()[1])

    @property
    def per_prefill_token(self) -> float:
        return float(self._solved()[2])

    def _solved(self) -> NDArray[np.float64]:
        """Only when somebody asks: it takes as long as all else that a step's schedule does."""
        if not self._is_solved:
            prior = PRIOR_STEPS / self._latest
            cost = np.linalg.solve(
                self._moments + prior * np.eye(3), self._sums + prior * self._cost / SCALE
            )
            self._cost = SCALE * np.maximum(cost, 0.0)
            self._is_solved = True
        return self._cost


class DecodeAlone:
    """Seconds of a step that is one decode and nothing else, as it last was.

    A harmonic mean that forgets, so that one stall counts little. Between such steps it stays as it
    was: a machine that is slower when busy is held to what it does when it is not. Held too low, it
    leaves one sequence, whose steps show what a decode alone takes now.
    """

    def __init__(self) -> None:
        self._num_steps = 0
        self._weight = 0.0
        self._sum = 0.0

    def observe(self, seconds: float) -> None:
        self._num_steps += 1
        self._weight = FORGETTING * self._weight + 1 / seconds
        self._sum = FORGETTING * self._sum + 1

    @property
    def seconds(self) -> float | None:
        """None until enough such steps were seen."""
        return None if self._num_steps < ENOUGH_ALONE else self._sum / self._weight


class StepPace:
    """Bounds on the next step, and what one costs. Without a factor there are no bounds.

    Batches grow by one sequence a step. What a sequence costs shows only in batches of several
    sizes: without that a crowd on a new engine would seem to be what a step takes in any case.
    """

    def __init__(
        self,
        max_slowdown: float | None = None,
        *,
        least_prefill: int = 16,
        decodes_are_recorded: bool = False,
    ) -> None:
        """``least_prefill``: tokens of prompts that go through any step, lest they starve.
        ``decodes_are_recorded``: a step takes much longer as soon as it is a large one."""
        self._max_slowdown = max_slowdown
        self._decodes_are_recorded = decodes_are_recorded
        self._least_prefill = least_prefill
        self._num_decodes = 0.0
        self._num_prefill_tokens = 0.0
        self._num_sequences = 0
        """In the latest step."""
        self.cost = StepCost()
        self.decode_times = DecodeTimes()
        self._mixed = Mean()
        """Of steps with few tokens beside decodes."""
        self._num_steps = 0
        self._alone = DecodeAlone()

    def observe(self, step: Step, seconds: float) -> None:
        """A step took so long, counted from the end of the one before it."""
        if not step.is_typical:
            return
        num_prefill_tokens = step.num_tokens - step.num_decodes
        self._num_steps += 1
        if not num_prefill_tokens:
            self.decode_times.observe(step.num_decodes, seconds)
        elif step.num_decodes and num_prefill_tokens <= FEW_TOKENS:
            self._mixed.add(seconds, self._num_steps)
        if self._num_steps - self._mixed.latest > FORGOTTEN_AFTER:
            # Worth another try.
            self._mixed = Mean(latest=self._num_steps)
        if self._max_slowdown is None:
            return
        self.cost.observe(step.num_decodes, num_prefill_tokens, seconds)
        self._num_sequences = len(step.scheduled)
        if step.num_decodes == step.num_tokens == 1:
            self._alone.observe(seconds)
        self._num_decodes = FORGETTING * self._num_decodes + step.num_decodes
        self._num_prefill_tokens = FORGETTING * self._num_prefill_tokens + num_prefill_tokens

    def pays_together(self, num_tokens: int, num_decodes: int) -> bool:
        """Whether to compute so many known tokens of ``num_decodes`` answers at once, rather than
        each in a step of its own beside decodes. Together they save each a place in a step; but
        where steps of few tokens are recorded all wait for one that is not."""
        if not self._decodes_are_recorded:
            return True
        decode, mixed = self.decode_times.seconds_of(num_decodes), self._mixed.seconds
        if decode is None or mixed is None:
            return True
        return num_tokens * decode > (mixed - decode) * num_decodes

    def max_prefill_tokens(self, num_decodes: int, most: int) -> int:
        """Prefill tokens beside ``num_decodes`` decodes. Without these nobody waits for a token,
        and a step may take as long as it likes."""
        if self._max_slowdown is None or not num_decodes:
            return most
        per_token = self.cost.per_prefill_token
        if not per_token:
            return most
        spare = self._seconds_beyond_base() - num_decodes * self.cost.per_decode
        return min(most, max(self._least_prefill, floor(spare / per_token)))

    def max_sequences(self, most: int) -> int:
        """Sequences that can decode in time, at least one, with the prefill that keeps them coming:
        as many prompt tokens for each decode as of late."""
        if self._max_slowdown is None:
            return most
        most = min(most, self._num_sequences + 1)
        if not self._num_decodes:
            return most
        prefill = self.cost.per_prefill_token * self._num_prefill_tokens / self._num_decodes
        per_sequence = self.cost.per_decode + prefill
        if not per_sequence:
            return most
        return min(most, max(1, floor(self._seconds_beyond_base() / per_sequence)))

    def _seconds_beyond_base(self) -> float:
        assert self._max_slowdown is not None
        alone = self._alone.seconds or self.cost.base + self.cost.per_decode
        return self._max_slowdown * alone - self.cost.base
