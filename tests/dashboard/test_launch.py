"""How a launcher comes by its dashboard, and goes on where it can't."""

from __future__ import annotations

import sys

import pytest
import trio

from cluster.config import UpConfig
from cluster.dashboard import missing
from cluster.dashboard.feed import Feed
from cluster.dashboard.launch import DashboardUnavailable, open_dashboard
from tiedreq import BadOption


async def test_none_when_none_is_wanted() -> None:
    assert await open_dashboard(UpConfig(dashboard=False)) is None


async def test_without_the_extra_the_cluster_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "starlette", None)
    with pytest.raises(DashboardUnavailable) as refusal:
        await open_dashboard(UpConfig(dashboard_port=0))
    assert str(refusal.value) == "no dashboard: starlette is not installed; install tiedreq[dashboard]"
    assert not refusal.value.fatal


@pytest.mark.skipif(bool(missing()), reason="the extra dashboard is not installed")
async def test_a_taken_port_is_one_line() -> None:
    dashboard = await open_dashboard(UpConfig())
    assert dashboard is not None
    port = int(dashboard.url.removesuffix("/").rpartition(":")[2])
    with pytest.raises(DashboardUnavailable) as refusal:
        await open_dashboard(UpConfig(dashboard_port=port))
    assert str(refusal.value) == f"dashboard: can't listen at 127.0.0.1 port {port}: address already in use"
    assert refusal.value.fatal
    dashboard.close()


@pytest.mark.skipif(bool(missing()), reason="the extra dashboard is not installed")
async def test_a_dashboard_that_fails_is_told_of_and_ends_nothing(caplog: pytest.LogCaptureFixture) -> None:
    dashboard = await open_dashboard(UpConfig())
    assert dashboard is not None
    told: list[str] = []

    def broken() -> Feed:
        raise RuntimeError("no feed")

    with trio.fail_after(30):
        await dashboard.run("token", broken, told.append)
    assert told == ["the dashboard has failed, and the cluster goes on without it: RuntimeError"]
    assert "no feed" in caplog.text
    dashboard.close()


def test_a_port_of_a_replica_is_refused() -> None:
    with pytest.raises(BadOption, match="dashboard-port: 7002 is the port of r2"):
        UpConfig(port=7000, dashboard_port=7002)
    with pytest.raises(BadOption, match="dashboard-port: 70000"):
        UpConfig(dashboard_port=70_000)
    UpConfig(port=7000, dashboard_port=7004)
