"""A whole cluster on one Linux machine, and what losing parts of it does to 200 streams.

``network`` makes a switch and ``host`` the machines at it, out of Linux namespaces; ``hosts`` says
what runs on each, ``cluster`` starts it all. ``requests``, ``streams`` and ``load`` are clients,
``scenarios`` what happens meanwhile, ``outcome`` what came of it. ``tests/cluster`` asserts what
``python -m tests.support.cluster`` prints.
"""
