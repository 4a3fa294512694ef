"""Peers side by side: the same weights and the same requests over HTTP, a fresh server each.

``model`` writes one random checkpoint in MLX's format and llama.cpp's (``gguf_file``), ``peers``
says how each server is started, ``server`` does so, ``rounds`` takes turns and measures, ``report``
and ``chart`` tell. ``install`` gets peers into environments of their own.
"""
