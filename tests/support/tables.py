"""Tables at the end of pytest's output, of rows that tests record.

``record_property(TABLE, (title, *cells))`` adds a row; what was not measured is not in the table.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import pytest

TABLE = "table"


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    tables: dict[str, list[Sequence[str]]] = defaultdict(list)
    for reports in terminalreporter.stats.values():
        for report in reports:
            if getattr(report, "when", None) == "call":
                for name, row in report.user_properties:
                    if name == TABLE:
                        tables[row[0]].append(row[1:])
    for title, rows in sorted(tables.items()):
        terminalreporter.section(title)
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        for row in sorted(rows):
            cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
            terminalreporter.write_line("  ".join(cells).rstrip())
