"""Service files for every host of a cluster: ``python -m ops.cluster hosts.yaml OUT/``.

``host_list`` says what a list may hold; ``credentials`` makes the secrets, once. ``scripts`` run
Ray and the store, ``environment`` is what they read first, ``launchd`` and ``systemd`` the units
that keep them up. ``layout`` says what is in a host's folder, ``installer`` puts it in place there.
"""
