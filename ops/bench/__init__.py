"""Benchmarks: ``attention`` (operators), ``engine`` (output tokens), ``machine`` (their limits),
``overload`` (who is served, and how fast), ``relay`` (what a gateway costs).

Each is ``python -m ops.bench.NAME`` and prints a Markdown table; ``python -m ops.bench`` runs all.
Contenders take turns in one process, so that whatever else the machine does hits all of them.
"""
