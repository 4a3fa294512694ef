"""``pomona status``: the fleet in a table, once or again and again."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator, Sequence

from deployments.command.alerts import Alert, firing_alerts
from deployments.command.fleet import VERSIONS, Fleet, Member, read_fleet
from deployments.command.server_url import DEFAULT_URL, ServerError, server_url
from deployments.command.terminal import Parser, fail, printable, size, table

BETWEEN_READINGS_S = 1.0
CLEAR = "\x1b[H\x1b[2J"
NONE = "-"
ENGINES: tuple[str, ...] = (
    "ENGINE",
    "HOST",
    "MODEL",
    "RUNNING",
    "WAITING",
    "TOKENS/S",
    "KV CACHE",
    "HITS",
)
ENGINES += ("MEMORY", "FREE ON HOST", "ATTENTION")
ALERTS = ("ALERT", "SEVERITY", "SINCE", "")
GATEWAYS = ("GATEWAY", "HOST", "ANSWERED", "REFUSED", "FAILED", "MOVED")
EXAMPLES = """
TOKENS/S is what each engine generated between two readings; HITS is the part of all prompt tokens
that were in its prefix cache; REFUSED are the mistakes of clients and requests over a limit; MOVED
are streams that went on at another engine. Alerts are Prometheus's, which --prometheus names.

Exit status: 0 if an engine answers and all could be read, 1 otherwise, 2 for a mistake in the
command.
"""


def run(arguments: list[str]) -> int:
    options = _parser().parse_args(arguments)
    try:
        url = server_url(options.url)
        prometheus = options.prometheus and server_url(options.prometheus)
        before = read_fleet(url)
    except ValueError as error:
        return fail(str(error), status=2)
    except ServerError as error:
        return fail(str(error))
    while True:
        time.sleep(options.interval)
        try:
            now = read_fleet(url)
            alerts = firing_alerts(prometheus) if prometheus else None
        except ServerError as error:
            status = fail(str(error))
        else:
            clear = CLEAR if options.watch and sys.stdout.isatty() else ""
            sys.stdout.write(clear + told(before, now, alerts))
            sys.stdout.flush()
            before = now
            status = 0 if now.is_ready and not any(one.error for one in now.members) else 1
        if not options.watch:
            return status


def told(before: Fleet, now: Fleet, alerts: Sequence[Alert] | None = None) -> str:
    """Two readings, as text that ends with a line feed. ``alerts``: None if nobody asked."""
    earlier = {(one.component, one.replica): one for one in before.members}
    parts = [f"{now.url} is {'ready' if now.is_ready else 'NOT ready: no engine answers it'}"]
    for component, header in (("engine", ENGINES), ("gateway", GATEWAYS)):
        members = now.of(component)
        rows = [
            (_engine if component == "engine" else _gateway)(
                one, earlier.get((component, one.replica))
            )
            for one in members
            if not one.error
        ]
        parts.append(table(header, rows) if rows else f"No {component}s.")
        parts += [
            f"{component} {one.replica} on {one.node} can't be read: {one.error}"
            for one in members
            if one.error
        ]
    parts += _versions(now)
    if alerts is not None:
        parts.append(_alerts(alerts))
    return printable("\n\n".join(parts)) + "\n"


def _alerts(alerts: Sequence[Alert]) -> str:
    rows = [(one.name, one.severity, one.since, one.told) for one in alerts]
    return table(ALERTS, rows) if rows else "No alert fires."


def _versions(fleet: Fleet) -> Iterator[str]:
    """In one line what all have alike, and a line for each of what they don't."""
    known = [one for one in fleet.members if one.versions]
    alike = []
    for key, name in VERSIONS.items():
        nodes: dict[str, set[str]] = {}
        for one in known:
            nodes.setdefault(one.versions[key], set()).add(one.node)
        if len(nodes) == 1:
            alike.append(f"{name} {next(iter(nodes))}")
        elif nodes:
            each = "; ".join(f"{one} on {', '.join(sorted(on))}" for one, on in nodes.items())
            yield f"{name} DIFFERS: {each}"
    if alike:
        yield f"All have {', '.join(alike)}."


def _engine(now: Member, before: Member | None) -> Sequence[str]:
    samples = now.samples
    asked = samples.get("pomona_prefix_cache_query_tokens_total", 0.0)
    hits = samples.get("pomona_prefix_cache_hit_tokens_total", 0.0)
    path = next((one for one in samples if one.startswith("pomona_attention_path_info:")), "")
    return (
        now.replica,
        now.node,
        now.model,
        _count(now, "pomona_requests_running"),
        _count(now, "pomona_requests_waiting"),
        _rate(now, before, "pomona_generation_tokens_total"),
        _percent(samples.get("pomona_kv_cache_usage_ratio")),
        _percent(hits / asked if asked else None),
        _size(now, "pomona_memory_active_bytes"),
        _size(now, "pomona_host_memory_available_bytes"),
        path.partition(":")[2] or NONE,
    )


def _gateway(now: Member, before: Member | None) -> Sequence[str]:
    def of(*outcomes: str) -> str:
        name = "pomona_gateway_requests_total"
        return f"{sum(now.samples.get(f'{name}:{one}', 0.0) for one in outcomes):.0f}"

    return (
        now.replica,
        now.node,
        of("success"),
        of("client_error", "rate_limited"),
        of("server_error"),
        _count(now, "pomona_stream_resumes_total"),
    )


def _count(member: Member, name: str) -> str:
    value = member.samples.get(name)
    return NONE if value is None else f"{value:.0f}"


def _rate(now: Member, before: Member | None, name: str) -> str:
    if before is None or name not in before.samples or name not in now.samples:
        return NONE
    return f"{(now.samples[name] - before.samples[name]) / (now.read_at - before.read_at):.1f}"


def _percent(ratio: float | None) -> str:
    return NONE if ratio is None else f"{100 * ratio:.0f}%"


def _size(member: Member, name: str) -> str:
    value = member.samples.get(name)
    return NONE if value is None else size(value)


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="pomona status",
        description="Shows the engines and gateways of a running server, from any machine that "
        "reaches their metrics.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "url", nargs="?", default=DEFAULT_URL, metavar="URL", help=f"of a gateway ({DEFAULT_URL})"
    )
    parser.add_argument(
        "--watch", action="store_true", help="show it again and again, until Ctrl-C"
    )
    parser.add_argument(
        "--interval",
        type=_seconds,
        default=BETWEEN_READINGS_S,
        metavar="SECONDS",
        help="between two readings (default: 1)",
    )
    parser.add_argument("--prometheus", metavar="URL", help="show the alerts that fire there, too")
    return parser


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0.1 <= seconds <= 3600:
        raise argparse.ArgumentTypeError(f"0.1 to 3600 seconds, not {text!r}")
    return seconds
