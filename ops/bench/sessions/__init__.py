"""Sessions of Claude Code over several hosts: recorded, then replayed against the ideal."""
