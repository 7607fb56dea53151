"""What a page shows, made once a second for all who look: the cluster now, and points for the charts.

Invariants: memory is bounded whoever looks: ``POINTS_TOTAL_MAX`` values of history over all replicas, the last races,
and nothing for a viewer. What an answer costs does not depend on how many look. Where nothing is known there is null.
"""

from __future__ import annotations

import json
import secrets
from collections import deque
from typing import Any

import trio

from cluster.config import POLICIES
from cluster.control import Operator
from cluster.dashboard.methods import method_views
from cluster.dashboard.window import Window
from cluster.drive import TrafficDriver
from cluster.keeper import Keeper
from cluster.supervisor import Cluster

TICK_SECONDS = 1.0
POINTS_MAX = 300
POINTS_TOTAL_MAX = 20_000
"""Points times replicas, each point with those that there were."""
RACES_MAX = 24
RACES_EVERY = 2
"""Ticks between two looks at races: one holds up the client of the traffic for some milliseconds."""
WATCHED_SECONDS = 5.0
"""For so long after somebody looked, races are asked for."""


class Feed:
    """Watches ``cluster`` and ``driver``. ``title`` and ``slots`` are shown as they are."""

    def __init__(
        self, cluster: Cluster, operator: Operator, driver: TrafficDriver | None, *, title: str, slots: int
    ) -> None:
        self.operator = operator
        self._cluster = cluster
        self._driver = driver
        self._title = title
        self._slots = slots
        self._windows = {keeper.name: Window() for keeper in cluster.keepers}
        self._launch = secrets.token_hex(8)
        self._points: deque[tuple[int, int, bytes]] = deque()
        self._points_total = 0
        self._races: deque[dict[str, Any]] = deque(maxlen=RACES_MAX)
        self._shown: set[str] = set()
        self._sequence = 0
        self._now = b"{}"
        self._watched_at = float("-inf")
        self._began = trio.current_time()
        self.tick()

    async def run(self) -> None:
        """Make a new picture each second until cancelled."""
        while True:
            await trio.sleep(TICK_SECONDS)
            self.tick()
            watched = trio.current_time() < self._watched_at + WATCHED_SECONDS
            if self._driver is not None and watched and self._sequence % RACES_EVERY == 0:
                self._driver.ask_for_races()

    def live(self, since: int) -> bytes:
        """The picture and the points after number ``since``, as JSON; numbers grow, from 1 on."""
        self._watched_at = trio.current_time()
        points = b",".join(point for number, _, point in self._points if number > since)
        return b'{"now":%s,"points":[%s]}' % (self._now, points)

    def tick(self) -> None:
        """Look at the cluster and make a picture and a point."""
        self._sequence += 1
        now = self.refresh()
        replicas = len(now["replicas"])
        self._points.append((self._sequence, replicas, _encode(self._point(now))))
        self._points_total += replicas
        while len(self._points) > POINTS_MAX or self._points_total > POINTS_TOTAL_MAX:
            self._points_total -= self._points.popleft()[1]

    def refresh(self) -> dict[str, Any]:
        """Make a picture, out of turn where something was just changed."""
        names = [keeper.name for keeper in self._cluster.keepers]
        self._windows = {name: self._windows.get(name) or Window() for name in names}
        for keeper in self._cluster.keepers:
            self._windows[keeper.name].take(keeper.snapshot)
        self._take_races()
        methods = method_views(self._windows.values(), self._driver)
        now = {
            "launch": self._launch,
            "sequence": self._sequence,
            "title": self._title,
            "uptime": trio.current_time() - self._began,
            "replicas": [self._replica(keeper) for keeper in self._cluster.keepers],
            "methods": methods,
            "traffic": self._traffic(),
            "work": self.operator.work(),
            "faults": self.operator.faults(),
            "races": list(self._races),
            "policies": list(POLICIES),
            "capacity": self._slots * len(self._cluster.keepers),
        }
        self._now = _encode(now)
        return now

    # ---- parts ------------------------------------------------------------------------------------------------

    def _replica(self, keeper: Keeper) -> dict[str, Any]:
        window = self._windows[keeper.name]
        total, snapshot = window.total(), window.latest
        cut = self._cluster.faults.cut_from(keeper.name)
        shown: dict[str, Any] = {
            "name": keeper.name,
            "state": keeper.shown_state,
            "pid": keeper.pid,
            "cut": list(cut),
            "service_ms": _ms(total.service_mean),
            "service_p99_ms": _ms(total.service_quantile(0.99)),
            "started_per_second": total.started / total.seconds if total.seconds else None,
            "wasted_share": total.wasted / total.busy if total.busy else None,
            "double_starts": window.counted("double_starts"),
        }
        if snapshot is None:
            return {**shown, "queue": None, "running": None, "slots": None, "lag_ms": None, "links": []}
        links = [
            {"peer": peer, "up": link["up"], "notice_ms": _ms(link["notice_latency"]), "reason": link["reason"]}
            for peer, link in snapshot["links"].items()
        ]
        lag = snapshot["loop_lag"]
        return {
            **shown,
            **{name: snapshot[name] for name in ("queue", "running", "slots")},
            "lag_ms": _ms(lag["last"]),
            "lag_max_ms": _ms(lag["max"]),
            "rss_mb": None if not snapshot["process"]["rss_bytes"] else snapshot["process"]["rss_bytes"] / 1e6,
            "links": links,
        }

    def _traffic(self) -> dict[str, Any] | None:
        driver = self._driver
        if driver is None:
            return None
        load, progress = driver.load, driver.progress or {}
        return {
            "running": driver.running and load.rate > 0,
            "over": driver.ended.is_set(),
            "rate": load.rate,
            "policy": load.policy,
            "work": load.work,
            "calls": progress.get("calls"),
            "errors": progress.get("errors"),
            "error_kinds": progress.get("error_kinds"),
            "unfinished": progress.get("unfinished"),
            "behind_ms": progress.get("behind_ms"),
        }

    def _take_races(self) -> None:
        for race in self._driver.take_races() if self._driver is not None else []:
            if race["call_id"] not in self._shown:
                if len(self._races) == RACES_MAX:
                    self._shown.discard(self._races[0]["call_id"])
                self._races.append(race)
                self._shown.add(race["call_id"])

    def _point(self, now: dict[str, Any]) -> dict[str, Any]:
        busiest = max(now["methods"], key=lambda method: method["calls"] or 0, default=None)
        curve = dict(busiest["curve"]) if busiest is not None and busiest["curve"] else {}
        busy = [window.total() for window in self._windows.values()]
        seconds = sum(total.busy for total in busy)
        return {
            "n": self._sequence,
            "t": round(now["uptime"], 2),
            "r": {
                replica["name"]: [
                    replica["queue"],
                    replica["running"],
                    _round(replica["service_ms"]),
                    _round(replica["lag_ms"]),
                    _round(_mean([link["notice_ms"] for link in replica["links"]])),
                ]
                for replica in now["replicas"]
            },
            "c": {
                "p50": _round(curve.get(50.0)),
                "p99": _round(curve.get(99.0)),
                "p999": _round(curve.get(99.9)),
                "duplicates": _round(busiest["duplicate_execution_rate"] if busiest is not None else None),
                "wasted": _round(sum(total.wasted for total in busy) / seconds if seconds else None),
            },
        }


def _encode(value: dict[str, Any]) -> bytes:
    return json.dumps(value, separators=(",", ":"), allow_nan=False).encode()


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else 1000 * seconds


def _round(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.4g}")


def _mean(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None
