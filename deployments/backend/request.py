"""What a backend is asked: a prompt, how its tokens are drawn, and what it has already."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from deployments.backend.delta import Delta, Prefill

JSON_WHITESPACE = r" |\r?\n[ \t]{0,24}"
"""Between two tokens of JSON that is held to a schema, if any: a blank, or a new line and its
indentation. Without a bound small models would write blanks for ever."""
THOUGHT_WHITESPACE = r"[ \t\r\n]{1,8}"
"""Between a thought and what follows it, if any; bounded for the same reason."""
GrammarKind = Literal["json_schema", "regex", "choice", "grammar"]


@dataclass(frozen=True)
class SchemaPart:
    """A JSON schema that a grammar has in it, to tell which one is at fault."""

    param: str
    """The field that it came in."""
    schema: Mapping[str, Any]
    is_lenient: bool
    """Whether what can't be enforced is left out."""
    tool: str = ""
    """The name of the tool that has it, if one does."""


@dataclass(frozen=True)
class FreeText:
    """Where a grammar leaves text to the model: any may come until ``marker`` does, and while there
    is none, nothing of it matters for what may follow.

    It is the whole answer, or what is behind a thought, unless that begins, behind white space,
    with one of the characters ``unlike``. A thought is free text, too."""

    marker: str = ""
    """A text, or one special token. Empty: nothing but a thought is free."""
    unlike: str = ""
    thought: tuple[str, str] | None = None
    """What an answer may begin with for a thought to follow, and what ends that."""
    call: str = ""
    """What ends a thought, too, for a call to follow, as ``marker``; empty: nothing does."""


@dataclass(frozen=True)
class Grammar:
    """What a whole answer must match; every token that could not lead there is left out."""

    kind: GrammarKind
    text: str
    """A JSON schema; a regular expression without look-around; a JSON array of strings; a grammar
    in Lark's notation (llguidance's) or GBNF."""
    param: str = "grammar"
    """The field that it came in, for errors."""
    frame: str = ""
    """What stands around what must match: a grammar in Lark's notation, in which that is
    ``@content``. Empty: nothing."""
    parts: tuple[SchemaPart, ...] = ()
    """Schemas that ``text``, in Lark's notation, or ``frame`` has in it."""
    free: FreeText = FreeText()
    left_out: tuple[str, ...] = ()
    """Names of tools with the places in their schemas that it doesn't enforce."""
    with_parts: Callable[[tuple[SchemaPart, ...]], Grammar] | None = field(
        default=None, compare=False, repr=False
    )
    """The same of other schemas in place of those; None: none of them is lenient."""


@dataclass(frozen=True)
class Thoughts:
    """Where a model thinks in its answer, by the texts around that. A prompt that ends with
    ``start`` has begun a thought, and an answer that must match a grammar begins behind it.
    Raises ``ValueError`` for a negative budget."""

    start: str
    end: str
    budget: int | None = None
    """Tokens of thoughts, over the whole answer, after which ``end`` is written for the model,
    whatever it would draw. None: it ends its thoughts itself."""
    before: tuple[str, ...] = ()
    """Behind the first of these texts nothing is a thought: calls have begun."""
    ended_by_calls: bool = False
    """Whether they may stand in a thought, which ends there."""

    def __post_init__(self) -> None:
        if self.budget is not None and self.budget < 0:
            raise ValueError(f"budget must be at least 0, not {self.budget}")

    def has_begun(self, prompt_end: str) -> bool:
        """Whether a prompt that ends so has begun one."""
        return prompt_end.rstrip().endswith(self.start)


@dataclass(frozen=True)
class SamplingParams:
    """How tokens are drawn. Raises ``ValueError`` naming the field and what is allowed."""

    max_tokens: int | None = None
    """Most tokens to generate; None: until the context is full; 0: the prompt is computed, and no
    token drawn."""
    min_tokens: int = 0
    """Until there are so many, nothing but ``max_tokens`` ends an answer."""
    temperature: float = 1.0
    """0 is greedy."""
    top_p: float = 1.0
    top_k: int = 0
    """0 considers every token."""
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    logprobs: int | None = None
    """Number of alternatives to report for each token; 0: the drawn token alone; None: nothing."""
    prompt_logprobs: int | None = None
    """The same for the prompt, which then is computed as a whole, whatever is cached of it. They
    come with ``Prefill``, all of them before the first delta that isn't replayed; none where every
    sequence has been resumed. Logprobs of the model, whatever an answer must match."""
    seed: int | None = None
    """The draw at position p depends on (seed, p) alone. None: a fresh seed for each request."""
    bad_words: tuple[str, ...] = ()
    """Texts whose tokens, as they are at the beginning of a text or behind a blank, never follow
    each other in an answer."""
    allowed_token_ids: tuple[int, ...] | None = None
    """None: any. As ``bad_words`` and ``min_tokens``, not with a grammar."""
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    include_stop: bool = False
    """Whether what ended the answer, a stop string or a token, is part of its text."""
    ignore_eos: bool = False
    skip_special_tokens: bool = True
    """False: special tokens are part of the text."""
    shown_tokens: tuple[str, ...] = ()
    """Special tokens that are part of the text; all others are left out of it."""
    grammar: Grammar | None = None
    """Logprobs are those of the tokens that it leaves."""
    thoughts: Thoughts | None = None
    """None: nothing in the answer is one."""

    def __post_init__(self) -> None:
        for name, valid, allowed in (
            ("max_tokens", self.max_tokens is None or self.max_tokens >= 0, "at least 0"),
            ("min_tokens", self.min_tokens >= 0, "at least 0"),
            ("temperature", 0.0 <= self.temperature <= 2.0, "between 0 and 2"),
            ("top_p", 0.0 < self.top_p <= 1.0, "more than 0 and at most 1"),
            ("top_k", self.top_k >= 0, "at least 0 (0 considers every token)"),
            ("min_p", 0.0 <= self.min_p <= 1.0, "between 0 and 1"),
            ("repetition_penalty", 0.0 < self.repetition_penalty <= 10.0, "above 0, at most 10"),
            ("presence_penalty", -2.0 <= self.presence_penalty <= 2.0, "between -2 and 2"),
            ("frequency_penalty", -2.0 <= self.frequency_penalty <= 2.0, "between -2 and 2"),
            (
                "logit_bias",
                all(-100.0 <= bias <= 100.0 for bias in self.logit_bias.values()),
                "a bias between -100 and 100 for each token id",
            ),
            ("logprobs", self.logprobs is None or 0 <= self.logprobs <= 20, "between 0 and 20"),
            (
                "prompt_logprobs",
                self.prompt_logprobs is None or 0 <= self.prompt_logprobs <= 20,
                "between 0 and 20",
            ),
            ("seed", self.seed is None or -(2**63) <= self.seed < 2**63, "a signed 64-bit integer"),
            ("stop", all(self.stop), "non-empty strings"),
            ("bad_words", all(word.strip() for word in self.bad_words), "more than blanks"),
        ):
            if not valid:
                raise ValueError(f"{name} must be {allowed}, not {getattr(self, name)!r}")


@dataclass(frozen=True)
class ChatPrompt:
    """Messages to be rendered by the model's chat template."""

    messages: tuple[Mapping[str, Any], ...]
    template_arguments: Mapping[str, Any] = field(default_factory=dict)
    tools: tuple[Mapping[str, Any], ...] = ()
    """As OpenAI describes them."""
    continues_final_message: bool = False
    """The prompt ends behind the text of the last message, as the template writes it."""


def _unheard(item: Delta | Prefill) -> None:
    pass


Prompt = str | tuple[int, ...] | ChatPrompt


@dataclass(frozen=True)
class GenerationRequest:
    """One prompt, continued ``n`` times."""

    request_id: str
    prompt: Prompt
    sampling: SamplingParams
    n: int = 1
    tells_prompt: bool = False
    """Whether its tokens are told."""
    truncate_prompt_tokens: int | None = None
    """Of a longer prompt the last so many tokens are read; -1: as many as leave ``max_tokens``
    room, or one token. None: none is cut."""
    max_prompt_tokens: int | None = None
    """A longer prompt is refused with ``PromptTooLongError``: whoever sends it may not use more
    now."""
    on_made: Callable[[Delta | Prefill], None] = field(default=_unheard, compare=False, repr=False)
    """Hears of each item that the iterator is going to give, as soon as it is made."""
    priority: int = 0
    """Lower runs first; equal priorities run in order of arrival."""
    tenant: str = ""
    """Whom it is for: a backend shares itself between tenants first. Empty: nobody in particular,
    who has no share of its own to keep to."""
    weight: float = 1.0
    """Of the tenant: with twice the weight it gets twice as much where several want all."""
    group: str = ""
    """The HTTP request that it is a prompt of: a tenant's part is shared between these. Empty: it
    is alone in one."""
    cache_salt: str = ""
    """Requests with different salts never share cached blocks."""
    resume: tuple[tuple[int, ...], ...] = ()
    """Token ids that each of the ``n`` sequences has already, from a backend that was lost, and
    which is to be continued exactly; ``sampling.seed`` is set. The iterator gives them again
    first, one delta a sequence with ``replayed`` set. ``n`` times none: it waited there, or had
    only begun. Empty: an ordinary request."""

    def __post_init__(self) -> None:
        if not 0.0 < self.weight < math.inf:
            raise ValueError(f"weight must be more than 0 and finite, not {self.weight}")
        if self.resume and (len(self.resume) != self.n or self.sampling.seed is None):
            raise ValueError(
                f"resume must have tokens for each of {self.n} sequences, not {len(self.resume)}, "
                f"and a seed, not {self.sampling.seed}"
            )

    @property
    def param(self) -> str:
        """The field of the API that the prompt comes from."""
        return "messages" if isinstance(self.prompt, ChatPrompt) else "prompt"

    @property
    def max_new_tokens(self) -> int | None:
        return self.sampling.max_tokens

    @property
    def was_admitted(self) -> bool:
        """A backend that was lost had let it in, and whoever streams it is in the middle of an
        answer: it needs no place in a queue."""
        return bool(self.resume)
