"""The heartbeat: a small streamed completion every few seconds, as a client of the load balancer.

What it comes to is told to Prometheus (``pomona_heartbeat_...``): also outages that no gateway and
no balancer lives to count. ``python -m ops.heartbeat --help``.
"""
