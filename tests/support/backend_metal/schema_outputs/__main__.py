"""``python -m tests.support.backend_metal.schema_outputs [FOLDER] [--count N] [--start NUMBER]``

``FOLDER``: ``maskbench/data`` of https://github.com/guidance-ai/jsonschemabench, whose schemas are
taken, with bounds; without it schemas are made up. Tells each answer that does not match its
schema, or is another one once it was disturbed.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from itertools import islice
from pathlib import Path

from tqdm import tqdm

from tests.support.backend_metal.schema_outputs.campaign import Engines, campaign
from tests.support.backend_metal.schema_outputs.cases import generated, recorded


def main() -> int:
    options = _options()
    cases = recorded(options.folder) if options.folder else generated()
    chosen = list(islice(cases, options.start, options.start + options.count))
    with tempfile.TemporaryDirectory() as directory, tqdm(unit="answer") as progress:
        report = campaign(Engines(Path(directory)), chosen, progress.update)
    sys.stdout.write("\n".join(report.lines()) + "\n")
    return int(bool(report.problems))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.support.backend_metal.schema_outputs")
    parser.add_argument("folder", nargs="?", type=Path)
    parser.add_argument("--count", type=int, default=1000, help="requests; some have two answers")
    parser.add_argument("--start", type=int, default=0, help="number of the first request")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
