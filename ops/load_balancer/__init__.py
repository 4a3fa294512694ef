"""Configuration of HAProxy or nginx in front of Pomona's gateways.

``plan.py`` says what there is to decide; ``haproxy.py`` and ``nginx.py`` fill it into
``haproxy.cfg.template`` and ``nginx.conf.template``, where the reasons stand. ``haproxy.cfg`` and
``nginx.conf`` are what comes out for the addresses in ``examples.py``. To have your own:
``python -m ops.load_balancer haproxy --gateway 10.0.0.1:8000 --gateway 10.0.0.2:8000``.
"""
