"""Rules for answers that are messages with headers."""

from __future__ import annotations

from collections.abc import Sequence

from deployments.protocol.chat_formats.messages import (
    CALL,
    CHANNEL,
    CONSTRAIN,
    END,
    MARKERS,
    MESSAGE,
    RECIPIENT,
    RETURN,
    START,
    TOOLS,
)
from deployments.protocol.chat_formats.rules import Rules, literal
from deployments.protocol.chat_formats.tool import Tool


class MessageRules:
    def __init__(self, rules: Rules) -> None:
        self._rules = rules
        self._marker = rules.marker

    def start(self, tools: Sequence[Tool], *, required: bool, content: str | None) -> str:
        """Thoughts, and then a call or what the user is told: any text, or what matches
        ``content``. There is one call at most, since its end is the answer's."""
        self._rules.free("SAID", *MARKERS)
        next_header = f'{self._marker(START)} "assistant"'
        is_free = not required and content is None
        channels = '"analysis" | "commentary"' if is_free else '"analysis"'
        said = self._rules.behind("SAID", END)
        note = f"{self._marker(CHANNEL)} ({channels}) {self._marker(MESSAGE)} {said} {next_header}"
        self._rules.add("note", note)
        last = [self._call(tool, number) for number, tool in enumerate(tools)]
        if not required:
            last.append(self._final(content))
        return f"note* ({' | '.join(last)})"

    def _final(self, content: str | None) -> str:
        header = f'{self._marker(CHANNEL)} "final"'
        if content is not None:
            constrain = f'(" " {self._marker(CONSTRAIN)} "json")?'
            return f"{header} {constrain} {self._marker(MESSAGE)} {content}"
        self._rules.free("LAST", *MARKERS)
        return f"{header} {self._marker(MESSAGE)} (LAST? | {self._rules.behind('LAST', RETURN)})"

    def _call(self, tool: Tool, number: int) -> str:
        to = f"{RECIPIENT}{TOOLS}{tool.name}"
        channel, constrain = self._marker(CHANNEL), self._marker(CONSTRAIN)
        header = " | ".join(
            (
                f'{channel} {literal(f"commentary {to} ")} {constrain} "json"',
                f'{literal(f" {to}")} {channel} "commentary " {constrain} "json"',
                f'{literal(f" {to}")} {channel} "commentary json"',
            )
        )
        arguments = self._rules.json(
            f"arguments_{number}", tool.part(tool.parameters), is_strict=tool.is_strict
        )
        end = f"({self._marker(CALL)})?"
        return self._rules.add(
            f"call_{number}", f"({header}) {self._marker(MESSAGE)} {arguments} {end}"
        )
