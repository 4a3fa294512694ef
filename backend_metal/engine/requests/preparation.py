"""What a request needs before it gets to the engine's thread: its token ids, and its grammar. Who
asks for tokens alone gets them here, too."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol, TypeVar

from backend_metal.engine.grammar.compiler import GrammarCompiler
from backend_metal.engine.grammar.matcher import GrammarMatcher
from backend_metal.engine.requests.fair_thread import FairThread
from backend_metal.engine.text.prompt import PromptEncoder
from backend_metal.engine.text.token_text import TokenText
from backend_metal.engine.text.tokenizer import Tokenizer
from deployments.backend import ChatPrompt, GenerationRequest, PoolingInput, Prompt, SpelledToken

T = TypeVar("T")

SHORT_CHARS = 32 * 1024
"""Of a prompt that takes a tokenizer some hundredths of a second."""
PATIENCE_S_PER_CHAR = 1e-5
"""Ten times what one takes: a prompt waits so long, at most, for shorter ones that come later."""


@dataclass(frozen=True)
class Prepared:
    """What the engine is given of a request."""

    token_ids: list[int]
    matcher: GrammarMatcher | None
    num_history_tokens: int
    """Of the prompt, those before the last message; 0: not known, or of no use to the model."""


class Preparing(Protocol):
    """What an engine lends to other threads than its own."""

    tokenizer: Tokenizer
    prompts: PromptEncoder
    grammars: GrammarCompiler

    @property
    def keeps_states(self) -> bool: ...

    def text_end(self, token_ids: list[int]) -> str: ...


class Preparation:
    """Short prompts have a thread of their own, so that they never wait for long ones, and neither
    waits for what is not to run, of which ``most_waiting`` may wait. What takes longer than
    ``limit_s`` counts as hung."""

    def __init__(self, engine: Preparing, *, limit_s: float, most_waiting: int) -> None:
        self._engine = engine
        # The engine's own belongs to its thread.
        self._token_text = TokenText(engine.tokenizer)
        self._short = FairThread("rendering and tokenizing a prompt", limit_s=limit_s)
        self._long = FairThread("rendering and tokenizing a long prompt", limit_s=limit_s)
        self._grammars = FairThread("compiling a grammar", limit_s=limit_s)
        self._tokens_alone = FairThread("tokenizing", limit_s=limit_s, most_waiting=most_waiting)
        self._threads = (self._short, self._long, self._grammars, self._tokens_alone)

    async def prepare(self, request: GenerationRequest) -> Prepared:
        """Raises a ``BackendError``."""
        engine, grammar = self._engine, request.sampling.grammar
        encoding = partial(self._encode_prompt, request)
        token_ids, num_history_tokens = await self._encode(request.tenant, request.prompt, encoding)
        matcher = None
        if grammar is not None:
            compiling = partial(
                engine.grammars.compile,
                grammar,
                request.sampling.thoughts,
                engine.text_end(token_ids),
            )
            matcher = await self._grammars.run(request.tenant, compiling)
        return Prepared(token_ids, matcher, num_history_tokens)

    def _encode_prompt(self, request: GenerationRequest) -> tuple[list[int], int]:
        prompts = self._engine.prompts
        if self._engine.keeps_states:
            return prompts.encode_with_history(request)
        return prompts.encode(request), 0

    async def tokenize(self, request: GenerationRequest, *, add_special_tokens: bool) -> list[int]:
        """Raises a ``BackendError``."""
        tokenizing = partial(
            self._engine.prompts.tokenize, request, add_special_tokens=add_special_tokens
        )
        return await self._read(request.tenant, _size(request.prompt), tokenizing)

    async def detokenize(self, token_ids: Sequence[int], tenant: str) -> str:
        """Raises ``InvalidRequestError``."""
        return await self._read(tenant, len(token_ids), partial(self._text_of, token_ids))

    async def spell(self, token_ids: Sequence[int], tenant: str) -> list[SpelledToken]:
        """Raises ``InvalidRequestError``."""
        return await self._read(tenant, len(token_ids), partial(self._spelled, token_ids))

    async def _read(self, tenant: str, size: int, work: Callable[[], T]) -> T:
        """``size``: of what is to be read, in characters or tokens."""
        patience_s = size * PATIENCE_S_PER_CHAR
        return await self._tokens_alone.run(tenant, work, patience_s=patience_s)

    def _text_of(self, token_ids: Sequence[int]) -> str:
        self._engine.prompts.check_ids(token_ids, "tokens")
        return self._token_text.decode(token_ids)

    def _spelled(self, token_ids: Sequence[int]) -> list[SpelledToken]:
        self._engine.prompts.check_ids(token_ids, "tokens")
        text = self._token_text
        return [SpelledToken(text.name(one), text.utf8(one)) for one in token_ids]

    async def encode_input(self, tenant: str, one: PoolingInput) -> list[int]:
        """Raises a ``BackendError``."""
        encoding = partial(self._engine.prompts.encode_beginning, one)
        return await self._encode(tenant, one.prompt, encoding)

    async def _encode(self, tenant: str, prompt: Prompt, encoding: Callable[[], T]) -> T:
        size = _size(prompt)
        thread = self._short if size <= SHORT_CHARS else self._long
        return await thread.run(tenant, encoding, patience_s=size * PATIENCE_S_PER_CHAR)

    def check_health(self) -> None:
        """Raises ``UnavailableError``."""
        for thread in self._threads:
            thread.check_health()

    def stop(self) -> None:
        for thread in self._threads:
            thread.stop()


def _size(prompt: Prompt) -> int:
    """Of what is to be read, in characters or tokens."""
    if not isinstance(prompt, ChatPrompt):
        return len(prompt)
    messages = (value for message in prompt.messages for value in message.values())
    parts = (*messages, prompt.template_arguments, *prompt.tools)
    return sum(len(part if isinstance(part, str) else repr(part)) for part in parts)
