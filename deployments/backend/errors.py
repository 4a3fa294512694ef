"""What a backend refuses or fails with."""

from __future__ import annotations

from enum import StrEnum


class FailureKind(StrEnum):
    """What a request that got no answer says about its replica."""

    FULL = "full"
    """It is well and has no room."""
    FULL_FOR_TENANT = "full-for-tenant"
    """It may have room for others."""
    SICK = "sick"
    """The next request would fail there, too."""
    LOST = "lost"
    """It fell while it worked on the request, and so perhaps because of it."""
    STEP_FAILED = "step-failed"
    """So did a step of it, but it goes on."""
    CANNOT_RESUME = "cannot-resume"
    """It is well, but can't go on in the middle."""

    @property
    def is_full(self) -> bool:
        return self in (FailureKind.FULL, FailureKind.FULL_FOR_TENANT)

    @property
    def is_sick(self) -> bool:
        return self in (FailureKind.SICK, FailureKind.LOST)

    @property
    def is_loss(self) -> bool:
        return self in (FailureKind.LOST, FailureKind.STEP_FAILED)


class BackendError(Exception):
    """Anything a backend says no with. ``error_type`` is OpenAI's, and the metric's label."""

    error_type = "server_error"
    code: str | None = None
    failure: FailureKind | None = None
    """None: another replica would say the same."""


class InvalidRequestError(BackendError):
    """The request can't be served by this model; ``param`` names the field."""

    error_type = "invalid_request_error"

    def __init__(self, message: str, *, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.param = param
        self.code = code


class DeadEndError(InvalidRequestError):
    """The answer is not complete, and its grammar leaves no token to go on with."""

    def __init__(self, param: str) -> None:
        super().__init__(
            f"the answer can't be completed: {param} leaves no token that may come next",
            param=param,
            code="grammar_dead_end",
        )


class ContextLengthError(InvalidRequestError):
    """The prompt leaves no room for a token, told as OpenAI does: clients that fall back to a
    longer context match on these words, and on the code among them."""

    def __init__(
        self,
        max_model_len: int,
        *,
        prompt: int,
        completion: int | None,
        param: str,
        or_more: bool = False,
    ) -> None:
        """``prompt``, ``completion``: their tokens; ``or_more``: of the prompt there may be more.
        Agents read a number behind "requested"."""
        completion = 1 if completion is None else completion
        more = " or more" if or_more else ""
        super().__init__(
            f"This model's maximum context length is {max_model_len} tokens. However, you "
            f"requested {prompt + completion} tokens{more} ({prompt}{more} in the messages, "
            f"{completion} in the completion). Please reduce the length of the messages or "
            "completion. (context_length_exceeded)",
            param=param,
            code="context_length_exceeded",
        )


class PromptTooLongError(BackendError):
    """The prompt has more tokens than its key's limit leaves at the moment."""

    error_type = "rate_limit_error"
    code = "rate_limit_exceeded"

    def __init__(self, num_tokens: int, max_tokens: int, *, or_more: bool = False) -> None:
        least = "at least " if or_more else ""
        super().__init__(
            f"Request too large: the API key's limit leaves {max_tokens} tokens for the prompt "
            f"now, which has {least}{num_tokens}."
        )


class QueueFullError(BackendError):
    """Admission is bounded; try again after ``retry_after`` seconds."""

    error_type = "rate_limit_error"
    code = "queue_full"
    failure = FailureKind.FULL

    def __init__(self, message: str, *, retry_after: int, for_tenant: bool = False) -> None:
        """``for_tenant``: there may be room for others."""
        super().__init__(message)
        self.retry_after = retry_after
        if for_tenant:
            self.failure = FailureKind.FULL_FOR_TENANT


class UnavailableError(BackendError):
    """The backend is draining, stopped or unhealthy; another replica may serve the request."""

    error_type = "service_unavailable"
    code = "unavailable"
    failure = FailureKind.SICK


class EngineStoppedError(UnavailableError):
    """The engine stopped while it had the request, which may be why."""

    code = "engine_stopped"
    failure = FailureKind.LOST


class ResumeError(BackendError):
    """The backend can't go on from ``GenerationRequest.resume``, here or at all."""

    code = "resume_failed"
    failure = FailureKind.CANNOT_RESUME


class StepError(BackendError):
    """The step that this request was part of failed; the request may be sent again."""

    code = "step_failed"
    failure = FailureKind.STEP_FAILED
