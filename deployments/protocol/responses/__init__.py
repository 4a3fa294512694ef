"""OpenAI's Responses API: a body is checked in its own terms (``request.py``), then brought into
the form of a chat (``to_chat.py``). Start reading in ``request.py``."""
