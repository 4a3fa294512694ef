"""One hostile client against nine ordinary streams: what these notice of each attack.

``python -m ops.bench.hostile [--only NUMBER] [--way NAME] [--seconds S] [--rounds R]
[--same-key]``. The application runs as it is shipped, with its engine on one core. Beside each
attack nine ordinary clients, three by each of Chat completions, Messages and Responses, send bodies
of 200 KB as agents do and have their answers streamed, and ``/ready`` is asked every 50 ms; the
same beside an ordinary tenth client, right before each attack, is what their speed is compared
with. The exit status is 1 if a promise did not hold: half of that speed by each API, ``/ready``
within 250 ms, no ordinary stream that fails.
"""

from __future__ import annotations

import argparse
import asyncio
import math
import sys
import time
from collections.abc import Sequence
from typing import Never

import aiohttp
import uvloop
from prometheus_client.parser import text_string_to_metric_families
from tqdm import tqdm

from ops.bench.hostile.application import (
    ATTACKERS_KEY,
    LIMITED_KEY,
    ORDINARY_KEY,
    application,
)
from ops.bench.hostile.attacker import Attacker
from ops.bench.hostile.attacks import ATTACKS, NEIGHBOUR, Attack, begin
from ops.bench.hostile.ordinary import Met, watch
from ops.bench.hostile.report import Row, report
from ops.bench.hostile.ways import NAMES, Way, is_installed, way_in
from ops.bench.relay.servers import process

MODEL = "demo"
CALM_TIMEOUT_S = 60.0
WARM_UP_S = 3.0


def measure(way: Way, attack: Attack, *, rounds: int, seconds: float, same_key: bool) -> Row:
    """All rounds together: in each, a machine that others use is as fast for both."""
    before = way.resident_bytes()
    neighbour, met, calm_s = Met(), Met(), 0.0
    for _ in range(rounds):
        neighbour += beside(way, NEIGHBOUR, seconds=seconds, same_key=same_key)
        met += beside(way, attack, seconds=seconds, same_key=same_key)
        calm_s = max(calm_s, uvloop.run(_calm(way.engine_url)))
    return Row(attack.name, way.name, met, neighbour, before, way.resident_bytes(), calm_s)


def beside(way: Way, attack: Attack, *, seconds: float, same_key: bool) -> Met:
    """What ordinary streams meet while ``attack`` runs."""
    key = LIMITED_KEY if attack.is_limited else ATTACKERS_KEY
    attacker = Attacker(way.url, MODEL, ORDINARY_KEY if same_key else key, seconds)
    with process(begin, attack.name, attacker):
        return uvloop.run(watch(way.url, MODEL, ORDINARY_KEY, seconds))


async def _calm(engine_url: str) -> float:
    """Seconds until the engine has nothing to do; infinite if that takes too long."""
    start = time.perf_counter()
    while (waited_s := time.perf_counter() - start) < CALM_TIMEOUT_S:
        try:
            async with aiohttp.request("GET", f"{engine_url}/metrics") as response:
                text = await response.text()
        except aiohttp.ClientError:
            text = ""
        levels = {
            sample.name: sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
        }
        names = ("pomona_requests_running", "pomona_requests_waiting")
        if all(levels.get(name) == 0 for name in names):
            return waited_s
        await asyncio.sleep(0.1)
    return math.inf


def main() -> None:
    arguments = _parser().parse_args()
    attacks = [one for one in ATTACKS if one.name.startswith(arguments.only)]
    ways = [name for name in arguments.way or NAMES if is_installed(name)]
    rows: list[Row] = []
    with (
        application() as running,
        tqdm(total=len(ways) * len(attacks), unit="attack") as progress,
    ):
        for name in ways:
            with way_in(name, running) as way:
                rows += _measure_all(way, attacks, arguments, progress)
        sys.stdout.write(report(rows))
        sys.stdout.flush()
    sys.exit(any(row.broken() for row in rows))


def _measure_all(
    way: Way, attacks: Sequence[Attack], arguments: argparse.Namespace, progress: tqdm[Never]
) -> list[Row]:
    rows = []
    progress.set_description(f"{way.name}: warming up")
    if (calm := uvloop.run(watch(way.url, MODEL, ORDINARY_KEY, WARM_UP_S))).num_failed:
        raise RuntimeError(f"ordinary streams fail without any attack: {calm.outcomes[0]}")
    for attack in attacks:
        progress.set_description(f"{way.name}: {attack.name}")
        rows.append(
            measure(
                way,
                attack,
                rounds=arguments.rounds,
                seconds=arguments.seconds,
                same_key=arguments.same_key,
            )
        )
        progress.update()
    return rows


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m ops.bench.hostile", description=__doc__)
    parser.add_argument("--only", default="", metavar="NUMBER", help="the attacks of one number")
    parser.add_argument("--way", action="append", choices=NAMES, help="one of the ways in")
    parser.add_argument("--seconds", type=float, default=12.0, help="of each attack")
    parser.add_argument("--rounds", type=int, default=1, help="of each attack")
    parser.add_argument(
        "--same-key", action="store_true", help="attackers have the key of the ordinary clients"
    )
    return parser


if __name__ == "__main__":
    main()
