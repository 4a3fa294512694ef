"""nginx' configuration."""

from __future__ import annotations

from deployments.http.errors import ApiError
from ops.load_balancer import answers
from ops.load_balancer.haproxy import CIPHERS, WINDOW_S
from ops.load_balancer.plan import Plan
from ops.load_balancer.template import fill

TEMPLATE = "nginx.conf.template"


def nginx(plan: Plan) -> str:
    """The text of ``nginx.conf``."""
    limits = plan.limits
    return fill(
        TEMPLATE,
        {
            "user": f"user {plan.user};" if plan.user else "",
            "directory": plan.directory,
            "patience_s": plan.patience_s,
            "request_timeout_s": round(plan.settings.request_timeout_s),
            "max_body_bytes": plan.settings.max_body_bytes,
            "body_buffer_bytes": plan.settings.max_body_bytes + (64 << 10),
            "requests_at_once": limits.requests_at_once,
            "requests_per_second": limits.requests_per_second,
            # One more than the burst may come in one go.
            "burst": WINDOW_S * limits.requests_per_second - 1,
            "servers": _lines(8, _servers(plan)),
            "status": plan.status,
            "redirect": _lines(4, _redirect(plan)) if plan.redirect_from else "",
            "listen": _lines(8, [f"listen {address}{_tls(plan)};" for address in plan.listen]),
            "tls": _lines(8, _tls_settings(plan)) if plan.certificate else "",
            "bad_request": _lines(12, _answer(answers.BAD_REQUEST)),
            "answers": _lines(8, _named_answers(plan)),
            "unknown_url": _lines(12, _answer(answers.UNKNOWN_URL)),
            "public": _public(plan),
        },
    )


def _public(plan: Plan) -> str:
    """A pattern of the paths that clients may ask."""
    paths = [*plan.public_folders, *(f"{path}$" for path in plan.public_paths)]
    return f"^({'|'.join(paths).replace('.', chr(92) + '.')})"


def _lines(indent: int, lines: list[str]) -> str:
    return f"\n{' ' * indent}".join(lines)


def _servers(plan: Plan) -> list[str]:
    watched = "max_fails=2 fail_timeout=5s"
    return [
        *(f"server {address} {watched};" for address in plan.gateways),
        *(f"server {address} {watched} backup;" for address in plan.backups),
        *(f"server {address} max_fails=0 backup;" for address in plan.gateways),
    ]


def _tls(plan: Plan) -> str:
    return " ssl http2" if plan.certificate else ""


def _tls_settings(plan: Plan) -> list[str]:
    return [
        f"ssl_certificate {plan.certificate};",
        f"ssl_certificate_key {plan.certificate};",
        "ssl_protocols TLSv1.2 TLSv1.3;",
        f"ssl_ciphers {CIPHERS};",
        "ssl_session_cache shared:tls:10m;",
        "ssl_session_tickets off;",
    ]


def _redirect(plan: Plan) -> list[str]:
    return [
        "server {",
        f"    listen {plan.redirect_from};",
        f"    return 308 https://$host{plan.tls_port}$request_uri;",
        "}",
    ]


def _named_answers(plan: Plan) -> list[str]:
    named = {
        "too_large": answers.too_large(plan.settings.max_body_bytes),
        "too_many": answers.too_many(1),
        "fault": answers.FAULT,
        "no_gateway": answers.NO_GATEWAY,
        "no_answer": answers.NO_ANSWER,
    }
    lines = []
    for name, error in named.items():
        lines += [f"location @{name} {{", *(f"    {line}" for line in _answer(error)), "}"]
    return lines


def _answer(error: ApiError) -> list[str]:
    headers = [f"add_header {name} {value} always;" for name, value in error.headers.items()]
    if headers:
        # One of its own, and a location inherits none.
        headers.append("add_header X-Request-Id $missing_id always;")
    return [*headers, f"return {error.status} '{error.json().decode()}';"]
