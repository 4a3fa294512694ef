"""A server has a socket for each request, and asks for as many files as it may have."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
import asyncio, resource
from deployments.http.server import HttpServer
resource.setrlimit(resource.RLIMIT_NOFILE, ({soft}, {hard}))
async def main():
    server = HttpServer(None, host="127.0.0.1", port=0)
    await server.start()
    print(*resource.getrlimit(resource.RLIMIT_NOFILE))
    await server.stop()
asyncio.run(main())
"""


@pytest.mark.parametrize(
    ("limits", "raised"), [((256, 4000), [4000, 4000]), ((3000, 3000), [3000, 3000])]
)
def test_a_low_limit_is_raised_and_the_highest_kept(
    limits: tuple[int, int], raised: list[int]
) -> None:
    program = PROGRAM.format(soft=limits[0], hard=limits[1])
    run = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True)
    assert [int(limit) for limit in run.stdout.split()] == raised
