"""The key that signs the ids of resumable streams: one an application, made by its first gateway.

It lies in Ray's own store, and so outlives every gateway, updates, and a head that comes back with
its store. Bound to a deployment, it would be new with each update, and replace every gateway.
"""

from __future__ import annotations

import secrets

from ray.experimental import internal_kv

_NAMESPACE = "pomona"


def resumption_key(app_name: str) -> bytes:
    name = f"resumption-key/{app_name}"
    made = secrets.token_urlsafe(32).encode()
    # Of several gateways that start at once, the first one's stays.
    internal_kv._internal_kv_put(name, made, overwrite=False, namespace=_NAMESPACE)
    return internal_kv._internal_kv_get(name, namespace=_NAMESPACE)
