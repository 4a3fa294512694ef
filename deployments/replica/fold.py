"""Deltas folded into whole choices and token counts."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from deployments.backend import Delta, FinishReason


@dataclass
class Choice:
    """Everything that the deltas of one choice added up to."""

    text: list[str] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    logprobs: defaultdict[str, list[bytes]] = field(default_factory=lambda: defaultdict(list))
    """By the name of an array: what each delta adds to it, as JSON without the brackets."""
    finish_reason: FinishReason | None = None

    def add(self, delta: Delta, logprobs: Mapping[str, bytes]) -> None:
        self.text.append(delta.text)
        self.token_ids += delta.token_ids
        self.finish_reason = delta.finish_reason or self.finish_reason
        for member, elements in logprobs.items():
            if elements:
                self.logprobs[member].append(elements)


class RunningUsage:
    """Of each choice, as far as it has come."""

    def __init__(self) -> None:
        self._prompt_tokens: dict[int, int] = {}
        self._completion_tokens: Counter[int] = Counter()

    def add(self, choice: int, delta: Delta) -> None:
        self._prompt_tokens[choice] = delta.num_prompt_tokens
        self._completion_tokens[choice] += len(delta.token_ids)

    def as_json(self, choice: int) -> dict[str, int]:
        prompt, completion = self._prompt_tokens[choice], self._completion_tokens[choice]
        return {
            "prompt_tokens": prompt,
            "completion_tokens": completion,
            "total_tokens": prompt + completion,
        }


class Usage:
    """Tokens of a whole request; a prompt counts once, however many choices share it."""

    def __init__(
        self, choices_per_prompt: int, cached_tokens: Mapping[int, int] | None = None
    ) -> None:
        """``cached_tokens``: by prompt, of those that have begun on another replica."""
        self._choices_per_prompt = choices_per_prompt
        self._cached_tokens = cached_tokens or {}
        self._prompts_seen: set[int] = set()
        self.prompt_tokens = 0
        self.cached_tokens = 0
        self.prefix_misses: list[str] = []
        """Of each prompt that was not found whole in the prefix cache: why."""
        self.completion_tokens = 0
        self._thought_tokens: dict[int, int] = {}
        """By choice."""

    @property
    def reasoning_tokens(self) -> int:
        """Of the completion tokens."""
        return sum(self._thought_tokens.values())

    def add(self, choice: int, delta: Delta) -> None:
        self.completion_tokens += len(delta.token_ids)
        self._thought_tokens[choice] = delta.num_thought_tokens
        prompt = choice // self._choices_per_prompt
        if prompt not in self._prompts_seen:
            self._prompts_seen.add(prompt)
            self.prompt_tokens += delta.num_prompt_tokens
            self.prefix_misses += [delta.prefix_miss] if delta.prefix_miss else []
            self.cached_tokens += self._cached_tokens.get(prompt, delta.num_cached_tokens)

    def as_json(self) -> dict[str, Any]:
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "total_tokens": self.prompt_tokens + self.completion_tokens,
            "prompt_tokens_details": {"cached_tokens": self.cached_tokens},
            "completion_tokens_details": {"reasoning_tokens": self.reasoning_tokens},
        }
