"""Conversations to hold: single requests, and agents that work for many turns."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ops.bench.serve.conversation import Conversation, Turn
from ops.bench.serve.lengths import SHAREGPT_INPUT, SHAREGPT_OUTPUT, Lengths, LogNormal
from ops.bench.serve.writing import Writer

MESSAGE_TOKENS = 16
"""What a chat template writes around a message, and some more."""

AGENT_INPUT = LogNormal(median=500, sigma=1.0, longest=4096)
AGENT_OUTPUT = LogNormal(median=80, sigma=0.8, longest=1024)


@dataclass(frozen=True)
class Requests:
    """``num_prefixes`` prefixes of ``prefix_tokens``, one of which, by lot, is before each prompt;
    0: none has any."""

    input_tokens: Lengths = SHAREGPT_INPUT
    output_tokens: Lengths = SHAREGPT_OUTPUT
    num_prefixes: int = 0
    prefix_tokens: int = 512

    def conversations(self, count: int, writer: Writer, seed: int) -> list[Conversation]:
        """Others with another ``seed``, except for the prefixes."""
        shared = np.random.default_rng(0)
        prefixes = [writer.write(self.prefix_tokens, shared) for _ in range(self.num_prefixes)]
        dice = np.random.default_rng((seed, 1))
        return [
            Conversation(
                (
                    Turn(
                        writer.write(self.input_tokens.draw(dice), dice),
                        self.output_tokens.draw(dice),
                    ),
                ),
                prefixes[dice.integers(len(prefixes))] if prefixes else "",
            )
            for _ in range(count)
        ]


@dataclass(frozen=True)
class Agents:
    """Each asks again with all that was said and what its tools returned, until the conversation
    has ``grow_to`` tokens. All begin with the same instructions."""

    grow_to: int = 16_384
    system_tokens: int = 2048
    input_tokens: Lengths = AGENT_INPUT
    """What a person or a tool adds in a turn."""
    output_tokens: Lengths = AGENT_OUTPUT
    pause_s: float = 0.5
    """What a tool takes on average, with an exponential distribution."""

    def conversations(self, count: int, writer: Writer, seed: int) -> list[Conversation]:
        system = writer.write(self.system_tokens, np.random.default_rng(0))
        dice = np.random.default_rng((seed, 2))
        return [Conversation(self._turns(writer, dice), system) for _ in range(count)]

    def _turns(self, writer: Writer, dice: np.random.Generator) -> tuple[Turn, ...]:
        turns: list[Turn] = []
        left = self.grow_to - self.system_tokens - MESSAGE_TOKENS
        while True:
            added, answered = self.input_tokens.draw(dice), self.output_tokens.draw(dice)
            left -= added + answered + 2 * MESSAGE_TOKENS
            if left < 0 and turns:
                return tuple(turns)
            pause_s = float(dice.exponential(self.pause_s)) if turns and self.pause_s else 0.0
            turns.append(Turn(writer.write(added, dice), answered, pause_s))


Workload = Requests | Agents
