"""Which tokens may come next: structured output, bounds on thinking, and lists of tokens. Start
reading at ``guide.py``."""
