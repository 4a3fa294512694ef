"""What a backend refuses or fails with."""

from __future__ import annotations


class BackendError(Exception):
    """Anything a backend says no with. ``error_type`` is OpenAI's, and the metric's label."""

    error_type = "server_error"
    code: str | None = None


class InvalidRequestError(BackendError):
    """The request can't be served by this model; ``param`` names the field."""

    error_type = "invalid_request_error"

    def __init__(self, message: str, *, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.param = param
        self.code = code


class QueueFullError(BackendError):
    """Admission is bounded; try again after ``retry_after`` seconds."""

    error_type = "rate_limit_error"
    code = "queue_full"

    def __init__(self, message: str, *, retry_after: int) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class UnavailableError(BackendError):
    """The backend is draining, stopped or unhealthy; another replica may serve the request."""

    error_type = "service_unavailable"
    code = "unavailable"


class EngineStoppedError(UnavailableError):
    """The engine stopped while it had the request, which may be why."""

    code = "engine_stopped"


class ResumeError(BackendError):
    """The backend can't go on from ``GenerationRequest.resume``, here or at all."""

    code = "resume_failed"


class StepError(BackendError):
    """The step that this request was part of failed; the request may be sent again."""

    code = "step_failed"
