"""Service files for every host of a cluster: ``python -m ops.cluster hosts.yaml OUT/``.

``host_list`` says what a list may hold; ``credentials`` makes and keeps secrets. ``scripts`` run
Ray and the store, ``host_environment`` is what they read first, ``launchd`` and ``systemd`` the
units that keep them up and, once a day, let ``clean`` remove old logs. ``isolation`` is the
watchdog of a head that is cut off, ``heartbeat`` what asks as clients do. ``layout`` says what is
in a host's folder, ``installer`` puts it in place there, and ``watching`` what is in Prometheus'.
"""
