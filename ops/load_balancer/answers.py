"""What a load balancer itself tells clients, in the shape of the gateways' own errors."""

from __future__ import annotations

from deployments.http.errors import ApiError, body_too_large

UNKNOWN_URL = ApiError(404, "Unknown URL.", code="unknown_url")
BAD_REQUEST = ApiError(400, "The request is not valid HTTP.", code="bad_request")
TOO_SLOW = ApiError(408, "The request took too long to arrive.", code="request_timeout")
FAULT = ApiError(500, "The server had an error.", type="server_error", code="internal_error")
GATEWAY_LOST = ApiError(
    502, "The gateway was lost before it answered.", type="server_error", code="gateway_lost"
)
NO_GATEWAY = ApiError(
    503,
    "No gateway can take the request now.",
    type="service_unavailable",
    code="unavailable",
    headers={"Retry-After": "1"},
)
NO_ANSWER = ApiError(504, "The gateway did not answer.", type="server_error", code="timeout")


def too_large(max_body_bytes: int) -> ApiError:
    return body_too_large(max_body_bytes)


def too_many(retry_after_s: int) -> ApiError:
    return ApiError(
        429,
        f"Too many requests from this address. Try again in {retry_after_s} s.",
        type="rate_limit_error",
        code="rate_limit_exceeded",
        headers={"Retry-After": str(retry_after_s)},
    )
