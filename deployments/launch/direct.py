"""Requests to this machine and to Pomona's servers use no proxy: a proxy can't reach them, and
would see keys and prompts."""

from __future__ import annotations

from collections.abc import MutableMapping
from urllib.request import ProxyHandler, build_opener

from deployments.environment import LOOPBACK, NO_PROXY

open_directly = build_opener(ProxyHandler({})).open
"""As ``urllib.request.urlopen``."""


def spare_loopback(environment: MutableMapping[str, str]) -> None:
    """For other libraries, which Ray uses; what is beyond this machine is asked as the user says,
    such as the Hugging Face hub. Idempotent."""
    for name in NO_PROXY:
        spared = next(filter(None, map(environment.get, (name, *NO_PROXY))), "")
        if not spared.startswith(LOOPBACK):
            spared = f"{LOOPBACK},{spared}".rstrip(",")
        environment[name] = spared
