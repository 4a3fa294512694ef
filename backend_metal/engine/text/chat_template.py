"""A model's chat template: messages to text."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from typing import Any

from jinja2 import Template, TemplateError, meta, nodes
from mlx_lm.tokenizer_utils import TokenizerWrapper
from transformers import PreTrainedTokenizerBase
from transformers.utils.chat_template_utils import _compile_jinja_template

from backend_metal.engine.text.tokenizer import Tokenizer
from deployments.backend import InvalidRequestError
from deployments.backend.written import dumps

ANALYSIS = "<|channel|>analysis"
"""Of gpt-oss's template, which has one place for what goes before a call."""
DEFAULT, WITH_TOOLS = "default", "tool_use"
"""Names of templates, where a checkpoint has several."""
_TESTING = (nodes.Compare, nodes.Call, nodes.Filter, nodes.Test)


class ChatTemplate:
    """The tokenizer's own, in Jinja, one or several by name, or a function that mlx-lm or the
    checkpoint brings."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        wrapper = tokenizer if isinstance(tokenizer, TokenizerWrapper) else None
        inner = wrapper._tokenizer if wrapper else tokenizer
        self._is_function = bool(wrapper and wrapper._chat_template) or (
            type(inner).apply_chat_template is not PreTrainedTokenizerBase.apply_chat_template
        )
        self._defaults = {"tools": None, "documents": None, **tokenizer.special_tokens_map}
        if wrapper:
            self._defaults["enable_thinking"] = wrapper.has_thinking

    @property
    def exists(self) -> bool:
        return self._is_function or self._tokenizer.chat_template is not None

    def render(self, messages: list[dict[str, Any]], arguments: Mapping[str, Any]) -> Iterator[str]:
        """Pieces of the text as they are made, so that whoever takes them can stop."""
        if self._is_function:
            texts = [_with_json_arguments(message) for message in messages]
            yield self._tokenizer.apply_chat_template(texts, tokenize=False, **arguments)
        else:
            source = self._chosen(has_tools=arguments.get("tools") is not None)
            joins = ANALYSIS in source
            thoughts = [_with_thinking(message, joins=joins) for message in messages]
            jinja = _compiled(source)
            yield from jinja.generate({**self._defaults, **arguments}, messages=thoughts)

    @property
    def control_tokens(self) -> frozenset[str]:
        """The special tokens, and what else of the added tokens the template writes: a token that
        begins a turn need not be special. White space is text in any template."""
        return frozenset(
            token.content
            for token in self._tokenizer.added_tokens_decoder.values()
            if token.special
            or (
                not token.content.isspace()
                and (self._is_function or token.content in self._literals)
            )
        )

    @property
    def read_in_answers(self) -> frozenset[str]:
        """Control tokens that the template looks for in messages, such as ``</think>``, to leave
        out what a model has thought: where a model has written these, they are what it wrote."""
        if self._is_function:
            return frozenset()
        tested = _strings(
            node
            for template in self._parsed
            for kind in _TESTING
            for node in template.find_all(kind)
        )
        return frozenset(
            token.content
            for token in self._tokenizer.added_tokens_decoder.values()
            if not token.special and token.content in tested
        )

    @property
    def variables(self) -> dict[str, frozenset[str]]:
        """What it reads and does not set itself, with the texts that it compares each with; a
        function's are not known."""
        if self._is_function or not self.exists:
            return {}
        # Trees of their own: the search folds constants in them.
        names = {
            name
            for source in self._named.values()
            for name in meta.find_undeclared_variables(_parsed(source))
        }
        return {
            name: frozenset().union(*(_compared_with(one, name) for one in self._parsed))
            for name in names
        }

    @property
    def source(self) -> str:
        """The template that renders requests with tools. Empty for a function and without a
        template."""
        if self._is_function or not self.exists:
            return ""
        return self._named.get(WITH_TOOLS) or self._named.get(DEFAULT, "")

    @cached_property
    def _named(self) -> Mapping[str, str]:
        found = self._tokenizer.chat_template
        return found if isinstance(found, Mapping) else {DEFAULT: str(found)}

    def _chosen(self, *, has_tools: bool) -> str:
        """Select the named template that transformers would."""
        name = WITH_TOOLS if has_tools and WITH_TOOLS in self._named else DEFAULT
        if name not in self._named:
            raise InvalidRequestError(
                f"the model's chat templates are {', '.join(sorted(self._named))}, and none is the "
                "default: engine.chat_template must name a file with one",
                param="messages",
            )
        return self._named[name]

    @cached_property
    def _parsed(self) -> list[nodes.Template]:
        return [_parsed(source) for source in self._named.values()]

    @cached_property
    def _literals(self) -> str:
        texts = [
            node.data for template in self._parsed for node in template.find_all(nodes.TemplateData)
        ]
        return "\0".join([*texts, _strings(self._parsed)])


def _compiled(source: str) -> Template:
    # Cached there, with the filters and functions that templates of the hub are written for.
    template: Template = _compile_jinja_template(source)
    template.environment.filters["tojson"] = _to_json
    return template


def _parsed(source: str) -> nodes.Template:
    try:
        return _compiled(source).environment.parse(source)
    except TemplateError as error:
        raise ValueError(
            f"the model's chat template can't be read: {error}; engine.chat_template may name "
            "another"
        ) from error


def _with_thinking(message: dict[str, Any], *, joins: bool) -> dict[str, Any]:
    """A thought under both names that templates know; with what was said before a call, if the
    template refuses to write both and ``joins`` is set."""
    thought = message.get("reasoning_content")
    if thought is None:
        return message
    if joins and message.get("tool_calls") and (said := message.get("content")):
        return {**message, "thinking": f"{thought}\n{said}", "content": ""}
    return {"thinking": thought, **message}


def _compared_with(template: nodes.Template, name: str) -> frozenset[str]:
    return frozenset(
        constant.value
        for comparison in template.find_all(nodes.Compare)
        if any(one.name == name for one in comparison.find_all(nodes.Name))
        for constant in comparison.find_all(nodes.Const)
        if isinstance(constant.value, str)
    )


def _to_json(value: Any, ensure_ascii: bool = False, **options: Any) -> str:
    """transformers' `tojson` filter, which keeps the spelling of numbers."""
    return dumps(value, ensure_ascii=ensure_ascii, **options)


def _with_json_arguments(message: dict[str, Any]) -> dict[str, Any]:
    """Functions want the arguments of calls as clients send them."""
    if not (calls := message.get("tool_calls")):
        return message
    functions = [call["function"] for call in calls]
    texts = [dumps(function["arguments"], ensure_ascii=False) for function in functions]
    return {
        **message,
        "tool_calls": [
            {**call, "function": {**function, "arguments": text}}
            for call, function, text in zip(calls, functions, texts, strict=True)
        ],
    }


def _strings(found: Iterable[nodes.Node]) -> str:
    """All that is in quotation marks there, apart from each other."""
    constants = (constant for node in found for constant in node.find_all(nodes.Const))
    return "\0".join(c.value for c in constants if isinstance(c.value, str))
