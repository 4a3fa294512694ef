"""What an answer must match, in OpenAI's ``response_format`` and in vLLM's fields."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cached_property
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import BeforeValidator, Field, PlainValidator, model_validator

from deployments.backend import Grammar
from deployments.http.errors import shown
from deployments.protocol import unsupported
from deployments.protocol.json_body import is_deeper
from deployments.protocol.strict import RefusedError, StrictModel
from deployments.protocol.structural_tag import structural_tag

MAX_GRAMMAR_CHARS = 512 * 1024
MAX_SCHEMA_DEPTH = 64
MAX_CHOICES_OF_ANSWERS = 1024

_TAG_FIELDS = ("format", "structures", "triggers")
ANY_OBJECT = '{"type": "object"}'


def _checked_schema(value: Any) -> Any:
    if isinstance(value, dict) and is_deeper(value, MAX_SCHEMA_DEPTH):
        raise RefusedError(f"must nest at most {MAX_SCHEMA_DEPTH} levels deep")
    return value


def _as_schema(value: Any) -> Any:
    """vLLM takes a schema as a string, too."""
    if not isinstance(value, str):
        return _checked_schema(value)
    try:
        schema = json.loads(value)
    except (ValueError, RecursionError) as error:
        raise RefusedError(f"must be a JSON schema, not {shown(value)}") from error
    return _checked_schema(schema)


JsonSchema = Annotated[dict[str, Any], BeforeValidator(_checked_schema)]
JsonSchemaOrText = Annotated[dict[str, Any], BeforeValidator(_as_schema)]
Pattern = Annotated[str, Field(min_length=1, max_length=MAX_GRAMMAR_CHARS)]
Choices = Annotated[
    list[Annotated[str, Field(min_length=1)]],
    Field(min_length=1, max_length=MAX_CHOICES_OF_ANSWERS),
]

_SCHEMA = "a JSON schema, an object"
_PATTERN = f"a regular expression of at most {MAX_GRAMMAR_CHARS} characters"
_GRAMMAR = f"a Lark or GBNF grammar of at most {MAX_GRAMMAR_CHARS} characters"
_TAG = "a structural tag, an object or that as a string"
_CHOICES = f"a non-empty array of at most {MAX_CHOICES_OF_ANSWERS} non-empty strings"


def _parse_structural_tag(value: Any) -> Grammar:
    """vLLM takes it as a string."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError) as error:
            raise RefusedError(f"must be {_TAG}, not {shown(value)}") from error
    if is_deeper(value, MAX_SCHEMA_DEPTH):
        raise RefusedError(f"must nest at most {MAX_SCHEMA_DEPTH} levels deep")
    return structural_tag(value, "structured_outputs.structural_tag")


StructuralTag = Annotated[
    Grammar, PlainValidator(_parse_structural_tag, json_schema_input_type=str | dict[str, Any])
]


class NamedSchema(StrictModel):
    only_checked: ClassVar = {
        "description": "an answer is held to the schema, which the model is not told",
        "name": "an answer is held to the schema, which the model is not told",
        "strict": "every schema is enforced",
    }

    name: str = Field(
        pattern=r"^[a-zA-Z0-9_-]{1,64}$", description="1 to 64 letters, digits, _ or -"
    )
    description: str | None = Field(None, description="a string")
    json_schema: JsonSchema = Field({}, alias="schema", description=_SCHEMA)
    strict: bool | None = Field(None, description="a boolean")


class ResponseFormat(StrictModel):
    type: Literal["text", "json_object", "json_schema", "structural_tag"] = Field(
        description='"text", "json_object", "json_schema" or "structural_tag"'
    )
    json_schema: NamedSchema | None = Field(None, description="an object")
    format: dict[str, Any] | None = Field(None, description="an object, of a structural_tag")
    structures: list[Any] | None = Field(None, description="an array, of a structural_tag")
    triggers: list[Any] | None = Field(None, description="an array, of a structural_tag")

    @model_validator(mode="after")
    def _schema_goes_with_its_type(self) -> Self:
        if (self.type == "json_schema") != (self.json_schema is not None):
            raise RefusedError(
                'is required with type "json_schema", and allowed with no other',
                where=".json_schema",
            )
        tag = self._tag()
        if self.type != "structural_tag" and len(tag) > 1:
            raise RefusedError(
                'is allowed with type "structural_tag" alone', where=f".{[*tag][-1]}"
            )
        if self.type == "structural_tag":
            if is_deeper(tag, MAX_SCHEMA_DEPTH):
                raise RefusedError(f"must nest at most {MAX_SCHEMA_DEPTH} levels deep")
            assert self.grammar
        return self

    def _tag(self) -> dict[str, Any]:
        return self.model_dump(exclude_none=True, include={"type", *_TAG_FIELDS})

    @cached_property
    def grammar(self) -> Grammar | None:
        if self.type == "text":
            return None
        if self.type == "structural_tag":
            return structural_tag(self._tag(), "response_format")
        if self.json_schema is None:
            return Grammar("json_schema", ANY_OBJECT, "response_format")
        return schema_grammar(self.json_schema.json_schema, "response_format.json_schema.schema")


class StructuredOutputs(StrictModel):
    """vLLM's; one of them."""

    unsupported: ClassVar = unsupported.STRUCTURED_OUTPUTS_FIELDS

    json_schema: JsonSchemaOrText | None = Field(None, alias="json", description=_SCHEMA)
    regex: Pattern | None = Field(None, description=_PATTERN)
    choice: Choices | None = Field(None, description=_CHOICES)
    grammar_text: Pattern | None = Field(None, alias="grammar", description=_GRAMMAR)
    json_object: bool = Field(False, description="a boolean")
    structural_tag: StructuralTag | None = Field(None, description=_TAG)

    def grammars(self) -> list[Grammar]:
        field = "structured_outputs"
        found = _asked(self.json_schema, self.regex, self.choice, self.grammar_text, f"{field}.")
        if self.json_object:
            found.append(Grammar("json_schema", ANY_OBJECT, f"{field}.json_object"))
        if self.structural_tag is not None:
            found.append(self.structural_tag)
        return found


class StructuredOutputFields(StrictModel):
    """Fields of a request."""

    response_format: ResponseFormat | None = Field(None, description="an object")
    structured_outputs: StructuredOutputs | None = Field(None, description="an object")
    guided_json: JsonSchemaOrText | None = Field(None, description=_SCHEMA)
    guided_regex: Pattern | None = Field(None, description=_PATTERN)
    guided_choice: Choices | None = Field(None, description=_CHOICES)
    guided_grammar: Pattern | None = Field(None, description=_GRAMMAR)

    @model_validator(mode="after")
    def _one_grammar(self) -> Self:
        grammars = self._grammars()
        if len(grammars) > 1:
            first, second, *_ = (grammar.param for grammar in grammars)
            raise RefusedError(
                f"is one thing that the answer must match, and {first} another; send one of them",
                where=f".{second}",
            )
        for grammar in grammars:
            if len(grammar.text) > MAX_GRAMMAR_CHARS:
                raise RefusedError(
                    f"must have at most {MAX_GRAMMAR_CHARS} characters, not {len(grammar.text)}",
                    where=f".{grammar.param}",
                )
        return self

    @property
    def grammar(self) -> Grammar | None:
        """What the answer must match; None: nothing."""
        return next(iter(self._grammars()), None)

    def _grammars(self) -> list[Grammar]:
        grammars = _asked(
            self.guided_json, self.guided_regex, self.guided_choice, self.guided_grammar, "guided_"
        )
        if self.structured_outputs is not None:
            grammars += self.structured_outputs.grammars()
        if self.response_format is not None and (found := self.response_format.grammar):
            grammars.append(found)
        return grammars


def schema_grammar(schema: Mapping[str, Any], param: str) -> Grammar:
    return Grammar("json_schema", json.dumps(schema, ensure_ascii=False), param)


def _asked(
    schema: Mapping[str, Any] | None,
    regex: str | None,
    choice: list[str] | None,
    grammar: str | None,
    prefix: str,
) -> list[Grammar]:
    found = []
    if schema is not None:
        found.append(schema_grammar(schema, f"{prefix}json"))
    if regex is not None:
        found.append(Grammar("regex", regex, f"{prefix}regex"))
    if choice is not None:
        text = json.dumps(choice, ensure_ascii=False)
        found.append(Grammar("choice", text, f"{prefix}choice"))
    if grammar is not None:
        found.append(Grammar("grammar", grammar, f"{prefix}grammar"))
    return found
