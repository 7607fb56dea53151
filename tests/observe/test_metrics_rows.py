"""Counters never fall, whichever methods have rows of their own: pages are read again and again while calls go on."""

from __future__ import annotations

from typing import Any

import pytest
import trio
from prometheus_client.parser import text_string_to_metric_families

import tiedreq
from tiedreq.observe import metrics
from tiedreq.observe.client import OTHERS
from tiedreq.testing import LocalCluster

Values = dict[tuple[str, ...], float]


def service_of(*names: str) -> tiedreq.Service:
    service = tiedreq.Service("rows")

    async def handler(ctx: tiedreq.Context, args: float) -> None:
        await trio.sleep(args)

    for name in names:
        service.method(name, idempotent=True)(handler)
    return service


class Pages:
    """The pages of a client and of its only replica, read again and again. No counter on them may fall or go."""

    def __init__(self, cluster: LocalCluster, client: tiedreq.Client) -> None:
        observers = (cluster.handles["r0"]._server.observer, client.observer)
        self._pages = [metrics.exposition(observer) for observer in observers if observer is not None]
        assert len(self._pages) == 2
        self._before: Values = {}

    def read(self) -> Values:
        """What counts, by name and labels."""
        found: Values = {}
        for page in self._pages:
            for family in text_string_to_metric_families(page("")[0].decode()):
                if family.type in ("counter", "histogram") and family.name.startswith("tiedreq"):
                    for sample in family.samples:
                        key = (sample.name, *(f"{name}={value}" for name, value in sorted(sample.labels.items())))
                        assert key not in found
                        if not sample.name.endswith("_created"):
                            found[key] = sample.value
        fallen = {key: (value, found.get(key)) for key, value in self._before.items() if found.get(key, -1.0) < value}
        assert not fallen
        self._before = found
        return found


def methods(found: Values, name: str) -> dict[str, float]:
    """A metric by method."""
    labels = {key: dict(label.split("=", 1) for label in key[1:]) for key in found if key[0] == name}
    return {label["method"]: found[key] for key, label in labels.items()}


async def call(client: tiedreq.Client, method: str, seconds: float, times: int = 1) -> None:
    for _ in range(times):
        await client.call(method, seconds)


async def test_a_method_that_overtakes_another_stays_where_it_is(
    autojump_clock: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metrics, "METHODS_MAX", 1)
    cluster = LocalCluster(service_of("a", "b"), replicas=1)
    async with cluster as client:
        pages = Pages(cluster, client)
        await call(client, "a", 0.001, 6)
        await call(client, "b", 0.5, 5)
        busy = methods(pages.read(), "tiedreq_replica_busy_seconds_total")
        assert busy == {"a": pytest.approx(0.006, abs=0.01), OTHERS: pytest.approx(2.5, abs=0.01)}
        await call(client, "b", 0.5, 2)
        busy = methods(pages.read(), "tiedreq_replica_busy_seconds_total")
        assert busy == {"a": pytest.approx(0.006, abs=0.01), OTHERS: pytest.approx(3.5, abs=0.01)}


async def test_rows_are_for_those_that_are_called(autojump_clock: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where there are more methods than rows, those that nobody calls take none; the first ones called keep theirs."""
    monkeypatch.setattr(metrics, "METHODS_MAX", 3)
    names = [f"m{number}" for number in range(8)]
    cluster = LocalCluster(service_of(*names), replicas=1)
    async with cluster as client:
        pages = Pages(cluster, client)
        assert methods(pages.read(), "tiedreq_replica_busy_seconds_total") == {OTHERS: 0.0}
        for round_ in range(1, 4):
            for number, name in reversed([*enumerate(names)]):
                await call(client, name, 0.01 * (number % 3), times=round_ * (8 - number))
                found = pages.read()
        for name in ("tiedreq_replica_busy_seconds_total", "tiedreq_client_copies_total"):
            assert set(methods(found, name)) == {"m7", "m6", "m5", OTHERS}
        assert sum(methods(found, "tiedreq_client_latency_seconds_count").values()) == 6 * 36


async def test_where_there_is_room_for_all_each_has_a_row_from_the_start(autojump_clock: Any) -> None:
    cluster = LocalCluster(service_of("a", "b"), replicas=1)
    async with cluster as client:
        pages = Pages(cluster, client)
        assert methods(pages.read(), "tiedreq_replica_busy_seconds_total") == {"a": 0.0, "b": 0.0}
        await call(client, "b", 0.5)
        assert methods(pages.read(), "tiedreq_replica_busy_seconds_total") == {"a": 0.0, "b": pytest.approx(0.5)}
