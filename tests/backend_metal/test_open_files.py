"""mlx-lm's own limit of open files is not the engine's."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import resource
resource.setrlimit(resource.RLIMIT_NOFILE, ({soft}, {hard}))
import backend_metal
print(*resource.getrlimit(resource.RLIMIT_NOFILE))
"""


def limits_after_import(soft: int, hard: int) -> list[int]:
    program = PROGRAM.format(soft=soft, hard=hard)
    run = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True)
    return [int(limit) for limit in run.stdout.split()]


def test_a_low_limit_is_raised_and_the_highest_kept() -> None:
    assert limits_after_import(256, 4000) == [4000, 4000]


def test_a_high_limit_stays() -> None:
    assert limits_after_import(3000, 3000) == [3000, 3000]
