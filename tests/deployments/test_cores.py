"""Threads of a process that gives way, and processes that it starts, take no core from others."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from deployments.backend.cores import give_way

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux has these classes")

CLASSES = """
import os

def classes():
    return {os.sched_getscheduler(int(one)) for one in os.listdir("/proc/self/task")}
"""
STARTING = f"""
{CLASSES}
import subprocess, sys, threading
from deployments.backend.cores import give_way
until = threading.Event()
for _ in range(3):
    threading.Thread(target=until.wait).start()
give_way()
print(classes())
subprocess.run([sys.executable, "-u", "-c", sys.argv[1]], check=True)
until.set()
"""
STARTED = f"""
{CLASSES}
print(classes())
"""


def test_all_threads_give_way_and_all_that_they_start() -> None:
    told = subprocess.run(
        [sys.executable, "-u", "-c", STARTING, STARTED],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert told.stdout.splitlines() == [str({os.SCHED_BATCH})] * 2


def test_a_class_that_the_user_chose_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getscheduler", lambda thread: os.SCHED_IDLE)
    monkeypatch.setattr(os, "sched_setscheduler", lambda *_: pytest.fail("it is changed"))
    give_way()
