"""``python -m deployments.launch CONFIG.yaml [--model MODEL] [--verbose]``."""

import os
import platform
import sys

from deployments.environment import variables


def run() -> int:
    for name, value in variables(platform.system()).items():
        # What the user has set wins.
        os.environ.setdefault(name, value)
    # It imports Ray, which reads its environment just then.
    from deployments.launch.launcher import main

    return main(sys.argv[1:])


if __name__ == "__main__":
    sys.exit(run())
