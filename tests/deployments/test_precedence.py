"""Processes around an engine leave it the cores; the engine's own does not."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from deployments.backend.precedence import give_way, take_precedence

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux has these classes")

CLASSES = """
import os
from deployments.backend.precedence import give_way, take_precedence

def classes():
    return {os.sched_getscheduler(int(one)) for one in os.listdir("/proc/self/task")}
"""
AROUND = f"""
{CLASSES}
import subprocess, sys, threading
until = threading.Event()
for _ in range(3):
    threading.Thread(target=until.wait).start()
print(classes())
give_way()
print(classes())
subprocess.run([sys.executable, "-u", "-c", sys.argv[1]], check=True)
until.set()
"""
ENGINE = f"""
{CLASSES}
print(classes())
take_precedence()
print(classes())
"""


def test_all_threads_give_way_and_an_engine_that_they_start_does_not() -> None:
    told = subprocess.run(
        [sys.executable, "-u", "-c", AROUND, ENGINE],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=True,
    )
    batch, other = str({os.SCHED_BATCH}), str({os.SCHED_OTHER})
    assert told.stdout.splitlines()[1:] == [batch, batch, other]


def test_a_class_that_the_user_chose_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getscheduler", lambda thread: os.SCHED_IDLE)
    monkeypatch.setattr(os, "sched_setscheduler", lambda *_: pytest.fail("it is changed"))
    give_way()
    take_precedence()
