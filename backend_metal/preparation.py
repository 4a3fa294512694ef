"""What a request needs before it gets to the engine's thread: its token ids, and its grammar."""

from __future__ import annotations

from functools import partial

from backend_metal.engine.engine import Engine
from backend_metal.engine.grammar.matcher import GrammarMatcher
from backend_metal.fair_thread import FairThread
from deployments.backend import ChatPrompt, GenerationRequest, Prompt

SHORT_CHARS = 32 * 1024
"""Of a prompt that takes a tokenizer some hundredths of a second."""
PATIENCE_S_PER_CHAR = 1e-5
"""Ten times what one takes: a prompt waits so long, at most, for shorter ones that come later."""


class Preparation:
    """Short prompts have a thread of their own, so that they never wait for long ones. What takes
    longer than ``limit_s`` counts as hung."""

    def __init__(self, engine: Engine, *, limit_s: float) -> None:
        self._engine = engine
        self._short = FairThread("rendering and tokenizing a prompt", limit_s=limit_s)
        self._long = FairThread("rendering and tokenizing a long prompt", limit_s=limit_s)
        self._grammars = FairThread("compiling a grammar", limit_s=limit_s)

    async def prepare(self, request: GenerationRequest) -> tuple[list[int], GrammarMatcher | None]:
        """Raises a ``BackendError``."""
        engine, grammar = self._engine, request.sampling.grammar
        size = _size(request.prompt)
        thread = self._short if size <= SHORT_CHARS else self._long
        encoding = partial(engine.prompts.encode, request)
        patience_s = size * PATIENCE_S_PER_CHAR
        token_ids = await thread.run(request.tenant, encoding, patience_s=patience_s)
        matcher = None
        if grammar is not None:
            compiling = partial(engine.grammars.compile, grammar, engine.text_end(token_ids))
            matcher = await self._grammars.run(request.tenant, compiling)
        return token_ids, matcher

    def check_health(self) -> None:
        """Raises ``UnavailableError``."""
        for thread in (self._short, self._long, self._grammars):
            thread.check_health()

    def stop(self) -> None:
        for thread in (self._short, self._long, self._grammars):
            thread.stop()


def _size(prompt: Prompt) -> int:
    """Of what is to be read, in characters or tokens."""
    if not isinstance(prompt, ChatPrompt):
        return len(prompt)
    messages = (value for message in prompt.messages for value in message.values())
    parts = (*messages, prompt.template_arguments, *prompt.tools)
    return sum(len(part if isinstance(part, str) else repr(part)) for part in parts)
