"""Prometheus' configuration, alert rules and Alertmanager's routes.

``prometheus.yml`` serves one machine as it is; ``python -m ops.cluster`` writes a cluster's.
``objectives.toml`` holds what is promised to clients; ``python -m ops.prometheus`` makes
``rules/objectives.yml`` from it, by ``objectives.py``. The other rules are written by hand.
"""
