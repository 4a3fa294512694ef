"""An engine that is asked for several times what it can do: who is served, and how fast.

``python -m ops.bench.overload [--times N] [--seconds S] [--max-slowdown X]``. The demo model's
engine, a gateway and the clients are three processes, and the engine has one core. Requests go one
after another (*alone*), then from as many clients as are served at once (*capacity*), then by a
Poisson clock at ``--times`` the rate at which those were served (*overload*), then alone again.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from dataclasses import dataclass, field

import uvloop
from tqdm import tqdm

from deployments.backend import EngineConfig
from ops.bench.overload.client import Client, Outcome, closed_loop, one_by_one, open_loop
from ops.bench.overload.report import Phase, report
from ops.bench.overload.servers import Running, Sample, engine_and_gateway

NUM_ALONE = 40
CAPACITY_S = 15.0
SAMPLE_INTERVAL_S = 10.0


@dataclass
class Measured:
    phases: list[Phase] = field(default_factory=list)
    samples: list[Sample] = field(default_factory=list)
    drained_s: float = 0.0
    """From the last arrival under overload to the end of the last answer."""


async def measure(
    running: Running, *, num_clients: int, times: float, seconds: float, num_alone: int = NUM_ALONE
) -> Measured:
    client, measured = Client(running.gateway, running.model), Measured()
    await one_by_one(client, 3)

    async def alone(name: str) -> None:
        start = time.perf_counter()
        outcomes = await one_by_one(client, num_alone)
        measured.phases.append(Phase(name, outcomes, time.perf_counter() - start))

    with tqdm(total=4, desc="phases") as progress:
        await alone("alone")
        progress.update()
        arrivals_s = min(seconds, CAPACITY_S)
        capacity = Phase("capacity", await closed_loop(client, num_clients, arrivals_s), arrivals_s)
        measured.phases.append(capacity)
        progress.update()
        rate = times * capacity.served_rate
        outcomes = await _overload(client, running, measured, rate, seconds)
        measured.phases.append(Phase(f"overload x {times:g}", outcomes, seconds))
        measured.drained_s = max(one.last for one in outcomes) - outcomes[-1].due
        progress.update()
        await alone("alone again")
        progress.update()
    return measured


async def _overload(
    client: Client, running: Running, measured: Measured, rate: float, seconds: float
) -> list[Outcome]:
    async def sample() -> None:
        start = time.perf_counter()
        while True:
            measured.samples.append(await running.sample(time.perf_counter() - start))
            await asyncio.sleep(SAMPLE_INTERVAL_S)

    sampling = asyncio.create_task(sample())
    outcomes = await open_loop(client, rate, seconds)
    sampling.cancel()
    return outcomes


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m ops.bench.overload", description=__doc__)
    parser.add_argument("--times", type=float, default=4.0)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--max-slowdown", type=float, help="as in EngineConfig")
    arguments = parser.parse_args()
    config = EngineConfig(
        max_queued_requests=32,
        max_slowdown=arguments.max_slowdown,
        # All of them are in use before memory is looked at.
        num_kv_blocks=1024,
    )
    with engine_and_gateway(config) as running:
        measured = uvloop.run(
            measure(
                running,
                num_clients=config.max_num_seqs,
                times=arguments.times,
                seconds=arguments.seconds,
            )
        )
    sys.stdout.write(report(measured.phases, measured.samples, measured.drained_s))


if __name__ == "__main__":
    main()
