"""Serving: Ray Serve, HTTP and the OpenAI protocol, from a request's bytes to a backend and back.

A request enters a ``gateway/`` (one a host), which authenticates and validates it, picks a replica
and relays the byte stream of that replica's own HTTP server (``replica/``). A replica drives one
engine through the protocol in ``backend/``: start reading there. ``app.py`` builds the whole from a
config file; ``serve/`` is what Ray Serve sees of it.
"""
