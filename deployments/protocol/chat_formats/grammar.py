"""Grammars in llguidance's Lark for answers that may call tools: no call but a valid one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from deployments.backend import THOUGHT_WHITESPACE, FreeText
from deployments.protocol.chat_formats.call_rules import CallRules
from deployments.protocol.chat_formats.message_rules import MessageRules
from deployments.protocol.chat_formats.reader import ChatFormat
from deployments.protocol.chat_formats.regex import escaped
from deployments.protocol.chat_formats.rules import WHITE, Rules, literal, sequence
from deployments.protocol.chat_formats.tool import Tool

CONTENT = "@content"
"""The grammar of what an answer that calls nothing must match, if there is one."""


def tools_grammar(
    chat_format: ChatFormat,
    tools: Sequence[Tool],
    *,
    required: bool,
    parallel: bool,
    special_tokens: Mapping[str, int] | None = None,
    has_content: bool = False,
    ends_thoughts: bool = False,
) -> str:
    """Calls of ``tools``, at least one; or, unless they are ``required``, text with or without
    calls behind it. One only unless they are ``parallel``. A thought may come first.

    ``special_tokens``: ids of those tokens that are no text for the tokenizer. ``has_content``:
    instead of text there is what ``CONTENT`` stands for, without calls behind it.
    ``ends_thoughts``: a call may begin in a thought, which ends there.

    Raises ``UnenforceableError`` for what the form can't hold a strict tool to.
    """
    rules = Rules(special_tokens or {})
    text = CONTENT if has_content else None
    if chat_format.has_messages:
        start = MessageRules(rules).start(tools, required=required, content=text)
    else:
        start = _Grammar(rules, chat_format, ends_thoughts).start(tools, required, parallel, text)
    rules.add("start", start)
    return str(rules)


def free_text(
    chat_format: ChatFormat,
    special_tokens: Mapping[str, int],
    *,
    is_answer: bool,
    ends_thoughts: bool = False,
) -> FreeText:
    """What these grammars leave to the model. ``is_answer``: not only its thoughts, if it has any,
    since neither calls are required nor is there a ``CONTENT``."""
    if chat_format.has_messages:
        return FreeText()
    rules = Rules(special_tokens)
    thinking = chat_format.thinking
    thought = thinking and (thinking[0], rules.first_piece(thinking[1]))
    call = rules.first_piece(chat_format.first_marker) if ends_thoughts else ""
    if not (is_answer and chat_format.calls):
        return FreeText(thought=thought, call=call)
    (form,) = chat_format.calls
    first = chat_format.first_marker
    unlike = form.opening[:1] + (thinking[0][:1] if thinking else "")
    return FreeText(rules.first_piece(first), unlike, thought, call)


def content_grammar(chat_format: ChatFormat, special_tokens: Mapping[str, int]) -> str:
    """What ``CONTENT`` stands for, and what the format has around it; empty: nothing."""
    if not chat_format.has_messages and chat_format.thinking is None:
        return ""
    rules = Rules(special_tokens)
    if chat_format.has_messages:
        start = MessageRules(rules).start([], required=False, content=CONTENT)
    else:
        start = f"({_Grammar(rules, chat_format).thought()})? {CONTENT}"
    rules.add("start", start)
    return str(rules)


class _Grammar:
    """Of formats that have markers around calls."""

    def __init__(self, rules: Rules, chat_format: ChatFormat, ends_thoughts: bool = False) -> None:
        self._rules = rules
        self._forms = chat_format.calls
        self._thinking = chat_format.thinking
        self._wrappers = chat_format.wrappers
        self._first = chat_format.first_marker
        self._ends_thoughts = ends_thoughts

    def start(
        self, tools: Sequence[Tool], required: bool, parallel: bool, content: str | None
    ) -> str:
        (form,) = self._forms
        calls = CallRules(self._rules, form, tools)
        first = self._first
        body = self._body(calls, parallel)
        rest = self._rest(body, parallel)
        thought = self.thought()
        if required:
            answer = f"{self._rules.marker(first)} {rest}"
        elif content is not None:
            answer = f"{content} | {self._rules.marker(first)} {rest}"
        else:
            heads = [_bare_head(form.opening)] if form.opening else []
            if self._thinking is not None:
                heads.append(WHITE + escaped(self._thinking[0]))
            self._rules.free("FREE", first, heads=heads)
            answer = f"FREE? | ({self._rules.behind('FREE', first)}) {rest}"
        if form.opening:
            answer += f" | {calls.as_json() if form.opening == '{' and content else body}"
        if not thought:
            return answer
        answer = f"({thought})? ({answer})"
        if self._thinking is not None and self._ends_thoughts:
            begin = self._rules.marker(self._thinking[0])
            answer += f" | {begin} ({self._rules.behind('UNENDED', first)}) {rest}"
        return answer

    def thought(self) -> str:
        if self._thinking is None:
            return ""
        begin, end = self._thinking
        self._rules.free("UNENDED", end, *([self._first] if self._ends_thoughts else []))
        self._rules.add("WHITE", f"/{THOUGHT_WHITESPACE}/")
        return f"{self._rules.marker(begin)} ({self._rules.behind('UNENDED', end)}) WHITE?"

    def _body(self, calls: CallRules, parallel: bool) -> str:
        """A call behind its start; or those of a group, without its end."""
        (form,) = self._forms
        before, between, behind = form.group or ("", "", "")
        first = self._rules.add("body", calls.behind(before))
        if not form.group:
            return first
        more = f"{self._rules.add('more', calls.behind(between))}*" if parallel else ""
        return sequence(first, more, literal(behind))

    def _rest(self, body: str, parallel: bool) -> str:
        """What follows the first marker."""
        (form,) = self._forms
        if form.group:
            return sequence(body, self._rules.marker(form.end))
        start = self._rules.marker(form.start)
        more = f'("\\n"? {start} {body})*' if parallel and not form.opening else ""
        if not self._wrappers:
            return f"{body} {more}"
        return f'"\\n"? {start} {body} {more} "\\n"? {self._rules.marker(self._wrappers[1])}'


def _bare_head(opening: str) -> str:
    """A regular expression of what makes a call of an answer without a marker."""
    if opening == "[":
        return rf"{WHITE}\[{WHITE}[a-zA-Z0-9_.:-]+{WHITE}\("
    text = r'"([^"\\]|\\.)*"'
    kind = rf'("type"{WHITE}:{WHITE}{text}{WHITE},{WHITE})?'
    arguments = r'"(parameters|arguments)"'
    return rf'{WHITE}\{{{WHITE}{kind}"name"{WHITE}:{WHITE}{text}{WHITE},{WHITE}{arguments}'
