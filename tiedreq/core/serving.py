"""The replicas that serve one method, and the choice among them where they stand in zones or groups.

``core.zones`` says in which zone a copy goes, ``core.groups`` which replicas may have copies of one tie. Who of several
gets it is up to the picker: ``draw`` is its choice among views, None when none of them may have the copy.

Not for replicas that stand in neither: there the picker chooses among all (``simple``).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tiedreq.core.groups import bits, group_of
from tiedreq.core.zones import by_zone, choose_backup, choose_first, choose_partner

if TYPE_CHECKING:
    from tiedreq.core.picker import ReplicaView
    from tiedreq.core.zones import Draw


class Serving:
    """The replicas that serve a method: ``views``, and by zone; of many also by group."""

    __slots__ = ("_groups", "simple", "views", "zones")

    def __init__(self, views: list[ReplicaView], *, whole: bool = True) -> None:
        self.views = views
        self.zones = by_zone(views)
        self._groups: dict[int, Serving] = {}  # by link
        if whole and bits(len(views)):
            members: dict[int, list[ReplicaView]] = {}
            for view in views:
                members.setdefault(group_of(view.name, len(views)), []).append(view)
            for them in members.values():
                group = Serving(them, whole=False)
                self._groups.update((view.link, group) for view in them)
        self.simple = len(self.zones) < 2 and not self._groups
        """Neither zones nor groups: the picker's choice among all."""

    def group(self, view: ReplicaView) -> Serving:
        """Those that may be partners of ``view``."""
        return self._groups.get(view.link, self)

    def choose_more(
        self, chosen: Sequence[ReplicaView], own: str, draw: Draw, now: float, mean: float | None
    ) -> ReplicaView | None:
        """One more replica for a tie that has those in ``chosen``, for a client in the zone ``own``."""
        near = self.group(chosen[0]) if chosen else self
        view = None
        if len(near.zones) > 1 and chosen:
            view = choose_partner(near.zones, chosen, draw, mean)
        elif len(near.zones) > 1 and own:
            view = choose_first(near.zones, own, draw, now, mean)
        if view is None:
            view = draw(near.views)
        return draw(self.views) if view is None and chosen else view

    def choose_backup(
        self, held: Sequence[ReplicaView], own: str, draw: Draw, now: float, mean: float | None
    ) -> ReplicaView | None:
        """A replica for a backup, while copies at ``held`` are still out."""
        if len(self.zones) > 1:
            return choose_backup(self.zones, held, own, draw, now, mean)
        return draw(self.views)
