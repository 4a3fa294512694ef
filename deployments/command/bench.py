"""``pomona bench``: the benchmarks that say how fast a machine or a server is, by name."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from deployments.command.terminal import fail

BENCHES = {
    "engine": "tokens a second of the engine here, beside mlx-lm with the same weights",
    "serve": "a load on a server that runs: its throughput and latencies (--url)",
    "attention": "the attention kernels here, beside what the device can do at most",
    "compare": "other servers and this one, taking turns with the same weights and requests",
}
"""Each is ``ops.bench.NAME``, with flags of its own."""

HELP = """usage: pomona bench NAME ...

Runs a benchmark; what follows its name is for it, and `pomona bench NAME --help` lists that.

{benches}

examples:
  pomona bench serve --url http://127.0.0.1:8000 --concurrency 8
  pomona bench engine --shape 100m --bits 4
"""
ROOT = Path(__file__).parents[2]
"""Where this package lies, and in a repository the benches beside it."""


def run(arguments: list[str]) -> int:
    name, *rest = arguments or ["--help"]
    if name in ("--help", "-h"):
        told = "\n".join(f"  {one:<11}{does}" for one, does in BENCHES.items())
        print(HELP.format(benches=told), end="")
        return 0
    if name not in BENCHES:
        return fail(f"there is no bench {name!r}; there are {', '.join(BENCHES)}", status=2)
    if not has_benches(ROOT):
        return fail(
            "this installation has no benches: they are in Pomona's repository. Run `make setup` "
            "in a copy of it, and then .venv/bin/pomona bench there"
        )
    # In a process like any other of theirs: some choose MLX's BLAS, and start themselves again.
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    sys.stdout.flush()
    os.execve(sys.executable, [sys.executable, "-P", "-m", f"ops.bench.{name}", *rest], environment)


def has_benches(root: Path) -> bool:
    return (root / "ops" / "bench" / "__main__.py").is_file()
