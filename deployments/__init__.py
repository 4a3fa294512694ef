"""Serving: Ray Serve, HTTP and the OpenAI protocol, from a request's bytes to a backend and back.

A request enters at ``gateway.py`` (one per host), which authenticates and validates it, picks a
replica (``routing/``) and relays the byte stream of that replica's own HTTP server
(``replica.py``, ``replica_http.py``). A replica drives one engine through the protocol in
``backend.py``: start reading there. ``app.py`` builds the whole from a config file.
"""
