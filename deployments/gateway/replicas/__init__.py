"""What one gateway knows of each replica, from what happened to its own requests there.

``table.py`` has one record a replica (``state.py``) and keeps it while the replica is listed. The
rules are files of their own: ``circuit_breaker.py``, ``load.py``, ``capacity.py``, and
``quarantine.py`` with ``suspect.py``, about requests that may have taken replicas down. ``feed.py``
tells people what has happened.
"""
