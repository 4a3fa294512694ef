"""Run every benchmark with its defaults."""

from __future__ import annotations

import runpy

for name in ("attention", "recurrent", "engine", "grammars", "routing", "relay", "overload"):
    runpy.run_module(f"ops.bench.{name}", run_name="__main__")
