"""Rules for the service level objectives, as multi-window burn rates.

After the Site Reliability Workbook, chapter 5: a short window beside each long one, so that an
alert ends soon after its cause, and a least number of bad events, as a few requests an hour are too
few for a rate.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from deployments.observe.metrics import LATENCY_BOUNDS

OBJECTIVES = Path(__file__).with_name("objectives.toml")
RULES = Path(__file__).parent / "rules" / "objectives.yml"
WINDOWS = ("5m", "30m", "1h", "2h", "6h", "1d", "3d")
HEADER = """\
# Written by `python -m ops.prometheus` from objectives.toml; objectives.py beside it says why so.

groups:
"""


class ObjectiveError(ValueError):
    """An objective that no rule can be made from."""


@dataclass(frozen=True)
class Burn:
    """``factor`` times the rate that uses up a month's budget in a month, in both windows."""

    factor: float
    long: str
    short: str


@dataclass(frozen=True)
class Speed:
    name: str
    burns: tuple[Burn, ...]
    wait: str
    severity: str
    gone_in: str


SPEEDS = (
    # A minute in which all fails is enough for the first hour's.
    Speed("Fast", (Burn(14.4, "1h", "5m"), Burn(6, "6h", "30m")), "30s", "page", "days"),
    Speed("Slow", (Burn(3, "1d", "2h"), Burn(1, "3d", "6h")), "15m", "ticket", "weeks"),
)
LONG_WINDOWS = tuple(burn.long for speed in SPEEDS for burn in speed.burns)


@dataclass(frozen=True)
class Indicator:
    """Which events are bad. ``bad`` and ``all`` are queries with ``FUNCTION`` and ``WINDOW``."""

    group: str
    series: str
    alert: str
    complaint: str
    bad: str
    all: str
    objective: float
    least: int

    def __post_init__(self) -> None:
        if not 0 < self.objective < 1:
            raise ObjectiveError(f"objective must be between 0 and 1, not {self.objective}")
        if self.least < 1:
            raise ObjectiveError(f"least must be at least 1, not {self.least}")

    @property
    def budget(self) -> str:
        return f"{1 - self.objective:.6g}"


def read_indicators(path: Path = OBJECTIVES) -> tuple[Indicator, ...]:
    """Raises ``ObjectiveError``."""
    content = tomllib.loads(path.read_text(encoding="utf-8"))
    return (
        _errors(**content["errors"]),
        _balancers(**content["balancers"]),
        _heartbeat(**content["heartbeat"]),
        _first_token(**content["first_token"]),
    )


def rules(indicators: tuple[Indicator, ...]) -> str:
    """The text of ``rules/objectives.yml``."""
    lines = [line for one in indicators for line in _group(one)]
    return HEADER + "\n".join(lines) + "\n"


def _errors(objective: float, least: int) -> Indicator:
    requests = "sum(FUNCTION(pomona_gateway_requests_total{outcome%s}[WINDOW]))"
    return Indicator(
        group="errors",
        series="errors",
        alert="PomonaErrorBudget",
        complaint="Requests fail",
        bad=requests % '="server_error"',
        all=requests % '=~"success|server_error"',
        objective=objective,
        least=least,
    )


def _balancers(objective: float, least: int) -> Indicator:
    """HAProxy by its own metrics, nginx by those of ``ops/load_balancer/nginx.mtail``."""
    answers = "haproxy_frontend_http_responses_total|nginx_http_responses_total"
    cut = "haproxy_backend_server_aborts_total|nginx_answers_cut_total"
    query = 'sum(FUNCTION({__name__=~"%s",proxy=~"clients|gateways|",code=~"%s"}[WINDOW]))'
    return Indicator(
        group="balancers",
        series="balancer_errors",
        alert="PomonaBalancerBudget",
        complaint="Load balancers answer with errors, or in part",
        bad=query % (f"{answers}|{cut}", "5xx|"),
        all=query % (answers, "2xx|5xx"),
        objective=objective,
        least=least,
    )


def _heartbeat(objective: float, least: int) -> Indicator:
    requests = "sum(FUNCTION(pomona_heartbeat_requests_total{outcome!~%s}[WINDOW]))"
    return Indicator(
        group="heartbeat",
        series="heartbeat_errors",
        alert="PomonaHeartbeatBudget",
        complaint="Requests made to be watched fail",
        bad=requests % '"success|refused"',
        all=requests % '"refused"',
        objective=objective,
        least=least,
    )


def _first_token(objective: float, within_s: float, least: int) -> Indicator:
    if within_s not in LATENCY_BOUNDS:
        bounds = ", ".join(f"{bound:g}" for bound in LATENCY_BOUNDS)
        raise ObjectiveError(f"first_token.within_s must be one of {bounds}, not {within_s:g}")
    histogram = 'sum(FUNCTION(pomona_time_to_first_token_seconds_%s{stage="gateway"%s}[WINDOW]))'
    streams = histogram % ("count", "")
    in_time = histogram % ("bucket", f',le="{within_s:g}"')
    return Indicator(
        group="first-token",
        series="slow_first_tokens",
        alert="PomonaFirstTokenBudget",
        complaint=f"First tokens come after more than {within_s:g} s",
        bad=f"({streams} - {in_time})",
        all=streams,
        objective=objective,
        least=least,
    )


def _group(indicator: Indicator) -> Iterator[str]:
    yield f"  - name: pomona-slo-{indicator.group}"
    yield "    rules:"
    for window in WINDOWS:
        bad, every = (_query(query, "rate", window) for query in (indicator.bad, indicator.all))
        yield f"      - record: pomona:{indicator.series}:ratio_rate{window}"
        yield "        expr: |"
        yield f"          {bad}"
        yield f"            / ({every} > 0)"
    for window in LONG_WINDOWS:
        yield f"      - record: pomona:{indicator.series}:increase{window}"
        yield f"        expr: {_query(indicator.bad, 'increase', window)}"
    for speed in SPEEDS:
        yield from _alert(indicator, speed)


def _query(query: str, function: str, window: str) -> str:
    return query.replace("FUNCTION", function).replace("WINDOW", window)


def _alert(indicator: Indicator, speed: Speed) -> Iterator[str]:
    yield f"      - alert: {indicator.alert}{speed.name}Burn"
    yield "        expr: |"
    for number, burn in enumerate(speed.burns):
        if number:
            yield "          or"
        limit = f"{burn.factor:g} * {indicator.budget}"
        ratio = f"pomona:{indicator.series}:ratio_rate"
        yield f"          ({ratio}{burn.long} > {limit} and {ratio}{burn.short} > {limit}"
        yield f"            and pomona:{indicator.series}:increase{burn.long} >= {indicator.least}"
        # What fails before a cluster has ever served is nobody's request.
        yield f"            unless on () max_over_time(pomona:cluster:starting[{burn.long}]))"
    yield f"        for: {speed.wait}"
    yield "        labels:"
    yield f"          severity: {speed.severity}"
    yield "        annotations:"
    yield (
        f'          summary: "{indicator.complaint}: at {{{{ $value | humanizePercentage }}}}, '
        f"a month's budget is gone in {speed.gone_in}.\""
    )
    yield (
        '          description: "Look at the Latency dashboard, then at the Fleet dashboard for '
        'replicas that are down."'
    )
