"""Offline use: the engine without a server."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from tqdm import tqdm

from backend_metal.device import is_registered
from backend_metal.engine.build import build_engine
from backend_metal.engine.pooling.readout import Floats
from deployments.backend import (
    BackendError,
    BackendStats,
    Delta,
    EngineConfig,
    FinishReason,
    GenerationRequest,
    Pooled,
    PoolingInput,
    PoolingRequest,
    Prompt,
    SamplingParams,
    TokenLogprob,
)


@dataclass
class Completion:
    token_ids: list[int] = field(default_factory=list)
    text: str = ""
    finish_reason: FinishReason | None = None
    logprobs: list[TokenLogprob] = field(default_factory=list)
    """One a token, when ``SamplingParams.logprobs`` asked for them."""
    num_prompt_tokens: int = 0
    num_cached_tokens: int = 0

    def extend(self, delta: Delta) -> None:
        self.token_ids += delta.token_ids
        self.text += delta.text
        self.finish_reason = delta.finish_reason
        self.logprobs += delta.logprobs
        self.num_prompt_tokens = delta.num_prompt_tokens
        self.num_cached_tokens = delta.num_cached_tokens


class LLM:
    """A model and its engine, stepped by the caller's thread."""

    def __init__(
        self,
        model: str,
        max_num_seqs: int = 32,
        max_num_batched_tokens: int | None = None,
        num_kv_blocks: int | None = None,
        block_size: Literal[8, 16, 32] = 16,
        prefix_caching: bool = True,
        device: str | None = None,
        **settings: object,
    ) -> None:
        """Load ``model``; further ``settings`` are the fields of ``EngineConfig``.

        ``device`` may also be one that ``backend_metal.device.registered`` knows.
        Raises ``ValueError`` naming the setting that is wrong or the memory that is missing.
        """
        config = EngineConfig.model_validate(
            {
                "model": model,
                "max_num_seqs": max_num_seqs,
                "max_num_batched_tokens": max_num_batched_tokens,
                "num_kv_blocks": num_kv_blocks,
                "block_size": block_size,
                "prefix_caching": prefix_caching,
                "device": "auto" if is_registered(device) else device or "auto",
                **settings,
            }
        )
        if is_registered(device):
            # Not for config files, which is why the model does not know it.
            config = config.model_copy(update={"device": device})
        self.config = config
        self.engine = build_engine(config)

    def generate(
        self,
        prompts: Sequence[Prompt | list[int]],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        show_progress: bool = True,
    ) -> list[Completion]:
        """Continue every prompt; completions come in the order of the prompts. Without
        ``sampling_params`` the model's defaults hold, of which one that is given takes nothing.

        Raises ``ValueError`` when there is not one ``SamplingParams`` for each prompt, and a
        ``BackendError`` when a prompt can't be served or a step fails; nothing is left running.
        """
        if sampling_params is None:
            sampling_params = self.engine.default_sampling
        if isinstance(sampling_params, SamplingParams):
            sampling_params = [sampling_params] * len(prompts)
        if len(sampling_params) != len(prompts):
            raise ValueError(
                f"sampling_params must be one, or as many as there are prompts ({len(prompts)}), "
                f"not {len(sampling_params)}"
            )
        completions = [Completion() for _ in prompts]
        try:
            for index, (prompt, sampling) in enumerate(zip(prompts, sampling_params, strict=True)):
                self._add(str(index), prompt, sampling)
            with tqdm(
                total=len(prompts), unit="prompt", desc="generate", disable=not show_progress
            ) as progress:
                while self.engine.has_work:
                    for output in self.engine.step():
                        if isinstance(output.item, BackendError):
                            raise output.item
                        if not isinstance(output.item, Delta):
                            continue
                        completions[int(output.request_id)].extend(output.item)
                        progress.update(output.item.finish_reason is not None)
        finally:
            self.engine.abort_all()
        return completions

    def stream(
        self, prompt: Prompt | list[int], sampling_params: SamplingParams | None = None
    ) -> Generator[Delta, None, None]:
        """Continue ``prompt``, and yield each delta as it is made. Closing it ends the request.
        Raises a ``BackendError`` as ``generate`` does."""
        try:
            self._add("0", prompt, sampling_params or self.engine.default_sampling)
            while self.engine.has_work:
                for output in self.engine.step():
                    if isinstance(output.item, BackendError):
                        raise output.item
                    if isinstance(output.item, Delta):
                        yield output.item
        finally:
            self.engine.abort_all()

    def embed(self, inputs: Sequence[str | list[int]]) -> Floats:
        """A vector for each input, ``[len(inputs), size]``: as the checkpoint says, which is of
        length 1, of the last token's state, if it says nothing.

        Raises a ``BackendError`` as ``generate`` does.
        """
        request = PoolingRequest(
            "embed",
            tuple(
                PoolingInput(tuple(one) if isinstance(one, list) else one, f"inputs[{index}]")
                for index, one in enumerate(inputs)
            ),
        )
        vectors: dict[int, Floats] = {}
        try:
            for index, one in enumerate(request.inputs):
                self.engine.add_input(request, index, self.engine.prompts.encode_beginning(one))
            while self.engine.has_work:
                for output in self.engine.step():
                    if isinstance(output.item, BackendError):
                        raise output.item
                    if isinstance(output.item, Pooled):
                        vectors[output.item.index] = output.item.values
        finally:
            self.engine.abort_all()
        return np.stack([vectors[index] for index in range(len(inputs))])

    def reset_prefix_cache(self) -> None:
        self.engine.reset_prefix_cache()

    def stats(self) -> BackendStats:
        return self.engine.stats()

    def _add(self, request_id: str, prompt: Prompt | list[int], sampling: SamplingParams) -> None:
        prompt = tuple(prompt) if isinstance(prompt, list) else prompt
        engine = self.engine
        # One group: they run in the order in which they were given.
        request = GenerationRequest(request_id, prompt, sampling, group="generate")
        prompt_token_ids = engine.prompts.encode(request)
        matcher = None
        if sampling.grammar is not None:
            matcher = engine.grammars.compile(
                sampling.grammar, sampling.thoughts, engine.text_end(prompt_token_ids)
            )
        engine.add_request(request, prompt_token_ids, matcher=matcher)
