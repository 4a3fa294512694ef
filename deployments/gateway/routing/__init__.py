"""Routing, which replica a request goes to: decided in the gateway, alone, without asking anybody.

``affinity.py`` names the beginnings of a request's prompt, ``prefix_affinity.py`` prefers the
replica that has the longest of them cached for as long as its load is within a bound.
``rendezvous.py`` decides about what is new, so that gateways agree. How much a replica has to do,
and how fast it is, stands in its record. Start reading in ``router.py``, then
``prefix_affinity.py``.
"""

from __future__ import annotations

from deployments.gateway.replicas.work import Affinity, Placed, Placement, Work
from deployments.gateway.routing.affinity import affinity_of
from deployments.gateway.routing.least_outstanding import LeastOutstandingTokens
from deployments.gateway.routing.prefix_affinity import PrefixAffinity
from deployments.gateway.routing.router import Router
from deployments.settings import RoutingSettings

__all__ = [
    "Affinity",
    "LeastOutstandingTokens",
    "Placed",
    "Placement",
    "PrefixAffinity",
    "Router",
    "Work",
    "affinity_of",
    "build_router",
]


def build_router(settings: RoutingSettings) -> Router:
    """The router of one gateway, as configured."""
    if settings.policy == "least_outstanding_tokens":
        return LeastOutstandingTokens()
    return PrefixAffinity(settings)
