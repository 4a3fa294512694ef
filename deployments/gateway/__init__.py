"""The gateway: authenticate, validate, pick a replica, relay its answer.

``app.py`` builds the HTTP app from ``parts.py``; a request enters at ``generation.py``. ``access/``
says who may send what, ``routing/`` picks a replica, ``relay/`` carries the answer and outlives the
replica that began it, ``watch/`` and ``page/`` show the fleet.
"""
