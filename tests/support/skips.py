"""With ``CI`` set, a skip that ``tests/allowed_skips.txt`` does not list fails the run."""

from __future__ import annotations

import os
from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path

import pytest

ALLOWED = Path(__file__).parents[1] / "allowed_skips.txt"


def pytest_configure(config: pytest.Config) -> None:
    if "CI" in os.environ and not hasattr(config, "workerinput"):
        config.pluginmanager.register(SkipCheck(list(patterns(ALLOWED.read_text()))))


class SkipCheck:
    def __init__(self, allowed: list[str]) -> None:
        self._allowed = allowed
        self._refused: list[str] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.skipped and not hasattr(report, "wasxfail"):
            self._check(report.nodeid)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.skipped:
            self._check(report.nodeid)

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if self._refused and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        for test in self._refused:
            terminalreporter.write_line(f"SKIPPED, and not in {ALLOWED.name}: {test}", red=True)

    def _check(self, test: str) -> None:
        if not any(fnmatchcase(test, pattern) for pattern in self._allowed):
            self._refused.append(test)


def patterns(text: str) -> Iterator[str]:
    """The first word of each line; the rest is the reason."""
    for line in text.splitlines():
        if line and not line.startswith("#"):
            pattern, reason = line.split(maxsplit=1)
            assert reason
            yield pattern
