"""A whole cluster on one Linux machine, and what losing parts of it does to clients.

``network`` makes a switch and ``host`` the machines at it, out of Linux namespaces; ``hosts`` says
what runs on each, ``cluster`` starts it all. ``requests``, ``streams`` and ``load`` are clients;
``losses``, ``partitions`` and ``updates`` are what may happen meanwhile, ``scenarios`` who lives
through what, ``outcome`` what came of it, ``alerts`` what Prometheus said. ``tests/cluster``
asserts what ``python -m tests.support.cluster`` prints.
"""
