"""Structured output: which tokens a grammar lets come next. Start reading at ``matcher.py``."""
