"""What a process must do before it imports Ray, which reads its environment just then."""

from __future__ import annotations

import os

from deployments.backend.cores import give_way
from deployments.environment import Role, variables
from deployments.launch.direct import spare_loopback
from deployments.launch.private_files import keep_private, ray_folder


def prepare() -> None:
    """Sets Ray's environment for this process and those that it starts, keeps what they write
    from other users, and has them give way on the cores. Raises ``OSError`` if others could get
    at what they write."""
    give_way()
    folder = ray_folder()
    keep_private(folder)
    # Ray's dashboard has a socket among Python's temporary files, and does not start if its path is
    # too long.
    os.environ["RAY_TMPDIR"] = os.environ["TMPDIR"] = str(folder)
    # Ray's processes would import a user's yaml.py or logging.py in place of what they mean.
    os.environ["PYTHONSAFEPATH"] = "1"
    spare_loopback(os.environ)
    # A cluster that runs already has hosts that are known by their addresses.
    role: Role = "worker" if os.environ.get("RAY_ADDRESS") else "alone"
    for name, value in variables(role).items():
        # What the user has set wins.
        os.environ.setdefault(name, value)
