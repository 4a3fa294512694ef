"""From a request that is taken to its sequences, each with what becomes of its tokens."""

from __future__ import annotations

import itertools
from collections.abc import Set
from dataclasses import dataclass, field
from functools import partial

from backend_metal.engine.grammar.guide import Guide
from backend_metal.engine.grammar.matcher import GrammarMatcher
from backend_metal.engine.grammar.restrictions import TokenRestrictions, restrictions_of
from backend_metal.engine.grammar.thought_meter import ThoughtMeter
from backend_metal.engine.requests.admission import check_known_tokens, check_resume
from backend_metal.engine.requests.pooled import PooledOutput, make_readout, make_sequence
from backend_metal.engine.requests.request_state import make_sequences
from backend_metal.engine.text.context_length import check_num_tokens
from backend_metal.engine.text.output import SequenceOutput, end_token_ids
from backend_metal.engine.text.token_text import TokenText
from backend_metal.engine.text.tokenizer import Tokenizer
from backend_metal.models.load.pooling_config import PoolingConfig
from deployments.backend import (
    GenerationRequest,
    InvalidRequestError,
    PoolingRequest,
    SamplingParams,
)

RESUMED_BEFORE = 2**62
"""A resumed request was admitted before, elsewhere: it ranks as older than any that is new here."""


@dataclass
class Intake:
    tokenizer: Tokenizer
    token_text: TokenText
    eos_token_ids: Set[int]
    vocab_size: int
    max_model_len: int
    prefix_caching: bool
    pooling: PoolingConfig
    generates: bool
    _arrivals: itertools.count[int] = field(default_factory=itertools.count)

    def generation(
        self,
        request: GenerationRequest,
        prompt_token_ids: list[int],
        matcher: GrammarMatcher | None,
        *,
        num_history_tokens: int = 0,
    ) -> list[SequenceOutput]:
        """One for each of the request's sequences. Raises a ``BackendError`` that says why it can't
        be taken."""
        self._check(request, prompt_token_ids)
        arrival = next(self._arrivals)
        sequences = make_sequences(
            request,
            prompt_token_ids,
            max_model_len=self.max_model_len,
            arrival=arrival - RESUMED_BEFORE if request.was_admitted else arrival,
            prefix_caching=self.prefix_caching,
            num_history_tokens=num_history_tokens,
            restrictions=self._restrictions(request.sampling),
            guides=[self._guide(request, prompt_token_ids, matcher) for _ in range(request.n)],
        )
        return [
            SequenceOutput(sequence, self.tokenizer, self.token_text, self.eos_token_ids)
            for sequence in sequences
        ]

    def pooled(self, request: PoolingRequest, index: int, token_ids: list[int]) -> PooledOutput:
        """Of one of the request's inputs. Raises a ``BackendError`` as ``generation`` does."""
        check_num_tokens(request.inputs[index], len(token_ids), self.max_model_len)
        readout = make_readout(request.task, self.pooling, len(token_ids))
        sequence = make_sequence(
            request,
            index,
            token_ids,
            readout=readout,
            arrival=next(self._arrivals),
            prefix_caching=self.prefix_caching,
        )
        return PooledOutput(sequence, readout)

    def _check(self, request: GenerationRequest, prompt_token_ids: list[int]) -> None:
        if not self.generates:
            raise InvalidRequestError(
                "this model makes vectors alone: its checkpoint has no head to generate with",
                param="model",
            )
        check_num_tokens(request, len(prompt_token_ids), self.max_model_len)
        check_known_tokens(request, vocab_size=self.vocab_size)
        if request.was_admitted:
            check_resume(request, vocab_size=self.vocab_size)

    def _restrictions(self, sampling: SamplingParams) -> TokenRestrictions | None:
        return restrictions_of(
            sampling,
            partial(self.tokenizer.encode, add_special_tokens=False),
            vocab_size=self.vocab_size,
            end_token_ids=end_token_ids(sampling, self.eos_token_ids),
        )

    def _guide(
        self,
        request: GenerationRequest,
        prompt_token_ids: list[int],
        matcher: GrammarMatcher | None,
    ) -> Guide | None:
        thoughts = request.sampling.thoughts
        if matcher is None and thoughts is None:
            return None
        meter, end_of_thought = None, []
        if thoughts is not None:
            has_begun = thoughts.has_begun(self.token_text.end_of(prompt_token_ids))
            meter = ThoughtMeter(thoughts, has_begun=has_begun)
            end_of_thought = self.tokenizer.encode(thoughts.end, add_special_tokens=False)
        return Guide(
            self.token_text.utf8,
            matcher.copy() if matcher else None,
            meter,
            end_of_thought,
            # A bias chooses between the ways to cut a text.
            forces_grammar=not request.sampling.logit_bias,
        )
