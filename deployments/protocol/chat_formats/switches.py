"""What a model's chat template understands of how much it is to think."""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass, field
from typing import Any

TEMPLATE_SWITCHES = ("enable_thinking", "thinking")
"""Names under which templates know whether to think."""
EFFORTS = ("minimal", "low", "medium", "high", "xhigh", "max")
"""From the least on."""
KNOWN_EFFORTS = frozenset({"low", "medium", "high"})
"""Of a template that passes on what it is told: gpt-oss's."""


class AlwaysThinksError(Exception):
    """The model can't be told not to think."""


class NeverThinksError(Exception):
    """The model can't be told to think."""


@dataclass(frozen=True)
class Thinking:
    """How one answer is thought over."""

    template_arguments: Mapping[str, Any] = field(default_factory=dict)


def thinking_of(
    variables: Mapping[str, Set[str]],
    *,
    thinks: bool | None,
    effort: str | None,
    can_be_ended: bool,
) -> Thinking:
    """``variables``: of the template, with the texts that it compares them with. ``can_be_ended``:
    whether
    it is known what stands behind a thought.

    Raises ``AlwaysThinksError``, ``NeverThinksError``.
    """
    switch = next((name for name in TEMPLATE_SWITCHES if name in variables), None)
    efforts = variables.get("reasoning_effort")
    arguments: dict[str, Any] = {}
    if thinks is False:
        if switch is not None:
            arguments[switch] = False
        elif efforts is not None and "none" in efforts:
            arguments["reasoning_effort"] = "none"
        elif can_be_ended or efforts is not None:
            raise AlwaysThinksError
        return Thinking(arguments)
    if thinks and switch is None and efforts is None and not can_be_ended:
        raise NeverThinksError
    if switch is not None and (thinks or effort is not None):
        arguments[switch] = True
    if effort is not None and efforts is not None:
        arguments["reasoning_effort"] = _nearest(effort, efforts)
    return Thinking(arguments)


def _nearest(effort: str, known: Set[str]) -> str:
    """Of those that the template tells apart."""
    levels = [one for one in EFFORTS if one in known]
    if len(levels) < 2 and "none" not in known:
        levels = [one for one in EFFORTS if one in KNOWN_EFFORTS]
    rank = EFFORTS.index(effort)
    return min(levels, key=lambda one: abs(EFFORTS.index(one) - rank)) if levels else effort
