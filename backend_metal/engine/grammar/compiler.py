"""From a grammar as a client sends it to a matcher over the model's tokens, by llguidance.

https://github.com/guidance-ai/llguidance: a lexer of derivatives below an Earley parser, whose
masks are computed when they are asked for, so that any request may bring a grammar of its own.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Set
from functools import cached_property
from typing import Any

from llguidance import LLMatcher, LLParserLimits, LLTokenizer
from llguidance.gbnf_to_lark import any_to_lark

from backend_metal.engine.grammar.depth import (
    MAX_RULE_LEVELS,
    MAX_SCHEMA_LEVELS,
    rule_levels,
    schema_levels,
    schemas_in_rules,
)
from backend_metal.engine.grammar.free_text import FreeTextReader
from backend_metal.engine.grammar.lenient_parts import LenientParts, looser
from backend_metal.engine.grammar.matcher import GrammarMatcher
from backend_metal.engine.grammar.refusals import describe, reason_of, schemas_in
from backend_metal.engine.grammar.vocabulary import vocabulary_of
from deployments.backend import (
    JSON_WHITESPACE,
    THOUGHT_WHITESPACE,
    FreeText,
    Grammar,
    InvalidRequestError,
    SchemaPart,
    Thoughts,
)

LIMITS = LLParserLimits(max_lexer_states=50_000, verbose_errors=False)
"""Some 100 MB at most for a matcher, and some 20 ms for a mask."""
MOST_LISTED = 3000
"""Values of an enum that any vocabulary has masks of."""
MOST_OPTIONS = 1000
"""Objects and arrays among them, and schemas of a oneOf, which are compared with each other."""


class GrammarCompiler:
    """Compiles for one model. Not for two threads at once."""

    def __init__(self, tokenizer: Any, vocab_size: int, eos_token_ids: Set[int]) -> None:
        """``tokenizer``: Hugging Face's, or mlx-lm's around it; ``vocab_size``: the width of the
        model's logits."""
        self._tokenizer = tokenizer
        self._vocab_size = vocab_size
        self._eos_token_ids = eos_token_ids
        self._lenient = LenientParts(_problem_of, self._too_long)

    def compile(
        self, grammar: Grammar, thoughts: Thoughts | None = None, prompt_end: str = ""
    ) -> GrammarMatcher:
        """``prompt_end``: of the text that the answer follows.

        Takes milliseconds, the first time a second. Raises ``InvalidRequestError`` saying what
        can't be enforced, and where it stands."""
        grammar = self._lenient.enforceable(grammar)
        _check_depth(grammar)
        try:
            vocabulary, answer = self._vocabulary, _source(grammar)
        except _UnusableError as error:
            raise self._refused(grammar, str(error)) from error
        self._check_patterns(grammar)
        self._check_lists(grammar)
        grammars = [answer]
        if grammar.frame:
            grammars = [{"lark_grammar": grammar.frame}, {**answer, "name": "content"}]
        matcher = _matcher(vocabulary, grammars)
        thought_end = ""
        if thoughts is not None and thoughts.has_begun(prompt_end):
            thought_end = thoughts.end
            if not self._begins_thought(matcher, grammar, thoughts.start):
                grammars[0] = {**grammars[0], "name": "answer"}
                thought = {"lark_grammar": self._thought(thought_end)}
                matcher = _matcher(vocabulary, [thought, *grammars])
        if not matcher.is_error():
            # The first mask takes longest of all. Copies have it from here.
            matcher.compute_bitmask()
        if matcher.is_error():
            if (rest := looser(grammar)) is not None:
                return self.compile(rest, thoughts, prompt_end)
            raise self._refused(grammar, matcher.get_error())
        free = None
        if thought_end or grammar.free != FreeText():
            free = FreeTextReader(vocabulary, self._eos_token_ids, grammar.free, thought_end)
        return GrammarMatcher(matcher, grammar.param, free, grammar.left_out)

    def _begins_thought(self, matcher: LLMatcher, grammar: Grammar, start: str) -> bool:
        """Whether ``matcher`` has come to where the grammar's own thought has begun: it knows what
        may end one. What must match could begin in the same way, unless it is JSON."""
        has_thought = grammar.free.thought is not None and bool(grammar.free.call)
        is_certain = not grammar.frame or grammar.kind == "json_schema"
        if matcher.is_error() or not (has_thought and is_certain):
            return False
        tokens = self._vocabulary.tokenize_str(start, parse_special=True)
        return int(matcher.try_consume_tokens(tokens)) == len(tokens)

    def _check_patterns(self, grammar: Grammar) -> None:
        """Raises ``InvalidRequestError`` for a pattern that matches a member which is listed: it
        may leave nothing that can follow the last one."""
        for one in _schemas(grammar):
            for path, part in () if one.is_lenient else schemas_in(one.schema):
                listed, patterns = part.get("properties"), part.get("patternProperties")
                if not isinstance(listed, dict) or not isinstance(patterns, dict):
                    continue
                for pattern in patterns:
                    for name in filter(self._matcher_of(pattern), listed):
                        raise InvalidRequestError(
                            f'{one.param}{path}: keyword "patternProperties" can\'t be enforced: '
                            f"{json.dumps(pattern)} matches {json.dumps(name)}, which properties "
                            "has",
                            param=one.param,
                        )

    def _check_lists(self, grammar: Grammar) -> None:
        """Raises ``InvalidRequestError`` for one that is too long."""
        for one in _schemas(grammar):
            for path, _, keyword, problem in () if one.is_lenient else self._too_long(one.schema):
                raise InvalidRequestError(
                    f'{one.param}{path}: keyword "{keyword}" can\'t be enforced: {problem}',
                    param=one.param,
                )

    def _too_long(self, schema: Any) -> Iterator[tuple[str, Any, str, str]]:
        """Each list of values or schemas: the path of the schema that has it, that schema, the
        keyword, and what is wrong."""
        for path, part in schemas_in(schema):
            listed, *options = (_list(part, keyword) for keyword in ("enum", "anyOf", "oneOf"))
            objects = [value for value in listed if isinstance(value, (dict, list))]
            texts = [value for value in listed if isinstance(value, str)]
            if len(objects) > MOST_OPTIONS:
                yield path, part, "enum", f"more than {MOST_OPTIONS} of its values are no scalars"
            elif len(texts) > MOST_LISTED and not self._has_mask(texts):
                problem = (
                    f"{len(texts)} such strings are too many; {MOST_LISTED} of any kind are not"
                )
                yield path, part, "enum", problem
            for keyword, schemas in zip(("anyOf", "oneOf"), options, strict=True):
                if len(schemas) > MOST_OPTIONS:
                    yield path, part, keyword, f"it has more than {MOST_OPTIONS} schemas"

    def _has_mask(self, texts: list[str]) -> bool:
        """Whether the tokens are found that may begin one of these strings in JSON."""
        schema = _of_schema(json.dumps({"enum": texts}))
        matcher = LLMatcher(self._vocabulary, schema, log_level=0, limits=LIMITS)
        matcher.consume_tokens(self._vocabulary.tokenize_str('"'))
        matcher.compute_bitmask()
        return not matcher.is_error()

    def _matcher_of(self, pattern: str) -> Callable[[str], bool]:
        """As schemas have it, and in the time that llguidance bounds."""
        schema = _of_schema(json.dumps({"type": "string", "pattern": pattern}))
        matcher = LLMatcher(self._vocabulary, schema, log_level=0, limits=LIMITS)

        def matches(name: str) -> bool:
            tokens = self._vocabulary.tokenize_str(json.dumps(name, ensure_ascii=False))
            is_taken = matcher.try_consume_tokens(tokens) == len(tokens)
            is_taken = is_taken and matcher.is_accepting()
            matcher.reset()
            return is_taken

        # One that can't be compiled is refused with its schema.
        return matches if not matcher.is_error() else lambda name: False

    def _refused(self, grammar: Grammar, problem: str) -> InvalidRequestError:
        strict = [part for part in _schemas(grammar) if not part.is_lenient]
        for part in strict:
            if described := describe(part.schema, _problem_of):
                return InvalidRequestError(f"{part.param}{described}", param=part.param)
        for part in strict:
            # What is optional may have no value, but where it is a grammar of its own.
            _, places = self._lenient.mended(json.dumps(part.schema))
            if places:
                together = ", ".join(place.removeprefix(".") for place in places)
                return InvalidRequestError(
                    f"{part.param} can't be enforced with {together}", param=part.param
                )
        return InvalidRequestError(
            f"{grammar.param} can't be enforced: {reason_of(problem)}", param=grammar.param
        )

    def _thought(self, end: str) -> str:
        """A thought that has begun, and must end, with the answer behind it."""
        ids = {t.content: i for i, t in self._tokenizer.added_tokens_decoder.items() if t.special}
        if end in ids:
            thought = f"start: TEXT? <[{ids[end]}]> WHITE? @answer\nTEXT: /(?s:.+)/"
        else:
            # The lexer takes the longest match: what ends the thought must not be in it.
            mark = re.escape(end).replace("/", "\\/")
            thought = (
                "start: THOUGHT WHITE? @answer\n"
                f"THOUGHT: TEXT {json.dumps(end)}\n"
                f"TEXT: /(?s:.*)/ & ~/(?s:.*)({mark})(?s:.*)/"
            )
        return f"{thought}\nWHITE: /{THOUGHT_WHITESPACE}/"

    @cached_property
    def _vocabulary(self) -> LLTokenizer:
        fast = getattr(self._tokenizer, "backend_tokenizer", None)
        if fast is None:
            raise _UnusableError("this model's tokenizer is not one of the tokenizers library")
        return vocabulary_of(fast, self._vocab_size, self._eos_token_ids)


def _list(schema: Mapping[str, Any], keyword: str) -> list[Any]:
    value = schema.get(keyword)
    return value if isinstance(value, list) else []


def _check_depth(grammar: Grammar) -> None:
    """Raises ``InvalidRequestError``. Of what a client wrote: what stands around it is flat."""
    schemas = [(part.param, part.schema) for part in _schemas(grammar)]
    if grammar.kind == "grammar" and not grammar.parts:
        try:
            rules = _lark(grammar.text)
        except _UnusableError as error:
            raise InvalidRequestError(
                f"{grammar.param} can't be enforced: {error}", param=grammar.param
            ) from error
        if rule_levels(rules) > MAX_RULE_LEVELS:
            raise InvalidRequestError(
                f"{grammar.param} can't be enforced: its rules are more than {MAX_RULE_LEVELS} "
                "levels deep",
                param=grammar.param,
            )
        schemas += [(grammar.param, schema) for schema in schemas_in_rules(rules)]
    for param, schema in schemas:
        if schema_levels(schema) > MAX_SCHEMA_LEVELS:
            raise InvalidRequestError(
                f"{param} can't be enforced: with what its references mean it is more than "
                f"{MAX_SCHEMA_LEVELS} levels deep",
                param=param,
            )


def _schemas(grammar: Grammar) -> list[SchemaPart]:
    """Those that a client wrote as such."""
    parts = list(grammar.parts)
    if grammar.kind == "json_schema":
        parts.insert(0, SchemaPart(grammar.param, json.loads(grammar.text), is_lenient=False))
    return parts


def _source(grammar: Grammar) -> dict[str, Any]:
    text = grammar.text
    match grammar.kind:
        case "json_schema":
            return _only(_of_schema(text))
        case "regex":
            return _only(LLMatcher.grammar_from_regex(text))
        case "choice":
            choices = " | ".join(
                json.dumps(choice, ensure_ascii=False) for choice in json.loads(text)
            )
            return {"lark_grammar": f"start: {choices}"}
        case "grammar":
            return {"lark_grammar": _lark(text)}


def _of_schema(text: str) -> str:
    """Raises ``_UnusableError`` for numbers that are out of range."""
    try:
        return LLMatcher.grammar_from_json_schema(
            text,
            # Not as defaults: a schema may bring its own, and so turn enforcement off.
            overrides={
                "item_separator": ",",
                "key_separator": ":",
                "whitespace_flexible": True,
                "whitespace_pattern": JSON_WHITESPACE,
                "coerce_one_of": False,
                "lenient": False,
            },
        )
    except ValueError as error:
        raise _UnusableError(str(error)) from error


def _only(source: str) -> dict[str, Any]:
    (grammar,) = json.loads(source)["grammars"]
    found: dict[str, Any] = grammar
    return found


def _matcher(vocabulary: LLTokenizer, grammars: list[dict[str, Any]]) -> LLMatcher:
    return LLMatcher(vocabulary, json.dumps({"grammars": grammars}), log_level=0, limits=LIMITS)


class _UnusableError(Exception):
    """Of no use for this model, or no grammar at all."""


def _lark(text: str) -> str:
    try:
        return any_to_lark(text)
    except Exception as error:
        # The converter is a small parser that raises nothing more special, and recurses.
        raise _UnusableError(f"it is neither Lark nor GBNF: {error}") from error


def _problem_of(schema: Any) -> str:
    """Why it can't be compiled; empty: it can."""
    try:
        return str(LLMatcher.validate_grammar(_of_schema(json.dumps(schema)), limits=LIMITS))
    except _UnusableError as error:
        return str(error)
