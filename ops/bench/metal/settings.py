"""What the engine and MLX do for a Mac's GPU, each measured with and without.

Every setting runs in processes of its own, by turns with the others.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tqdm import tqdm

from ops.bench.metal.decode import Decoding
from ops.bench.timing import markdown_table

NOTICEABLE = 0.02
"""Of the rate: less is called no difference."""


@dataclass(frozen=True)
class Setting:
    name: str
    environment: Mapping[str, str] = field(default_factory=dict)
    arguments: tuple[str, ...] = ()


SERVED = Setting("as served")
OTHERS = (
    Setting("nothing is wired", arguments=("--wired-memory=off",)),
    Setting("wired, and kept resident", arguments=("--keep-resident",)),
    Setting("kept resident alone", arguments=("--wired-memory=off", "--keep-resident")),
    Setting("a KV cache that just suffices", arguments=("--small-pool",)),
    Setting("MLX_MAX_OPS_PER_BUFFER=20", {"MLX_MAX_OPS_PER_BUFFER": "20"}),
    Setting("MLX_MAX_OPS_PER_BUFFER=200", {"MLX_MAX_OPS_PER_BUFFER": "200"}),
    Setting("MLX_MAX_MB_PER_BUFFER=100000", {"MLX_MAX_MB_PER_BUFFER": "100000"}),
    Setting("MLX_METAL_FAST_SYNCH=1", {"MLX_METAL_FAST_SYNCH": "1"}),
)


def measured(model: str, setting: Setting, arguments: Sequence[str]) -> Decoding:
    """Raises ``CalledProcessError`` when the process fails."""
    finished = subprocess.run(
        [
            *(sys.executable, "-m", "ops.bench.metal.decode", model),
            *arguments,
            *setting.arguments,
        ],
        env={**os.environ, **setting.environment},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return Decoding(**json.loads(finished.stdout.splitlines()[-1]))


def report(
    model: str,
    *,
    rounds: int,
    arguments: Sequence[str] = (),
    settings: Sequence[Setting] = (SERVED, *OTHERS),
) -> str:
    """Two tables; the others are compared with the first setting. Shows progress."""
    runs: dict[str, list[Decoding]] = {setting.name: [] for setting in settings}
    with tqdm(total=rounds * len(settings), desc="settings", unit="run") as progress:
        for _ in range(rounds):
            for setting in settings:
                runs[setting.name].append(measured(model, setting, arguments))
                progress.update()
    return f"{_settings(runs)}\n\n{_host(runs[settings[0].name])}"


def _settings(runs: Mapping[str, list[Decoding]]) -> str:
    rates = {
        name: statistics.median(run.tokens_per_second for run in of_one)
        for name, of_one in runs.items()
    }
    served = next(iter(rates.values()))
    rows = [
        (
            name,
            f"{rates[name]:.1f}",
            _verdict(rates[name] / served),
            *(
                f"{statistics.median(run.first_token_ms[idle] for run in of_one):.1f}"
                for idle in of_one[0].first_token_ms
            ),
        )
        for name, of_one in runs.items()
    ]
    idle = next(iter(runs.values()))[0].first_token_ms
    after = (f"first token after {seconds} s, ms" for seconds in idle)
    columns = ("setting", "tokens/s", "against as served", *after)
    return markdown_table(columns, rows)


def _verdict(ratio: float) -> str:
    if abs(ratio - 1) < NOTICEABLE:
        return "no difference"
    return f"{100 * abs(ratio - 1):.0f}% {'faster' if ratio > 1 else 'slower'}"


def _host(runs: Sequence[Decoding]) -> str:
    rows = [
        (part, f"{statistics.median(run.host_ms[part] for run in runs):.3f}")
        for part in runs[0].host_ms
    ]
    rows.append(("all but wait", f"{sum(float(ms) for part, ms in rows if part != 'wait'):.3f}"))
    return markdown_table(("host, part of a step", "ms"), rows)
