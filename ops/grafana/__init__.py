"""Grafana's dashboards as code: *Fleet*, *Latency* and *Engine*.

``model.py`` says what panels and dashboards are and turns them into Grafana's JSON; ``fleet.py``,
``latency.py`` and ``engine.py`` are the dashboards. ``python -m ops.grafana`` writes the JSON files
that ``provisioning/`` points Grafana at; ``render.py`` draws them without a Grafana.
"""
