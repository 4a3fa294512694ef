"""The engine proper: what runs in each step and what becomes of it.

``scheduler.py`` chooses tokens (``sequence.py``, ``block_pool.py``), ``batch.py`` packs them,
``runner.py`` evaluates one graph (model, then ``sampler.py``), ``output.py`` turns drawn tokens
into text. ``engine.py`` is the cycle, ``loop.py`` the thread that runs it.
"""
