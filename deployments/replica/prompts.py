"""What is told of a request's prompts, kept as JSON: a long one would hold up all requests for
seconds if it were encoded at once."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from deployments.backend import InvalidRequestError, Prefill, TokenLogprob
from deployments.protocol import CompletionRequest, GenerationForm
from deployments.protocol.completions import TextOrTokens
from deployments.replica.answer_json import elements
from deployments.replica.logprobs import CompletionLogprobs, prompt_logprobs

MOST_LOGPROBS = 2**20
"""Of all prompts together, alternatives and choices counted: some 60 MB of JSON."""


@dataclass
class _Prompt:
    token_ids: Sequence[int]
    text: str
    echo: CompletionLogprobs
    arrays: defaultdict[str, list[bytes]] = field(default_factory=lambda: defaultdict(list))
    logprobs: list[bytes] = field(default_factory=list)
    is_begun: bool = False
    """Whether the logprobs of its first tokens were heard: the first has none."""


class Prompts:
    """By any choice of theirs that has begun."""

    def __init__(self, request: GenerationForm) -> None:
        self._request = request
        self._sent: Sequence[TextOrTokens] = ()
        self._echoed: int | None = None
        """Alternatives of each echoed token; None: none has logprobs."""
        if isinstance(request, CompletionRequest):
            self._sent = request.prompt
            self._echoed = request.num_logprobs if request.echo else None
        self._told = request.prompt_logprobs
        self._prompts: dict[int, _Prompt] = {}
        self._num_logprobs = 0

    def hear(self, number: int, prefill: Prefill) -> None:
        """Of prompt ``number``. Raises ``InvalidRequestError`` when there would be too much to
        tell."""
        if number not in self._prompts:
            self._count(prefill.num_prompt_tokens)
            text = self._text(number, prefill)
            # Special tokens that the tokenizer adds are no part of what was sent.
            added = len(prefill.prompt_text) - len(text)
            as_ids = self._request.return_tokens_as_token_ids
            echo = CompletionLogprobs(as_ids=as_ids, start=-added)
            self._prompts[number] = _Prompt(prefill.prompt_token_ids, text, echo)
        if prefill.logprobs:
            self._add(self._prompts[number], prefill.logprobs)

    def token_ids(self, choice: int) -> Sequence[int]:
        return self._of(choice).token_ids

    def text(self, choice: int) -> str:
        return self._of(choice).text

    def arrays(self, choice: int) -> Mapping[str, Sequence[bytes]]:
        """Of the logprobs of a completion that echoes it, in pieces."""
        return self._of(choice).arrays

    def logprobs(self, choice: int) -> str:
        """A member of an answer that tells of its prompt, with a comma before it; or nothing."""
        if self._told is None:
            return ""
        return f',"prompt_logprobs":[{b",".join(self._of(choice).logprobs).decode()}]'

    def _of(self, choice: int) -> _Prompt:
        return self._prompts[choice // self._request.n]

    def _count(self, num_tokens: int) -> None:
        if (alternatives := self._request.num_prompt_logprobs) is None:
            return
        self._num_logprobs += num_tokens * (alternatives + 1) * self._request.n
        if self._num_logprobs > MOST_LOGPROBS:
            param = "logprobs" if self._told is None else "prompt_logprobs"
            raise InvalidRequestError(
                f"{param} of so many tokens can't be told at once: tokens times choices times "
                f"alternatives and one must be at most {MOST_LOGPROBS}",
                param=param,
            )

    def _text(self, number: int, prefill: Prefill) -> str:
        if number < len(self._sent) and self._request.truncate_prompt_tokens is None:
            sent = self._sent[number]
            if isinstance(sent, str):
                return sent
        return prefill.prompt_text

    def _add(self, prompt: _Prompt, tokens: Sequence[TokenLogprob]) -> None:
        is_first, prompt.is_begun = not prompt.is_begun, True
        if self._told is not None:
            told: list[Any] = [*prompt_logprobs(tokens, self._told)]
            if is_first:
                told[0] = None
            prompt.logprobs.append(elements(told))
        if self._echoed is not None:
            most = self._echoed
            arrays = prompt.echo.add(replace(token, top=token.top[:most]) for token in tokens)
            for name, values in arrays.items():
                if is_first and name in ("token_logprobs", "top_logprobs"):
                    values[0] = None
                prompt.arrays[name].append(elements(values))
