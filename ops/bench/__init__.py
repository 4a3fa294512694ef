"""Benchmarks, one package a subject: ``attention``, ``engine``, ``grammars``, ``hostile``,
``metal``, ``overload``, ``relay`` and ``routing``; what several share is here: ``machine`` (its
limits) and ``timing``.

Each is ``python -m ops.bench.NAME`` and prints a Markdown table; ``python -m ops.bench`` runs all
but ``hostile`` and ``metal``. Contenders take turns in one process, so that whatever else the
machine does hits all of them.
"""
