"""The page at ``/``: chat, the fleet, and lines to copy.

``routes.py`` serves what lies in ``static/``: HTML, CSS and ES modules as a browser takes them,
without a build. Whatever a model writes gets into the page as text alone.
"""
