"""Mutations of recorded requests, sent to a gateway and its replica: what breaks, what stays.

``python -m tests.support.deployments.fuzz --count 1000000`` sends many. Input NUMBER of a SEED is
the same wherever it is made.
"""
