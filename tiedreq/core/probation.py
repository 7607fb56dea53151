"""Replicas on probation, which get trial copies only, and the times at which they are released or tried.

``core.health`` says how long, and when a trial is due; ``core.picker`` says who. Times are on the client's clock.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tiedreq.core.picker import ReplicaView


class Probation:
    """Those on probation, by link in ``views``. Before ``trial_at`` none of them is to be tried."""

    __slots__ = ("_release_at", "trial_at", "views")

    def __init__(self) -> None:
        self.views: dict[int, ReplicaView] = {}
        self.trial_at = math.inf
        self._release_at = math.inf  # none is released before

    def put(self, view: ReplicaView, now: float) -> None:
        """From now on a replica gets trial copies only, for a while."""
        view.on_probation = True
        self.views[view.link] = view
        view.health.begin_probation(now)
        self._release_at = min(self._release_at, view.health.probation_until)
        self.trial_at = min(self.trial_at, view.health.trial_at)

    def end(self, view: ReplicaView) -> None:
        """A replica is like the others again."""
        view.on_probation = False
        self.views.pop(view.link, None)
        view.health.end_probation()

    def release(self, now: float) -> None:
        """Replicas whose time on probation is over are judged anew."""
        if now < self._release_at:
            return
        for view in [view for view in self.views.values() if now >= view.health.probation_until]:
            self.end(view)
        self._release_at = min((view.health.probation_until for view in self.views.values()), default=math.inf)

    def due(self, now: float) -> Iterable[ReplicaView]:
        """Those that are to be tried."""
        return [view for view in self.views.values() if now >= view.health.trial_at]

    def tried(self) -> None:
        """A trial has begun, or none of those that were due could have one: see when the next is due."""
        self.trial_at = min((view.health.trial_at for view in self.views.values()), default=math.inf)
