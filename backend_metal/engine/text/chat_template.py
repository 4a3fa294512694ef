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
from deployments.backend.written import dumps

ANALYSIS = "<|channel|>analysis"
"""Of gpt-oss's template, which has one place for what goes before a call."""
_TESTING = (nodes.Compare, nodes.Call, nodes.Filter, nodes.Test)


class ChatTemplate:
    """The tokenizer's own, in Jinja, or a function that mlx-lm or the checkpoint brings."""

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
            joins = ANALYSIS in self._source
            thoughts = [_with_thinking(message, joins=joins) for message in messages]
            yield from self._jinja.generate({**self._defaults, **arguments}, messages=thoughts)

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
        tested = _strings(node for kind in _TESTING for node in self._parsed.find_all(kind))
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
        # A tree of its own: the search folds constants in it.
        names = meta.find_undeclared_variables(self._parse())
        return {name: _compared_with(self._parsed, name) for name in names}

    @property
    def source(self) -> str:
        """Empty for a function, and where there is none."""
        return "" if self._is_function or not self.exists else self._source

    @property
    def _source(self) -> str:
        return self._tokenizer.get_chat_template()

    @property
    def _jinja(self) -> Template:
        # Cached there, with the filters and functions that templates of the hub are written for.
        template: Template = _compile_jinja_template(self._source)
        template.environment.filters["tojson"] = _to_json
        return template

    @cached_property
    def _parsed(self) -> nodes.Template:
        return self._parse()

    def _parse(self) -> nodes.Template:
        try:
            return self._jinja.environment.parse(self._source)
        except TemplateError as error:
            raise ValueError(
                f"the model's chat template can't be read: {error}; engine.chat_template may name "
                "another"
            ) from error

    @cached_property
    def _literals(self) -> str:
        texts = [node.data for node in self._parsed.find_all(nodes.TemplateData)]
        return "\0".join([*texts, _strings([self._parsed])])


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
    """As transformers' filter, with numbers as they were written."""
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
