"""From what a client asks to what a backend runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from deployments.backend import (
    ChatPrompt,
    GenerationDefaults,
    GenerationRequest,
    Grammar,
    InvalidRequestError,
    Prompt,
    SamplingParams,
    SchemaPart,
)
from deployments.protocol.chat import ChatCompletionRequest
from deployments.protocol.chat_formats.dialect import TEXT_ALONE, Dialect
from deployments.protocol.chat_formats.grammar import content_grammar, free_text, tools_grammar
from deployments.protocol.chat_formats.switches import (
    Thinking,
    UnservedThinkingError,
    thinking_of,
)
from deployments.protocol.chat_formats.tool import Tool, UnenforceableError
from deployments.protocol.completions import CompletionRequest
from deployments.protocol.functions import with_call_ids
from deployments.protocol.parsed import GenerationForm


def to_generation_requests(
    request: GenerationForm,
    request_id: str,
    default_sampling: SamplingParams,
    dialect: Dialect = TEXT_ALONE,
) -> list[GenerationRequest]:
    """One for each prompt. Sequence ``s`` of prompt ``p`` is the answer's choice ``p * n + s``.
    ``default_sampling`` is the model's, for what the request leaves out, and so is ``dialect``.
    Raises ``InvalidRequestError`` for tools that the model can't call, and for thinking that it
    can't be made to do or to leave, and for a suffix that it knows nothing of."""
    prompts: tuple[Prompt, ...]
    sampling = _sampling(request, default_sampling)
    if isinstance(request, ChatCompletionRequest):
        thinking = _thinking(request, dialect)
        prompts = (_chat_prompt(request, thinking.template_arguments, dialect),)
        sampling = _chat_sampling(request, sampling, dialect, thinking.budget)
    else:
        prompts = request.prompt
        if request.suffix:
            prompts, sampling = _infilled(request, sampling, dialect)
    return [
        GenerationRequest(
            request_id=f"{request_id}-{i}",
            prompt=prompt,
            sampling=sampling,
            n=request.n,
            tells_prompt=request.tells_prompt,
            truncate_prompt_tokens=request.truncate_prompt_tokens,
            priority=request.priority,
            group=request_id,
            cache_salt=request.cache_salt,
        )
        for i, prompt in enumerate(prompts)
    ]


def _infilled(
    request: CompletionRequest, sampling: SamplingParams, dialect: Dialect
) -> tuple[tuple[Prompt, ...], SamplingParams]:
    form = dialect.infill
    if form is None:
        raise InvalidRequestError(
            "this model's vocabulary has no tokens for a text that ends with a suffix",
            param="suffix",
        )
    prompts = tuple(form.prompt(str(prompt), request.suffix) for prompt in request.prompt)
    if sampling.ignore_eos:
        return prompts, sampling
    ends = (*sampling.stop_token_ids, *dialect.infill_ends)
    return prompts, replace(sampling, stop_token_ids=ends)


def _thinking(request: ChatCompletionRequest, dialect: Dialect) -> Thinking:
    """``chat_template_kwargs`` win over what follows from an effort, which many clients send by
    default."""
    try:
        thinking = thinking_of(
            dialect.template_variables,
            thinks=request.thinks,
            effort=request.effort,
            budget=request.thinking_tokens,
            can_be_ended=dialect.thoughts() is not None,
        )
    except UnservedThinkingError as error:
        param = request.budget_param if error.is_budget else request.thinks_param
        raise InvalidRequestError(f"{param} can't be served: {error}", param=param) from error
    given = request.chat_template_kwargs
    for name, value in thinking.template_arguments.items():
        if request.thinks is not None and given.get(name, value) != value:
            raise InvalidRequestError(
                f"chat_template_kwargs.{name} contradicts {request.thinks_param}; send one of them",
                param="chat_template_kwargs",
            )
    return thinking


def _chat_prompt(
    request: ChatCompletionRequest, thinking: Mapping[str, Any], dialect: Dialect
) -> ChatPrompt:
    arguments = {**thinking, **request.chat_template_kwargs}
    if not request.add_generation_prompt:
        arguments["add_generation_prompt"] = False
    return ChatPrompt(
        continues_final_message=request.continue_final_message,
        messages=tuple(with_call_ids(request.messages, dialect.chat_format)),
        tools=tuple(tool.for_template() for tool in request.usable_tools),
        template_arguments=arguments,
    )


def _chat_sampling(
    request: ChatCompletionRequest,
    sampling: SamplingParams,
    dialect: Dialect,
    budget: int | None,
) -> SamplingParams:
    tools = request.usable_tools
    sampling = replace(
        sampling,
        shown_tokens=dialect.shown_tokens,
        thoughts=dialect.thoughts(budget, with_calls=bool(tools)),
    )
    if request.thinks is False and budget is None:
        # The prompt tells the model so; where there is a grammar, that holds it to it, too.
        dialect = replace(dialect, chat_format=replace(dialect.chat_format, thinking=None))
    if tools:
        return replace(sampling, grammar=_tools_grammar(request, sampling.grammar, dialect))
    if sampling.grammar is None:
        return sampling
    frame = content_grammar(dialect.chat_format, dialect.special_tokens)
    free = free_text(dialect.chat_format, dialect.special_tokens, is_answer=False)
    return replace(sampling, grammar=replace(sampling.grammar, frame=frame, free=free))


def _tools_grammar(
    request: ChatCompletionRequest, content: Grammar | None, dialect: Dialect
) -> Grammar:
    """Of calls; or, unless one is required, of ``content`` or any text."""
    param = request.tools_param
    if not dialect.calls_tools:
        raise InvalidRequestError(
            f"{param} can't be served: this model's chat template has no form of tool calls that "
            "is known here. Send no tools, or set engine.chat_template to a template with tools, "
            "or engine.chat_format to the form of its calls",
            param=param,
        )
    if request.choice.required:
        content = None
    places = {one.name: place for place, one in request.functions_by_place.items()}
    tools = [one.as_called(f"{places[one.name]}.parameters") for one in request.usable_tools]
    is_answer = content is None and not request.choice.required
    free = free_text(
        dialect.chat_format,
        dialect.special_tokens,
        is_answer=is_answer,
        ends_thoughts=dialect.calls_end_thoughts,
    )
    written = partial(
        tools_grammar,
        dialect.chat_format,
        required=request.choice.required,
        parallel=request.parallel_tool_calls and not request.functions,
        special_tokens=dialect.special_tokens,
        has_content=content is not None,
        ends_thoughts=dialect.calls_end_thoughts,
    )
    left_out = tuple(".".join((one.name, *path)) for one in tools for path in one.left_out)
    base = replace(content or Grammar("grammar", "", param), free=free, left_out=left_out)
    parts = tuple(
        SchemaPart(one.param, one.part(one.parameters), not one.is_strict, one.name)
        for one in tools
    )
    return _with_parts(written, base, content is not None, parts)


def _with_parts(
    written: Callable[[list[Tool]], str],
    base: Grammar,
    is_frame: bool,
    parts: tuple[SchemaPart, ...],
) -> Grammar:
    """``base`` with calls as they are ``written``, as its text or around it. No closure: a backend
    may be in another process."""
    try:
        text = written([Tool(one.tool, one.schema, not one.is_lenient, one.param) for one in parts])
    except UnenforceableError as error:
        raise InvalidRequestError(str(error), param=error.param) from error
    except RecursionError as error:
        param = parts[0].param.partition("[")[0]
        raise InvalidRequestError(
            f"{param} can't be enforced: their references are too deep", param=param
        ) from error
    is_lenient = any(one.is_lenient for one in parts)
    anew = partial(_with_parts, written, base, is_frame) if is_lenient else None
    whole = replace(base, frame=text) if is_frame else replace(base, text=text)
    return replace(whole, parts=parts, with_parts=anew)


def _sampling(request: GenerationForm, default: SamplingParams) -> SamplingParams:
    allowed = request.allowed_token_ids
    asked = GenerationDefaults(
        temperature=request.temperature,
        top_p=request.top_p,
        top_k=request.top_k,
        min_p=request.min_p,
        repetition_penalty=request.repetition_penalty,
    )
    return replace(
        asked.over(default),
        max_tokens=request.max_new_tokens,
        min_tokens=request.min_tokens,
        bad_words=tuple(request.bad_words),
        allowed_token_ids=None if allowed is None else tuple(allowed),
        presence_penalty=request.presence_penalty,
        frequency_penalty=request.frequency_penalty,
        logit_bias={int(token): bias for token, bias in request.logit_bias.items()},
        logprobs=request.num_logprobs,
        prompt_logprobs=request.num_prompt_logprobs,
        seed=request.seed,
        stop=tuple(request.stop),
        stop_token_ids=tuple(request.stop_token_ids),
        include_stop=request.include_stop_str_in_output,
        skip_special_tokens=request.skip_special_tokens,
        ignore_eos=request.ignore_eos,
        grammar=request.grammar,
    )
