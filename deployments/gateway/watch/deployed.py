"""Which engines took the place of others of another build: what a deployment looks like from here.

A gateway is told of engines that come and go, one by one, and of no deployment. So an engine that
comes is held against the one whose place it takes: on its host, of the same model if there was
such a one, or else of that model elsewhere.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from deployments.gateway.replicas.feed import EngineBuild, Feed
from deployments.gateway.watch.watched import Watched

MOST_PLACES = 256
"""That nobody has taken yet: hosts come and go, too."""


class Deployments:
    """Belongs to one event loop."""

    def __init__(self, feed: Feed) -> None:
        self._feed = feed
        self._there: dict[str, EngineBuild] = {}
        """Of those that are listed and have answered, by their ids."""
        self._left: deque[EngineBuild] = deque(maxlen=MOST_PLACES)
        """Those whose place nobody has taken, the latest last."""

    def follow(self, watched: Iterable[Watched]) -> None:
        """After each reading of all of them."""
        listed = {one.replica.replica_id: one for one in watched if one.is_listed}
        for name in [name for name in self._there if name not in listed]:
            self._left.append(self._there.pop(name))
        for name, one in listed.items():
            if not one.has_answered:
                continue
            build = one.build
            if name not in self._there and not one.was_there:
                before = self._before(build)
                if before is not None and differ(before, build):
                    self._feed.deployed(one.replica, build, before)
            self._there[name] = build

    def _before(self, build: EngineBuild) -> EngineBuild | None:
        here = [one for one in self._left if one.node == build.node]
        alike = [one for one in self._left if one.model == build.model]
        both = [one for one in here if one in alike]
        if places := both or here or alike:
            self._left.remove(places[-1])
            return places[-1]
        # The first of an update that starts new ones before it stops any.
        others = [one for one in self._there.values() if one.model == build.model]
        return others[-1] if others and all(differ(one, build) for one in others) else None


def differ(one: EngineBuild, other: EngineBuild) -> bool:
    """As far as both tell."""
    if one.model != other.model:
        return True
    pairs = (one.revision, other.revision), (one.version, other.version)
    return any(None not in pair and pair[0] != pair[1] for pair in pairs)
