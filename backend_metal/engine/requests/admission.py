"""What is refused before it costs anything, and with which figures."""

from __future__ import annotations

from deployments.backend import (
    GenerationRequest,
    InvalidRequestError,
    ResumeError,
)


def check_known_tokens(request: GenerationRequest, *, vocab_size: int) -> None:
    """Raises ``InvalidRequestError`` for an unknown token id among the sampling parameters."""
    for param, token_ids in (
        ("logit_bias", request.sampling.logit_bias),
        ("stop_token_ids", request.sampling.stop_token_ids),
        ("allowed_token_ids", request.sampling.allowed_token_ids or ()),
    ):
        unknown = [token for token in token_ids if not 0 <= token < vocab_size]
        if unknown:
            raise InvalidRequestError(
                f"{param} has token id {unknown[0]}; the vocabulary ends at {vocab_size - 1}",
                param=param,
            )


def check_resume(request: GenerationRequest, *, vocab_size: int) -> None:
    """Raises ``ResumeError`` for output that can't be this model's."""
    for token_ids in request.resume:
        if token_ids and not 0 <= min(token_ids) <= max(token_ids) < vocab_size:
            raise ResumeError(
                f"the output to resume has token ids {min(token_ids)} to {max(token_ids)}; the "
                f"model's are 0 to {vocab_size - 1}"
            )
