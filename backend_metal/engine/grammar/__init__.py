"""Which tokens may come next: structured output, and lists of tokens. Start reading at
``matcher.py``."""
