"""HAProxy's configuration."""

from __future__ import annotations

from deployments.http.errors import ApiError
from ops.load_balancer import answers
from ops.load_balancer.plan import Plan, PlanError
from ops.load_balancer.template import fill

TEMPLATE = "haproxy.cfg.template"
WINDOW_S = 10
CIPHERS = "ECDHE+AESGCM:ECDHE+CHACHA20"

LONGEST_DIRECTORY = 74
"""In characters: macOS has 103 for a Unix socket's path, and HAProxy binds a temporary name."""

OWN_ERRORS = (
    answers.BAD_REQUEST,
    answers.TOO_SLOW,
    answers.FAULT,
    answers.GATEWAY_LOST,
    answers.NO_GATEWAY,
    answers.NO_ANSWER,
)


def haproxy(plan: Plan) -> str:
    """The text of ``haproxy.cfg``. Raises ``PlanError``."""
    if len(str(plan.directory)) > LONGEST_DIRECTORY:
        raise PlanError(
            f"directory must have at most {LONGEST_DIRECTORY} characters, since the path of "
            f"HAProxy's admin socket is limited, not {str(plan.directory)!r}"
        )
    limits = plan.limits
    return fill(
        TEMPLATE,
        {
            "user": _lines(f"user {plan.user}", f"group {plan.user}") if plan.user else "",
            "directory": plan.directory,
            "patience_s": plan.patience_s,
            "stream_patience_s": plan.stream_patience_s,
            "tls_defaults": _tls_defaults() if plan.certificate else "",
            "errors": _lines(*(f"http-error {_answer(error)}" for error in OWN_ERRORS)),
            "status": plan.status,
            "redirect": _redirect(plan) if plan.redirect_from else "",
            "bind": _lines(*(f"{address}{_tls(plan)}" for address in plan.listen), word="bind "),
            "connections": 2 * limits.requests_at_once,
            "window_s": WINDOW_S,
            "requests_at_once": limits.requests_at_once,
            "requests_in_window": WINDOW_S * limits.requests_per_second,
            "too_many_at_once": _answer(answers.too_many(1)),
            "too_many_in_window": _answer(answers.too_many(WINDOW_S)),
            "unknown_url": _answer(answers.UNKNOWN_URL),
            "public_folders": " ".join(plan.public_folders),
            "public_paths": " ".join(plan.public_paths),
            "scheme": "https" if plan.certificate else "http",
            "servers": _servers(plan),
        },
    )


def _lines(*lines: str, word: str = "") -> str:
    return f"\n    {word}".join(lines)


def _answer(error: ApiError) -> str:
    headers = "".join(f" hdr {name} {value}" for name, value in error.headers.items())
    body = error.json().decode()
    return f"status {error.status} content-type application/json{headers} string '{body}'"


def _tls_defaults() -> str:
    return _lines(
        "ssl-default-bind-options ssl-min-ver TLSv1.2 no-tls-tickets",
        f"ssl-default-bind-ciphers {CIPHERS}",
    )


def _tls(plan: Plan) -> str:
    return f" ssl crt {plan.certificate} alpn h2,http/1.1" if plan.certificate else ""


def _redirect(plan: Plan) -> str:
    return _lines(
        "frontend redirect",
        f"bind {plan.redirect_from}",
        f"http-request redirect code 308 location https://%[req.hdr(Host),host_only]{plan.tls_port}%[pathq]",
    )


def _servers(plan: Plan) -> str:
    lines = [f"server {_name(address)} {address}" for address in plan.gateways]
    lines += [f"server {_name(address)} {address} backup" for address in plan.backups]
    if plan.backups:
        lines.append("option allbackups")
    return _lines(*lines)


def _name(address: str) -> str:
    """In logs and metrics a gateway is called by its address."""
    return address.replace("[", "").replace("]", "")
