"""The body of ``POST /v1/chat/completions``."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import BeforeValidator, FailFast, Field, model_validator

from deployments.http.errors import shown
from deployments.protocol import unsupported
from deployments.protocol.common import (
    CHARS_PER_TOKEN,
    MAX_LOGPROBS,
    GenerationFields,
    PromptSize,
    likely_new_tokens,
    num_bytes,
)
from deployments.protocol.functions import FUNCTION_CHOICE, FunctionChoice
from deployments.protocol.messages import Message
from deployments.protocol.reasoning import ReasoningFields
from deployments.protocol.strict import HINT, RefusedError
from deployments.protocol.tools import (
    CHOICE,
    MAX_TOOLS,
    Function,
    Functions,
    ToolChoice,
    ToolChoiceField,
    Tools,
)

MESSAGE_OVERHEAD_TOKENS = 4
TEMPLATE_TOKENS = 512
TEMPLATE_TOKENS_PER_MESSAGE = 16
"""What templates write of their own, and some more."""
MAX_TEMPLATE_ARGUMENT_DEPTH = 16
MAX_TEMPLATE_ARGUMENT_VALUES = 4096
MAX_TEMPLATE_ARGUMENT_CHARS = 256 * 1024
MAX_MESSAGES = 4096


def _template_variables(value: Any) -> Any:
    for name in value if isinstance(value, dict) else ():
        if not name.isidentifier():
            raise RefusedError(f"must not set {shown(name)}")
    num_chars = 0
    for num_values, chars in enumerate(_sizes(value, MAX_TEMPLATE_ARGUMENT_DEPTH), 1):
        num_chars += chars
        if num_values > MAX_TEMPLATE_ARGUMENT_VALUES:
            raise RefusedError(f"must have at most {MAX_TEMPLATE_ARGUMENT_VALUES} values")
        if num_chars > MAX_TEMPLATE_ARGUMENT_CHARS:
            raise RefusedError(f"must have at most {MAX_TEMPLATE_ARGUMENT_CHARS} characters")
    return value


def _sizes(value: Any, levels: int) -> Iterator[int]:
    """The characters of each value, as templates may write it."""
    if not isinstance(value, (dict, list)):
        yield len(value if isinstance(value, str) else repr(value))
        return
    if not levels:
        raise RefusedError(f"must nest at most {MAX_TEMPLATE_ARGUMENT_DEPTH} levels deep")
    if isinstance(value, dict):
        yield sum(map(len, value))
    for member in value.values() if isinstance(value, dict) else value:
        yield from _sizes(member, levels - 1)


class ChatCompletionRequest(GenerationFields, ReasoningFields):
    unsupported: ClassVar = unsupported.CHAT_FIELDS

    messages: Annotated[list[Message], FailFast()] = Field(
        min_length=1,
        max_length=MAX_MESSAGES,
        description=f"a non-empty array of at most {MAX_MESSAGES} messages",
    )
    max_completion_tokens: int | None = Field(
        None, ge=0, lt=2**31, description="an integer of at least 0"
    )
    logprobs: bool = Field(False, description="a boolean")
    top_logprobs: int = Field(
        0, ge=0, le=MAX_LOGPROBS, description=f"an integer from 0 to {MAX_LOGPROBS}"
    )
    chat_template_kwargs: Annotated[dict[str, Any], BeforeValidator(_template_variables)] = Field(
        {},
        description=f"an object of at most {MAX_TEMPLATE_ARGUMENT_VALUES} values and "
        f"{MAX_TEMPLATE_ARGUMENT_CHARS} characters in all",
    )
    add_generation_prompt: bool = Field(True, description="a boolean")
    continue_final_message: bool = Field(False, description="a boolean")
    tools: Tools = Field(
        [], max_length=MAX_TOOLS, description=f"an array of at most {MAX_TOOLS} tools"
    )
    tool_choice: ToolChoiceField = Field(ToolChoice(), description=CHOICE)
    parallel_tool_calls: bool = Field(True, description="a boolean")
    functions: Functions = Field(
        [], max_length=MAX_TOOLS, description=f"an array of at most {MAX_TOOLS} functions"
    )
    function_call: FunctionChoice = Field(None, description=FUNCTION_CHOICE)
    service_tier: Annotated[Literal["auto", "default"] | None, HINT] = Field(
        None, description='"auto" or "default", the one tier that there is'
    )

    @model_validator(mode="after")
    def _fields_agree(self) -> Self:
        if self.top_logprobs and not self.logprobs:
            raise RefusedError("is only allowed when logprobs is true", where=".top_logprobs")
        both = {self.max_tokens, self.max_completion_tokens} - {None}
        if len(both) > 1:
            raise RefusedError(
                f"is {self.max_completion_tokens} but max_tokens, its older name, is "
                f"{self.max_tokens}; send one of them",
                where=".max_completion_tokens",
            )
        self._check_tools()
        self._check_final_message()
        return self

    def _check_final_message(self) -> None:
        if not self.continue_final_message:
            return
        if self.add_generation_prompt:
            raise RefusedError(
                "is only allowed with add_generation_prompt false: an answer continues a message, "
                "or is one of its own",
                where=".continue_final_message",
            )
        final = self.messages[-1]
        if not final.text or final.calls:
            raise RefusedError(
                "needs a final message that ends with a text", where=".continue_final_message"
            )

    def _what_tokens_must_match(self) -> str | None:
        return self.tools_param if self.usable_tools else super()._what_tokens_must_match()

    def _check_tools(self) -> None:
        if self.functions and (self.tools or self.tool_choice != ToolChoice()):
            message = "can't be combined with tools or tool_choice, which have taken their place"
            raise RefusedError(message, where=".functions")
        if self.function_call and not self.functions:
            message = "is only allowed with functions; with tools, send tool_choice"
            raise RefusedError(message, where=".function_call")
        names = list[str]()
        for place, function in self.functions_by_place.items():
            if function.name in names:
                raise RefusedError(
                    f"is {shown(function.name)}, as another tool's", where=f".{place}.name"
                )
            names.append(function.name)
        if self.choice.required and not names:
            raise RefusedError("requires a call, but there are no tools", where=".tool_choice")
        for name in self.choice.names or ():
            if name not in names:
                raise RefusedError(
                    f"names {shown(name)}, which is none of the {self.tools_param}",
                    where=".function_call" if self.functions else ".tool_choice",
                )

    @property
    def tools_param(self) -> str:
        return "functions" if self.functions else "tools"

    @property
    def choice(self) -> ToolChoice:
        return self.function_call or self.tool_choice

    @property
    def functions_by_place(self) -> Mapping[str, Function]:
        """Those of the client's, by the path of the field that has each."""
        if self.functions:
            return {f"functions[{index}]": one for index, one in enumerate(self.functions)}
        tools = enumerate(self.tools)
        return {f"tools[{i}].function": tool.function for i, tool in tools if tool.function}

    @property
    def usable_tools(self) -> list[Function]:
        """Those that the model is told of."""
        if self.choice.forbidden:
            return []
        names, functions = self.choice.names, self.functions_by_place.values()
        return [one for one in functions if names is None or one.name in names]

    @property
    def dropped_tools(self) -> list[str]:
        """Kinds of tools that only their vendor can run: the model is not told of them."""
        return [*dict.fromkeys(tool.type for tool in self.tools if not tool.function)]

    @property
    def max_new_tokens(self) -> int | None:
        """None: until the context is full."""
        both = (self.max_completion_tokens, self.max_tokens)
        return next((one for one in both if one is not None), None)

    @property
    def num_logprobs(self) -> int | None:
        return self.top_logprobs if self.logprobs else None

    @property
    def num_sequences(self) -> int:
        """Continuations that are generated at the same time."""
        return self.n

    def prompt_parts(self) -> Iterator[str]:
        """What the prompt is made of, in the order in which templates write it, for routing."""
        yield from self._tool_texts()
        for message in self.messages:
            yield f"\n{message.role}\n"
            yield from message.texts()

    def _tool_texts(self) -> Iterator[str]:
        for tool in self.usable_tools:
            yield json.dumps(tool.for_template(), ensure_ascii=False)

    def prompt_size_estimate(self) -> int:
        """Tokens of the prompt, roughly, for routing."""
        chars = sum(len(text) for message in self.messages for text in message.texts())
        chars += sum(len(text) for text in self._tool_texts())
        return chars // CHARS_PER_TOKEN + MESSAGE_OVERHEAD_TOKENS * len(self.messages)

    def prompt_sizes(self) -> tuple[PromptSize, ...]:
        """Tokens of the prompt, for limits. A template that writes more of its own than most do
        makes it longer than that."""
        size = num_bytes(json.dumps(self.chat_template_kwargs, ensure_ascii=False))
        size += sum(map(num_bytes, self._tool_texts()))
        for message in self.messages:
            size += num_bytes(message.name or "") + num_bytes(message.tool_call_id or "")
            size += sum(map(num_bytes, message.texts()))
        added = TEMPLATE_TOKENS + TEMPLATE_TOKENS_PER_MESSAGE * len(self.messages)
        return (self.truncated(PromptSize.of_bytes(size, added=added)),)

    def max_new_tokens_estimate(self) -> int:
        """Tokens that may be generated, over all choices, roughly, for routing."""
        return self.n * likely_new_tokens(self.max_new_tokens)
