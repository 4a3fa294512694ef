"""What a model's chat template understands of how much it is to think."""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass, field
from typing import Any

TEMPLATE_SWITCHES = ("enable_thinking", "thinking")
"""Names under which templates know whether to think."""
EFFORTS = ("minimal", "low", "medium", "high", "xhigh", "max")
"""From the least on."""
BUDGETS: Mapping[str, int] = {"minimal": 512, "low": 1024, "medium": 8192}
"""Tokens of thoughts, for a template that knows no efforts. More than that is no bound."""
KNOWN_EFFORTS = frozenset({"low", "medium", "high"})
"""Of a template that passes on what it is told: gpt-oss's."""


class UnservedThinkingError(Exception):
    """The model can't be made to do it."""

    def __init__(self, message: str, *, is_budget: bool = False) -> None:
        """``is_budget``: it is about that, and not about whether to think."""
        super().__init__(message)
        self.is_budget = is_budget


@dataclass(frozen=True)
class Thinking:
    """How one answer is thought over."""

    template_arguments: Mapping[str, Any] = field(default_factory=dict)
    budget: int | None = None
    """Tokens after which thoughts are ended; None: none."""


def thinking_of(
    variables: Mapping[str, Set[str]],
    *,
    thinks: bool | None,
    effort: str | None,
    budget: int | None,
    can_be_ended: bool,
) -> Thinking:
    """``variables``: of the template, with the texts that it compares them with. ``can_be_ended``:
    whether
    it is known what stands behind a thought.

    Raises ``UnservedThinkingError``.
    """
    switch = next((name for name in TEMPLATE_SWITCHES if name in variables), None)
    efforts = variables.get("reasoning_effort")
    arguments: dict[str, Any] = {}
    if thinks is False:
        if switch is not None:
            arguments[switch] = False
        elif efforts is not None and "none" in efforts:
            arguments["reasoning_effort"] = "none"
        elif can_be_ended:
            budget = 0
        elif efforts is not None:
            raise UnservedThinkingError("this model always thinks")
        return Thinking(arguments, budget)
    if thinks and switch is None and efforts is None and not can_be_ended:
        raise UnservedThinkingError("this model does not think")
    if budget is not None and not can_be_ended and (switch is not None or efforts is not None):
        raise UnservedThinkingError("nobody can end this model's thoughts", is_budget=True)
    if switch is not None and (thinks or effort is not None):
        arguments[switch] = True
    if effort is not None and efforts is not None:
        arguments["reasoning_effort"] = _nearest(effort, efforts)
    elif effort is not None and budget is None:
        budget = BUDGETS.get(effort)
    if budget is not None and "thinking_budget" in variables:
        arguments["thinking_budget"] = budget
    return Thinking(arguments, budget)


def _nearest(effort: str, known: Set[str]) -> str:
    """Of those that the template tells apart."""
    levels = [one for one in EFFORTS if one in known]
    if len(levels) < 2 and "none" not in known:
        levels = [one for one in EFFORTS if one in KNOWN_EFFORTS]
    rank = EFFORTS.index(effort)
    return min(levels, key=lambda one: abs(EFFORTS.index(one) - rank)) if levels else effort
