"""How smooth the page is, in a real browser.

``browser.py`` finds and starts Chromium, ``server.py`` serves a gateway and an engine that writes
Markdown at a pace, ``frames.py`` records what the browser does meanwhile, ``__main__.py`` measures.
"""
