"""The HTTP server of one replica: a gateway's request in, the backend's deltas out as SSE or JSON.

``app.py`` builds the app, ``generation.py`` runs the prompts, ``response.py`` sends what they give.
"""
