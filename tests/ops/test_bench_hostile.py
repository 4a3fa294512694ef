from __future__ import annotations

import math
from collections import Counter

import pytest

from deployments.backend import EngineConfig
from ops.bench.hostile.__main__ import measure
from ops.bench.hostile.attacks import ATTACKS
from ops.bench.hostile.ordinary import Met
from ops.bench.hostile.report import Row, report
from ops.bench.hostile.ways import Way
from ops.bench.overload.client import Outcome
from ops.bench.overload.servers import engine_and_gateway

pytestmark = pytest.mark.serve


@pytest.mark.exhaustive
def test_a_small_run_of_real_processes() -> None:
    [attack] = [one for one in ATTACKS if one.name.startswith("1 does not read, n")]
    with engine_and_gateway(EngineConfig(num_kv_blocks=1024)) as running:
        way = Way("own port", running.gateway, running.engine, lambda: running.processes)
        row = measure(way, attack, rounds=2, seconds=3.0, same_key=False)
    for met in (row.beside_a_neighbour, row.met):
        assert met.seconds == 6.0
        assert met.num_tokens > 0
        assert met.num_failed == 0
        assert met.gaps
        assert all(0 < one < math.inf for one in met.ready)
    assert row.before.keys() == row.after.keys() == {"engine", "gateway"}
    assert math.isfinite(row.calm_s)


def test_a_report() -> None:
    whole = Outcome(0.0, 0.0, 200, whole=True)
    usual = Counter(chat=100, messages=100, responses=200)
    neighbour = Met(2.0, usual, [0.01] * 100, [0.002] * 100, [whole] * 8)
    even = Counter(chat=100, messages=100, responses=100)
    held = Met(2.0, even, [0.02] * 100, [0.004] * 99 + [0.2], [whole] * 6)
    broken = Met(2.0, Counter(), [], [math.inf], [whole, Outcome(0.0)])
    sizes = {"gateway": 100 << 20, "engine": 300 << 20}
    rows = [
        Row("1 one", "nginx", held, neighbour, sizes, sizes | {"engine": 310 << 20}, 0.25),
        Row("2 two", "nginx", broken, neighbour, sizes, {"gateway": 101 << 20}, math.inf),
    ]
    first, second, *rest = report(rows).splitlines()[2:]
    assert first.startswith(
        "| 1 one | nginx | 150 | 0.75 | 1.00 | 1.00 | 0.50 | 20 | 4 | 200 | 6 |"
    )
    assert first.endswith("| 0 | 100 to 100 | 300 to 310 | 0.2 |")
    assert second.startswith(
        "| 2 two | nginx | 0 | 0.00 | 0.00 | 0.00 | 0.00 | - | - | - | 2 | 1 |"
    )
    assert second.endswith("| 100 to 101 | 300 to gone | - |")
    assert rest == [
        "",
        "Broken:",
        "- 2 two, nginx: streams by chat had 0% of their speed beside a neighbour",
        "- 2 two, nginx: streams by messages had 0% of their speed beside a neighbour",
        "- 2 two, nginx: streams by responses had 0% of their speed beside a neighbour",
        "- 2 two, nginx: `/ready` failed",
        "- 2 two, nginx: 1 streams of others failed",
        "- 2 two, nginx: the engine was never idle again",
    ]
    assert report(rows[:1]).endswith("\n\nAll held.\n")
