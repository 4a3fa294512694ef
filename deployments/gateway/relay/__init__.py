"""Relaying an answer from a replica to the client, and going on with another when it is lost.

``relay.py`` is the life of one answer, ``attempt.py`` one replica's try at it, ``connection.py``
the HTTP that it takes. Start reading at ``relay.py``.
"""
