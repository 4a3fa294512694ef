"""``python -m tests.support.deployments.fuzz [--count N] [--seed S] [--start NUMBER]``

Each input that breaks something is told, as small as it gets, and saved.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import uvloop
from tqdm import tqdm

from tests.support.deployments.fuzz.campaign import A_ROUND, Finding, campaign
from tests.support.deployments.fuzz.mutations import Mutations


def main() -> int:
    options = _options()
    mutations, stop, num_found = Mutations(options.seed), options.start + options.count, 0
    with tqdm(total=options.count, unit="input") as progress:
        for start in range(options.start, stop, A_ROUND):
            # Where to go on.
            progress.set_postfix(start=start, found=num_found)
            numbers = range(start, min(start + A_ROUND, stop))
            findings = uvloop.run(campaign(mutations, numbers, progress.update))
            num_found += len(findings)
            for finding in findings:
                progress.write(_saved(finding, options.save))
    return int(num_found > 0)


def _saved(finding: Finding, folder: Path) -> str:
    lines = [finding.problem]
    for one in finding.inputs:
        path = folder / f"{one.seed}-{one.number}.http"
        path.write_bytes(one.raw)
        lines.append(f"  {path}, {one.manner.value}: {one.raw[:300]!r}")
    return "\n".join(lines)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.support.deployments.fuzz")
    parser.add_argument("--count", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--start", type=int, default=0, help="number of the first input")
    parser.add_argument("--save", type=Path, default=Path("."), help="where inputs go that break")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
