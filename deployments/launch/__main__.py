"""``python -m deployments.launch CONFIG.yaml [--model MODEL] [--verbose]``."""

import os
import platform
import sys

from deployments.environment import variables
from deployments.launch.private_files import keep_private

LONGEST_TMPDIR = 36
"""In characters: below it Ray has sockets, whose paths may have 107 in all."""


def run() -> int:
    try:
        keep_private()
    except OSError as error:
        sys.stderr.write(f"pomona: Ray's token can't be kept from others: {error}\n")
        return 2
    wanted = variables(platform.system())
    if len(os.environ.get("TMPDIR", "")) > LONGEST_TMPDIR:
        wanted |= {"RAY_TMPDIR": "/tmp"}
    for name, value in wanted.items():
        # What the user has set wins.
        os.environ.setdefault(name, value)
    # It imports Ray, which reads its environment just then.
    from deployments.launch.launcher import main

    return main(sys.argv[1:])


if __name__ == "__main__":
    sys.exit(run())
