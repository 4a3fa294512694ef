"""How much a model is to think before it answers, in the words of several APIs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal, Self

from pydantic import Field, model_validator

from deployments.http.errors import shown
from deployments.protocol import unsupported
from deployments.protocol.strict import RefusedError, StrictModel

Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]
EFFORT = '"none", "minimal", "low", "medium", "high", "xhigh" or "max"'
BUDGET = "an integer of at least 0, in tokens"
_MOST = 2**31
_SWITCHES = {"enabled": True, "disabled": False}


class Reasoning(StrictModel):
    """OpenRouter's."""

    effort: Effort | None = Field(None, description=EFFORT)
    enabled: bool | None = Field(None, description="a boolean")
    max_tokens: int | None = Field(None, ge=0, lt=_MOST, description=BUDGET)
    exclude: bool | None = Field(None, description="a boolean")


class ThinkingSwitch(StrictModel):
    """DeepSeek's and GLM's."""

    unsupported: ClassVar = unsupported.THINKING_FIELDS

    type: Literal["enabled", "disabled"] = Field(description='"enabled" or "disabled"')
    budget_tokens: int | None = Field(None, ge=0, lt=_MOST, description=BUDGET)


class ReasoningFields(StrictModel):
    """Fields of a request. One that has several names may have one value only."""

    _names: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "effort": ("reasoning_effort", "reasoning.effort"),
        "enabled": ("enable_thinking", "reasoning.enabled", "thinking.type"),
        "budget": (
            "thinking_token_budget",
            "thinking_budget",
            "reasoning.max_tokens",
            "thinking.budget_tokens",
        ),
    }

    reasoning_effort: Effort | None = Field(None, description=EFFORT)
    reasoning: Reasoning | None = Field(None, description="an object")
    thinking: ThinkingSwitch | None = Field(None, description="an object")
    enable_thinking: bool | None = Field(None, description="a boolean")
    thinking_token_budget: int | None = Field(None, ge=0, lt=_MOST, description=BUDGET)
    thinking_budget: int | None = Field(None, ge=0, lt=_MOST, description=BUDGET)
    include_reasoning: bool | None = Field(None, description="a boolean")

    @model_validator(mode="after")
    def _agree_on_thinking(self) -> Self:
        for names in self._names.values():
            said = [(name, value) for name in names if (value := self._said(name)) is not None]
            for name, value in said[1:]:
                if value != said[0][1]:
                    raise RefusedError(
                        f"is {shown(value)}, but {said[0][0]} is {shown(said[0][1])}; send one",
                        where=f".{name}",
                    )
        if self.effort == "none" and self._first("enabled"):
            raise RefusedError('is "none", but thinking is to be on', where=f".{self.effort_param}")
        if self.effort not in (None, "none") and self._first("enabled") is False:
            raise RefusedError(
                f"is {shown(self.effort)}, but thinking is to be off", where=f".{self.effort_param}"
            )
        if (exclude := self._said("reasoning.exclude")) is not None and (
            self.include_reasoning == exclude
        ):
            raise RefusedError(
                f"is {shown(exclude)}, and so is include_reasoning; send one",
                where=".reasoning.exclude",
            )
        return self

    @property
    def effort(self) -> Effort | None:
        effort: Effort | None = self._first("effort")
        return effort

    @property
    def effort_param(self) -> str:
        return "reasoning_effort" if self.reasoning_effort else "reasoning.effort"

    @property
    def thinks(self) -> bool | None:
        """Whether it is to think at all; None: as the model does by itself, or as hard as
        ``effort`` says."""
        enabled: bool | None = self._first("enabled")
        return False if self.effort == "none" else enabled

    @property
    def thinks_param(self) -> str:
        if self.effort == "none":
            return self.effort_param
        return self._name_of("enabled")

    @property
    def thinking_tokens(self) -> int | None:
        """The most that it may think; None: nothing was said."""
        budget: int | None = self._first("budget")
        return budget

    @property
    def budget_param(self) -> str:
        """The name under which ``thinking_tokens`` came."""
        return self._name_of("budget")

    @property
    def shows_reasoning(self) -> bool:
        """Whether the answer tells what was thought."""
        return self.include_reasoning is not False and not self._said("reasoning.exclude")

    def _name_of(self, kind: str) -> str:
        """Under which it came."""
        names = self._names[kind]
        return next((name for name in names if self._said(name) is not None), names[0])

    def _first(self, kind: str) -> Any:
        said = (self._said(name) for name in self._names[kind])
        return next((value for value in said if value is not None), None)

    def _said(self, name: str) -> Any:
        outer, _, inner = name.partition(".")
        value = getattr(self, outer)
        said = getattr(value, inner) if inner and value is not None else value
        return _SWITCHES.get(said, said)
