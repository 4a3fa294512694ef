"""How tests are fuzzed: as many examples as each says, the same ones in every run."""

from __future__ import annotations

from hypothesis import HealthCheck, settings


def fuzz(examples: int) -> settings:
    """Fixtures, which hypothesis sets up once for all examples, may say what they run on."""
    return settings(
        max_examples=examples,
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=[HealthCheck.function_scoped_fixture],
    )
