"""``python -m ops.prometheus`` writes ``rules/objectives.yml`` from ``objectives.toml``."""

from __future__ import annotations

import sys

from ops.prometheus.objectives import RULES, ObjectiveError, read_indicators, rules

if __name__ == "__main__":
    try:
        RULES.write_text(rules(read_indicators()), encoding="utf-8")
    except ObjectiveError as error:
        sys.exit(str(error))
