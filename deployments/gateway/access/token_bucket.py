"""Token buckets: a rate that allows bursts of up to a minute's worth."""

from __future__ import annotations

from collections.abc import Callable

SECONDS_PER_MINUTE = 60.0


class TokenBucket:
    """Holds up to ``per_minute`` units (at least one) and refills at that rate.

    Something that costs more than the bucket holds is let through when the bucket is full, and
    leaves a debt: the rate holds in the long run, and nothing has to wait for ever.
    """

    def __init__(self, per_minute: float, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._set_rate(per_minute)
        self._level = self.capacity
        self._updated_at = clock()

    def _set_rate(self, per_minute: float) -> None:
        self._per_second = per_minute / SECONDS_PER_MINUTE
        self.capacity = max(1.0, per_minute)

    def resize(self, per_minute: float) -> None:
        """From now on at another rate; what was used stays used."""
        used = self.capacity - self.level
        self._set_rate(per_minute)
        self._level = self.capacity - used

    @property
    def level(self) -> float:
        """Units that are left; negative while there is a debt."""
        now = self._clock()
        gained = (now - self._updated_at) * self._per_second
        self._level = min(self.capacity, self._level + gained)
        self._updated_at = now
        return self._level

    def wait_s(self, cost: float) -> float:
        """Seconds until ``take`` may be called; 0.0: now."""
        missing = min(cost, self.capacity) - self.level
        # What refilling leaves open by rounding is not worth a refusal.
        return missing / self._per_second if missing > 1e-9 else 0.0

    def take(self, cost: float) -> None:
        """Only when ``wait_s`` says 0.0."""
        self._level = self.level - cost

    def give_back(self, amount: float) -> None:
        """A negative ``amount`` takes it, whatever is left."""
        self._level = min(self.capacity, self.level + amount)

    def full_in_s(self) -> float:
        """Seconds until it is as full as it gets."""
        return (self.capacity - self.level) / self._per_second
