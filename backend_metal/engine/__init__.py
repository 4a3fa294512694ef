"""The engine proper: what runs in each step and what becomes of it.

``schedule/`` chooses tokens, ``batch.py`` packs them, ``runner.py`` evaluates one graph (model,
then ``sampling/``), ``text/`` turns drawn tokens into text. ``engine.py`` is the cycle, ``loop.py``
the thread that runs it, ``build.py`` what they are made from.
"""
