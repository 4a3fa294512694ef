"""How tests are fuzzed: the same examples in every run, a part of them in ``make test``."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

FEW = 10
EVERY_EXAMPLE = bool(os.environ.get("POMONA_EXHAUSTIVE"))


# What a test finds must not depend on how busy the machine is, or on chance.
settings.register_profile(
    "suite",
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
settings.load_profile("suite")


def fuzz(examples: int, *, quick: int | None = None) -> settings:
    """``quick`` of the examples, by default a tenth but no fewer than ``FEW``; with
    ``POMONA_EXHAUSTIVE``, which the nightly targets set, all of them.

    Fixtures, which hypothesis sets up once for all examples, may say what they run on."""
    if quick is None:
        quick = min(examples, max(FEW, examples // 10))
    return settings(max_examples=examples if EVERY_EXAMPLE else quick)
