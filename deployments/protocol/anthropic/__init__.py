"""Anthropic's Messages API: a body becomes a chat, which is what runs.

``request.py`` has the fields, ``conversion.py`` makes the chat of them, ``errors.py`` and
``stream.py`` say how failures are told. Start reading in ``request.py``.
"""
