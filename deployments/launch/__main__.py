"""``python -m deployments.launch CONFIG.yaml [--model MODEL] [--verbose]``."""

import os
import sys

from deployments.environment import Role, variables
from deployments.private_files import keep_private, ray_folder


def run() -> int:
    folder = ray_folder()
    try:
        keep_private(folder)
    except OSError as error:
        sys.stderr.write(f"pomona: Ray can't be kept from other users: {error}\n")
        return 2
    os.environ["RAY_TMPDIR"] = str(folder)
    # A cluster that runs already has hosts that are known by their addresses.
    role: Role = "worker" if os.environ.get("RAY_ADDRESS") else "alone"
    for name, value in variables(role).items():
        # What the user has set wins.
        os.environ.setdefault(name, value)
    # It imports Ray, which reads its environment just then.
    from deployments.launch.launcher import main

    return main(sys.argv[1:])


if __name__ == "__main__":
    sys.exit(run())
