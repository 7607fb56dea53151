"""Which zone a copy goes to. A zone is what may fail, or be slow, together: a rack, a building, a region.

The first copy. A client that says in which zone it is stays there while it finds a free slot. Else the least of

    round trip  +  (1 + max(0, load + 1 - slots) / slots) x slowness x mean service time

wins, of the picker's choice in the own zone and its choice in each other one: a queue is left for another zone when it
costs more than the way there. Load is that of ``core.picker``, slowness that of ``core.health``.

Further copies of a tie. They are there for the case that the first one's replica stands still, and what makes it stand
still may be in the whole zone. So a partner is in another zone, the nearest by

    notice latency from the first copy's replica  <=  ``BEARABLE`` x mean service time

because the notice is what a tie costs: for so long both copies may run, and the second one is held back for so long.
Zones as near as the nearest, but for noise, count alike, and the picker decides. Where no other zone is near enough,
the partner is in a zone that has a copy already.

A backup goes where a partner of the copies still out would. When two or more of them are out and all in one zone, it
goes to another one however far: what two replicas of a zone don't answer, a third one there may not answer either.

A replica that names no zone is in one of its own kind: the zone without a name. Durations are seconds; ``draw`` is the
picker's choice among views, None when none of them may have the copy.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from tiedreq.core.stagger import notice_latency

if TYPE_CHECKING:
    from tiedreq.core.picker import ReplicaView

    Draw = Callable[[list[ReplicaView]], ReplicaView | None]
    Zones = Mapping[str, list[ReplicaView]]

BEARABLE = 1.0
"""A notice may take as long as that many mean executions."""
MEAN_UNKNOWN = 0.010
"""The mean service time in seconds that is supposed as long as none is known."""
ALIKE_RATIO, ALIKE_SECONDS = 1.25, 0.0005
"""Notice latencies that differ by less are noise."""


def by_zone(views: Sequence[ReplicaView]) -> dict[str, list[ReplicaView]]:
    """The views by the zone that they name, zones in the order of their names."""
    zones: dict[str, list[ReplicaView]] = {}
    for view in views:
        zones.setdefault(view.zone, []).append(view)
    return dict(sorted(zones.items()))


def _queues(view: ReplicaView, now: float) -> float:
    """How many copies are before a new one in the queue, as far as is known."""
    return max(0.0, view.load(now) + 1 - view.slots)


def _cost(view: ReplicaView, now: float, mean: float | None) -> float:
    """The module's first formula, in seconds. A round trip that is not known yet counts for nothing."""
    service = (MEAN_UNKNOWN if mean is None else mean) * view.health.weight(now)
    return (view.round_trip or 0.0) + (1 + _queues(view, now) / view.slots) * service


def _least(views: Sequence[ReplicaView | None], now: float, mean: float | None) -> ReplicaView | None:
    there = [view for view in views if view is not None]
    return min(there, key=lambda view: _cost(view, now, mean)) if there else None


def choose_first(zones: Zones, own: str, draw: Draw, now: float, mean: float | None) -> ReplicaView | None:
    """The replica of the first copy, for a client in the zone ``own``."""
    home = draw(zones[own]) if own in zones else None
    if home is not None and not _queues(home, now) and home.health.weight(now) <= 1:
        return home
    return _least([home, *(draw(views) for zone, views in zones.items() if zone != own)], now, mean)


def choose_partner(zones: Zones, chosen: Sequence[ReplicaView], draw: Draw, mean: float | None) -> ReplicaView | None:
    """The replica of a further copy, beside those at ``chosen``, of which there is at least one."""
    first, taken = chosen[0], {view.zone for view in chosen}
    drawn = [draw(views) for zone, views in zones.items() if zone not in taken]
    away = sorted(((notice_latency(first, view), view) for view in drawn if view is not None), key=lambda one: one[0])
    if away and away[0][0] <= BEARABLE * (MEAN_UNKNOWN if mean is None else mean):
        return _nearest(away, draw)
    beside = draw([view for zone in taken for view in zones.get(zone, ())]) if len(taken) > 1 else None
    if beside is None and first.zone in zones:
        beside = draw(zones[first.zone])
    return beside if beside is not None else _nearest(away, draw)


def _nearest(away: Sequence[tuple[float, ReplicaView]], draw: Draw) -> ReplicaView | None:
    """The picker's choice among those that are as near as the nearest, of views in the order of their latency."""
    return draw([view for latency, view in away if latency <= ALIKE_RATIO * away[0][0] + ALIKE_SECONDS])


def choose_backup(
    zones: Zones, held: Sequence[ReplicaView], own: str, draw: Draw, now: float, mean: float | None
) -> ReplicaView | None:
    """The replica of a backup, while copies at ``held`` are still out."""
    if not held:
        return choose_first(zones, own, draw, now, mean)
    if len(held) > 1 and len({view.zone for view in held}) == 1:
        elsewhere = [draw(views) for zone, views in zones.items() if zone != held[0].zone]
        return _least(elsewhere, now, mean)
    return choose_partner(zones, held, draw, mean)
