"""The body of ``POST /v1/responses``."""

from __future__ import annotations

from functools import cached_property
from typing import Annotated, Any, ClassVar, Literal, Self, get_args

from pydantic import BeforeValidator, Field, PlainValidator, model_validator

from deployments.http.errors import shown
from deployments.protocol import unsupported
from deployments.protocol.common import MAX_LOGPROBS
from deployments.protocol.dropped import drop
from deployments.protocol.reasoning import EFFORT, Effort
from deployments.protocol.responses.items import (
    InputItem,
    ItemReference,
    parse_input,
)
from deployments.protocol.responses.tools import (
    CHOICE,
    CallableTool,
    ToolsField,
    callables,
    check_choice,
)
from deployments.protocol.strict import HINT, RefusedError, StrictModel
from deployments.protocol.structured_output import JsonSchema
from deployments.protocol.tools import MAX_TOOLS
from deployments.protocol.unsupported import MAX_PAIRS

LOGPROBS = "message.output_text.logprobs"
CARRIED_THOUGHTS = "reasoning.encrypted_content"
Included = Literal[
    "message.output_text.logprobs",
    "reasoning.encrypted_content",
    "code_interpreter_call.outputs",
    "computer_call_output.output.image_url",
    "file_search_call.results",
    "message.input_image.image_url",
    "web_search_call.action.sources",
    "web_search_call.results",
]


def _known_included(value: Any) -> Any:
    """The names that are known here: what others would tell no answer has."""
    if not isinstance(value, list):
        return value
    if any(isinstance(one, str) and one not in get_args(Included) for one in value):
        drop("include")
    return [one for one in value if not isinstance(one, str) or one in get_args(Included)]


class TextFormat(StrictModel):
    only_checked: ClassVar = {"strict": "every schema is enforced"}

    type: Literal["text", "json_object", "json_schema"] = Field(
        description='"text", "json_object" or "json_schema"'
    )
    name: str | None = Field(
        None,
        pattern=r"^[a-zA-Z0-9_-]{1,64}$",
        description="1 to 64 letters, digits, _ or -; it is told back",
    )
    description: str | None = Field(None, description="a string; it is told back")
    json_schema: JsonSchema | None = Field(
        None, alias="schema", description="a JSON schema, an object"
    )
    strict: bool | None = Field(None, description="a boolean")

    @model_validator(mode="after")
    def _schema_goes_with_its_type(self) -> Self:
        for name, value in (("name", self.name), ("schema", self.json_schema)):
            if (self.type == "json_schema") != (value is not None):
                raise RefusedError(
                    'is required with type "json_schema", and allowed with no other',
                    where=f".{name}",
                )
        return self


class TextConfig(StrictModel):
    only_checked: ClassVar = {"verbosity": "it is a hint, which no open model knows"}

    format: TextFormat = Field(TextFormat(type="text"), description="an object")
    verbosity: Annotated[Literal["low", "medium", "high"] | None, HINT] = Field(
        None, description='"low", "medium" or "high"'
    )


class ReasoningConfig(StrictModel):
    unsupported: ClassVar = unsupported.RESPONSES_REASONING_FIELDS

    effort: Effort | None = Field(None, description=EFFORT)


class ResponsesStreamOptions(StrictModel):
    unsupported: ClassVar = unsupported.RESPONSES_STREAM_OPTIONS_FIELDS


class ResponsesRequest(StrictModel):
    unsupported: ClassVar = unsupported.RESPONSES_FIELDS
    only_checked: ClassVar = {
        "service_tier": "every answer names the tier that there is",
        "stream_options": "they are about padding, of which there is none",
    }

    model: str = Field(min_length=1, description="a non-empty string, a model's name")
    input: Annotated[
        tuple[InputItem | ItemReference, ...],
        PlainValidator(
            parse_input,
            json_schema_input_type=str
            | Annotated[list[InputItem | ItemReference], Field(min_length=1)],
        ),
    ] = Field(description="a string or a non-empty array of items")
    instructions: str | None = Field(None, description="a string")
    previous_response_id: str | None = Field(
        None,
        min_length=1,
        max_length=256,
        description="the id of a response that is kept, whose items stand before the input",
    )
    store: bool | None = Field(
        None,
        description="a boolean, true if left out where responses are kept; false keeps nothing",
    )
    stream: bool = Field(False, description="a boolean")
    stream_options: ResponsesStreamOptions | None = Field(None, description="an object")
    max_output_tokens: int | None = Field(
        None, ge=1, lt=2**31, description="an integer of at least 1"
    )
    temperature: float | None = Field(None, ge=0, le=2, description="a number from 0 to 2")
    top_p: float | None = Field(None, gt=0, le=1, description="a number more than 0 and at most 1")
    presence_penalty: float = Field(0.0, ge=-2, le=2, description="a number from -2 to 2")
    frequency_penalty: float = Field(0.0, ge=-2, le=2, description="a number from -2 to 2")
    top_logprobs: int = Field(
        0, ge=0, le=MAX_LOGPROBS, description=f"an integer from 0 to {MAX_LOGPROBS}"
    )
    include: Annotated[list[Included], BeforeValidator(_known_included)] = Field(
        [],
        description="an array of names of what is to be told; what is about tools that only their "
        "vendor can run is without effect: there are none",
    )
    tools: ToolsField = Field((), description=f"an array of at most {MAX_TOOLS} tools")
    tool_choice: Annotated[
        Any,
        PlainValidator(
            check_choice,
            json_schema_input_type=Literal["none", "auto", "required"] | dict[str, Any],
        ),
    ] = Field("auto", description=CHOICE)
    parallel_tool_calls: bool = Field(True, description="a boolean")
    text: TextConfig = Field(TextConfig(), description="an object")
    reasoning: ReasoningConfig = Field(ReasoningConfig(), description="an object")
    prompt_cache_key: Annotated[str | None, HINT] = Field(None, description="a string")
    service_tier: Annotated[Literal["auto", "default"] | None, HINT] = Field(
        None, description='"auto" or "default", the one tier that there is'
    )
    metadata: Annotated[dict[str, str], Field(max_length=MAX_PAIRS), HINT] = Field(
        {}, description=f"an object of at most {MAX_PAIRS} strings; it is told back"
    )
    user: Annotated[str | None, HINT] = Field(None, description="a string; it is told back")
    safety_identifier: Annotated[str | None, HINT] = Field(
        None, description="a string; it is told back"
    )

    @model_validator(mode="after")
    def _fields_agree(self) -> Self:
        if self.stream_options is not None and not self.stream:
            raise RefusedError("is only allowed when stream is true", where=".stream_options")
        if self.top_logprobs and not self.has_logprobs:
            raise RefusedError(
                f"is only allowed when include has {shown(LOGPROBS)}", where=".top_logprobs"
            )
        names: set[str] = set()
        for one in self.callables:
            if one.name in names:
                raise RefusedError(
                    f"is {shown(one.name)}, as another tool's", where=f".{one.where}.name"
                )
            names.add(one.name)
        return self

    @property
    def has_logprobs(self) -> bool:
        return LOGPROBS in self.include

    @property
    def has_carried_thoughts(self) -> bool:
        return CARRIED_THOUGHTS in self.include

    @property
    def item_ids(self) -> dict[str, str]:
        """Of the items that the input names and doesn't have, by the fields that name them."""
        return {
            f"input[{index}].id": item.id
            for index, item in enumerate(self.input)
            if isinstance(item, ItemReference)
        }

    @cached_property
    def callables(self) -> tuple[CallableTool, ...]:
        """The tools that can be called."""
        return tuple(callables(self.tools))
