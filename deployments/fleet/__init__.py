"""Membership: the replicas and the gateways that run now, as Serve tells every gateway."""
