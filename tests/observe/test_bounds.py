"""Labels and rows have limits, whatever services and clients do."""

from __future__ import annotations

from typing import Any

import pytest
import trio
from prometheus_client.parser import text_string_to_metric_families

import tiedreq
from tests.observe.http_client import get
from tests.observe.test_surface import running
from tiedreq.observe import client as observe_client
from tiedreq.observe import metrics
from tiedreq.observe.client import OTHERS
from tiedreq.observe.histogram import BOUNDS, Histogram, quantile
from tiedreq.testing import LocalCluster


def service_of(count: int) -> tiedreq.Service:
    service = tiedreq.Service("many")

    async def handler(ctx: tiedreq.Context, args: Any) -> None:
        await trio.sleep(0.001)

    for number in range(count):
        service.method(f"m{number}", idempotent=True)(handler)
    return service


async def test_methods_beyond_the_limit_share_a_label(autojump_clock: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics, "METHODS_MAX", 3)
    monkeypatch.setattr(observe_client, "METHODS_MAX", 5)
    cluster = LocalCluster(service_of(8), replicas=1)
    async with cluster as client:
        for number in range(8):
            for _ in range(number + 1):
                await client.call(f"m{number}")
        observers = [client.observer, cluster.handles["r0"]._server.observer]
        pages = [metrics.exposition(observer)("")[0].decode() for observer in observers if observer is not None]
        rows = client.observer.snapshot()["methods"] if client.observer is not None else []
    assert [row["method"] for row in rows] == ["m0", "m1", "m2", "m3", "m4", OTHERS]
    assert sum(row["calls"] for row in rows) == 36
    for page in pages:
        families = {family.name: family for family in text_string_to_metric_families(page)}
        for name in ("tiedreq_client_latency_seconds", "tiedreq_replica_service_seconds"):
            if name in families:
                samples = families[name].samples
                labels = [(sample.name, *sorted(sample.labels.items())) for sample in samples]
                assert len(set(labels)) == len(labels)
                assert len({sample.labels["method"] for sample in samples}) == 4
                assert sum(sample.value for sample in samples if sample.name.endswith("_count")) == 36


async def test_a_client_without_replicas_is_not_ready() -> None:
    async with running() as at:
        at.handle.drain()
        with trio.fail_after(20):
            while (got := await get(f"{at.client_url}/readyz")).status == 200:  # noqa: ASYNC110 -- as probes do
                await trio.sleep(0.02)
        assert got == (503, got.headers, "no replica is connected\n")
        assert (await get(f"{at.client_url}/healthz")).status == 200


def test_quantiles_lie_in_their_bucket() -> None:
    histogram = Histogram()
    assert histogram.quantile(0.5) is None and histogram.count == 0
    for milliseconds in range(1, 1001):
        histogram.add(milliseconds / 1000)
    assert histogram.count == 1000 and histogram.sum == pytest.approx(500.5)
    for share in (0.01, 0.5, 0.9, 0.99, 1.0):
        found = histogram.quantile(share)
        assert found is not None and share / 1.6 < found < share * 1.6
    view = histogram.view()
    assert view["count"] == sum(view["counts"]) and len(view["counts"]) == len(view["bounds"]) + 1
    histogram.add(1e9)
    assert histogram.quantile(1.0) == BOUNDS[-1] and quantile([0] * (len(BOUNDS) + 1), 0.5) is None
