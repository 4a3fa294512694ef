"""What Ray Serve sees: the two deployments, their autoscaling and how they learn of each other.

With ``app.py`` and ``launch/`` the only place that imports ``ray``. Start reading at ``gateway.py``
and ``replica.py``.
"""
