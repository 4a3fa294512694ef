"""Whether a request's tokens depend on its company, run with ``python -m ops.bench.invariance``."""
