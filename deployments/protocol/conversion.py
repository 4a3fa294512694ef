"""From what a client asks to what a backend runs."""

from __future__ import annotations

from dataclasses import replace

from deployments.backend import (
    ChatPrompt,
    GenerationDefaults,
    GenerationRequest,
    Prompt,
    SamplingParams,
)
from deployments.protocol.chat import ChatCompletionRequest
from deployments.protocol.completions import CompletionRequest


def to_generation_requests(
    request: ChatCompletionRequest | CompletionRequest,
    request_id: str,
    default_sampling: SamplingParams,
) -> list[GenerationRequest]:
    """One for each prompt. Sequence ``s`` of prompt ``p`` is the answer's choice ``p * n + s``.
    ``default_sampling`` is the model's, for what the request leaves out."""
    prompts: tuple[Prompt, ...]
    if isinstance(request, ChatCompletionRequest):
        prompts = (_chat_prompt(request),)
    else:
        prompts = request.prompt
    sampling = _sampling(request, default_sampling)
    return [
        GenerationRequest(
            request_id=f"{request_id}-{i}",
            prompt=prompt,
            sampling=sampling,
            n=request.n,
            priority=request.priority,
            cache_salt=request.cache_salt,
        )
        for i, prompt in enumerate(prompts)
    ]


def _chat_prompt(request: ChatCompletionRequest) -> ChatPrompt:
    arguments = dict(request.chat_template_kwargs)
    if not request.add_generation_prompt:
        arguments["add_generation_prompt"] = False
    return ChatPrompt(
        messages=tuple(message.for_template() for message in request.messages),
        template_arguments=arguments,
    )


def _sampling(
    request: ChatCompletionRequest | CompletionRequest, default: SamplingParams
) -> SamplingParams:
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
        presence_penalty=request.presence_penalty,
        frequency_penalty=request.frequency_penalty,
        logit_bias={int(token): bias for token, bias in request.logit_bias.items()},
        logprobs=request.num_logprobs,
        seed=request.seed,
        stop=tuple(request.stop),
        stop_token_ids=tuple(request.stop_token_ids),
        ignore_eos=request.ignore_eos,
    )
