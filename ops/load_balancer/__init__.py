"""Configuration of HAProxy or nginx in front of Pomona's gateways.

``plan.py`` says what there is to decide; ``haproxy.py`` and ``nginx.py`` fill it into
``haproxy.cfg.template`` and ``nginx.conf.template``, where the reasons stand. ``haproxy.cfg`` and
``nginx.conf`` are what comes out for the addresses in ``examples.py``. To have your own:
``python -m ops.load_balancer haproxy --hosts hosts.yaml``, or ``--gateway HOST:PORT`` for each.
"""
