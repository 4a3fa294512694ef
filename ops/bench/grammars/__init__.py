"""What grammars cost a full batch, run with ``python -m ops.bench.grammars``."""
