"""The fleet as it is now, for ``GET /v1/fleet`` and the page.

``watch.py`` asks every replica for its reading: each second while somebody looks, and often enough
for ten minutes of rates while nobody does. ``watched.py`` has what is known of one replica,
``deployed.py`` tells which took the place of one of another build, ``view.py`` is what is told,
``routes.py`` tells it, once or as a stream.
"""
