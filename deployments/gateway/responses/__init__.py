"""Responses that are kept for whoever asks for them later, or goes on with them.

``store.py`` is what a gateway asks of a store that it shares with all others, ``memory.py`` the
store, ``shared.py`` the gateway's end of it. ``accepting.py`` finds what a request refers to,
``keeping.py`` writes its response at its end, ``routes.py`` tells of those that are kept. Start
reading in ``store.py``."""
