"""Benchmarks, one package a subject: ``attention``, ``compare``, ``engine``, ``grammars``,
``hostile``, ``metal``, ``overload``, ``page``, ``recurrent``, ``relay``, ``routing`` and ``serve``;
what several share is here: ``machine`` (its limits) and ``timing``.

Each is ``python -m ops.bench.NAME`` and prints a Markdown table; ``python -m ops.bench`` runs all
but ``compare`` and ``hostile``, which take long, ``metal``, ``page``, which drives Chromium, and
``serve``, which asks a server that runs already. Contenders take turns, in one process where they
can, so that whatever else the machine does hits all of them.
"""
