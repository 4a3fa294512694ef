"""What one model speaks: a form, and which of its markers are special tokens to it."""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Self

from deployments.backend import Thoughts
from deployments.protocol.chat_formats.detect import detect
from deployments.protocol.chat_formats.formats import FORMATS
from deployments.protocol.chat_formats.infill import InfillFormat, find_infill
from deployments.protocol.chat_formats.messages import MARKERS, THOUGHT
from deployments.protocol.chat_formats.reader import ChatFormat
from deployments.protocol.chat_formats.switches import TEMPLATE_SWITCHES


@dataclass(frozen=True)
class Dialect:
    chat_format: ChatFormat = FORMATS["plain"]
    special_tokens: Mapping[str, int] = field(default_factory=dict)
    """Ids of the markers that are no text."""
    template_variables: Mapping[str, Set[str]] = field(default_factory=dict)
    """What the chat template can be told, with the texts that it tells apart there."""

    calls_end_thoughts: bool = False
    """Whether calls begin with a token of their own, which no thought has in it."""
    infill: InfillFormat | None = None
    """How it is asked for what stands between two texts; None: it can't be."""
    infill_ends: tuple[int, ...] = ()
    """Tokens that end such an answer, beside those that end any."""

    @classmethod
    def of(
        cls,
        chat_template: str,
        added_tokens: Mapping[str, int],
        special_tokens: Set[str],
        template_variables: Mapping[str, Set[str]] | None = None,
        *,
        name: str = "auto",
    ) -> Self:
        """``name``: of the form; ``auto``: as the template and the tokens tell."""
        name = detect(chat_template, added_tokens) if name == "auto" else name
        chat_format = FORMATS[name]
        thinking = chat_format.thinking
        if thinking and thinking[0] not in added_tokens and thinking[0] not in chat_template:
            chat_format = replace(chat_format, thinking=None)
        infill = find_infill(added_tokens)
        ends = infill.ends if infill else ()
        return cls(
            chat_format,
            {
                text: token_id
                for text, token_id in added_tokens.items()
                if text in special_tokens and any(text in one for one in markers(chat_format))
            },
            template_variables or {},
            any(len(text) > 1 and text in chat_format.first_marker for text in added_tokens),
            infill,
            tuple(added_tokens[end] for end in ends if end in added_tokens),
        )

    @property
    def calls_tools(self) -> bool:
        return self.chat_format.calls_tools

    @property
    def reads(self) -> bool:
        """Whether there is anything in its answers but text."""
        return self.chat_format.calls_tools or self.chat_format.thinking is not None

    @property
    def can_think(self) -> bool:
        """Whether a request can make it think."""
        switches = {*TEMPLATE_SWITCHES, "reasoning_effort"}
        return self.thoughts() is not None or not switches.isdisjoint(self.template_variables)

    @cached_property
    def shown_tokens(self) -> tuple[str, ...]:
        """What is to be part of the text, for the reader."""
        return tuple(sorted(self.special_tokens))

    def thinks(self, prompt_end: str) -> bool:
        """Whether a prompt that ends so has begun a thought."""
        thoughts = self.thoughts() if self.chat_format.thinking else None
        return thoughts is not None and thoughts.has_begun(prompt_end)

    def thoughts(self, budget: int | None = None, *, with_calls: bool = False) -> Thoughts | None:
        """Where its thoughts stand; ``budget`` is the most tokens of them. ``with_calls``: there
        are tools to call."""
        marks = THOUGHT if self.chat_format.has_messages else self.chat_format.thinking
        if marks is None:
            return None
        start, end = marks
        starts = (*self.chat_format.wrappers[:1], *(form.start for form in self.chat_format.calls))
        before = tuple(filter(None, starts)) if with_calls else ()
        return Thoughts(start, end, budget, before, self.calls_end_thoughts)


TEXT_ALONE = Dialect()


def markers(chat_format: ChatFormat) -> list[str]:
    found = [*chat_format.wrappers, *(chat_format.thinking or ()), *(chat_format.answer or ())]
    for form in chat_format.calls:
        found += form.markers
    if chat_format.has_messages:
        found += MARKERS
    return [one for one in found if one]
