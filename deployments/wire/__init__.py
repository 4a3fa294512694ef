"""What gateways and replicas say to each other beside the public API: what a gateway adds to a
request (``envelope.py``) and what a replica adds to its answer (``checkpoint.py``).
"""
