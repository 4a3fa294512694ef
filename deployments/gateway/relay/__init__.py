"""Relaying an answer from a replica to the client, and going on with another when it is lost.

``request.py`` is one request with all that is known of it, ``relay.py`` its life, ``attempt.py``
one replica's try at it, ``connection.py`` the HTTP that it takes. Start reading at ``relay.py``.
"""
