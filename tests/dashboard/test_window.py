"""What the feed makes of snapshots: windows, rows by method, points; without samples, and over a restart."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import trio

from cluster.config import UpConfig
from cluster.control import Operator
from cluster.dashboard.feed import POINTS_MAX, POINTS_TOTAL_MAX, Feed
from cluster.dashboard.methods import method_views
from cluster.dashboard.window import WINDOW_SECONDS, Window
from cluster.demo_state import DemoState
from cluster.engines import LocalEngine
from cluster.output import Output
from cluster.recently import SAMPLES_MAX, Recently
from cluster.state import StateDirectory
from cluster.supervisor import Cluster
from tests.net.bench import bench_service
from tiedreq import Tied
from tiedreq.testing import LocalCluster


async def snapshots(calls: int) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Those of a real replica before and after ``calls`` of 100 ms."""
    cluster = LocalCluster(bench_service(), replicas=1, mesh_latency=0.0)
    async with cluster as client:
        before = [json.loads(json.dumps(handle.snapshot())) for handle in cluster.handles.values()]
        for _ in range(calls):
            await client.request("work", 0.1, policy=Tied(backup=None))
        after = [json.loads(json.dumps(handle.snapshot())) for handle in cluster.handles.values()]
    for index, (first, second) in enumerate(zip(before, after, strict=True)):
        first["time"], second["time"] = 1000.0 + index, 1005.0 + index
    return before, after


async def test_the_difference_of_two_snapshots(autojump_clock: trio.testing.MockClock) -> None:
    (before,), (after,) = await snapshots(20)
    window = Window()
    assert window.latest is None and window.methods() == {} and window.total().service_mean is None
    window.take(before)
    assert window.methods() == {} and window.seconds == 0
    window.take(after)
    work = window.methods()["work"]
    assert (work.started, work.ended, work.answered, work.seconds) == (20, 20, 20, 5.0)
    assert work.service_mean == pytest.approx(0.1) and work.wasted == 0
    quantile = work.service_quantile(0.99)
    assert quantile is not None and 0.063 <= quantile <= 0.16
    assert window.counted("started") == 20
    (row,) = method_views([window], None)
    assert row["name"] == "work" and row["executions_per_second"] == 4.0 and row["wasted_share"] == 0.0
    assert row["calls"] is None and row["curve"] is None and row["brake"] is None
    window.take(after)
    assert window.counted("started") == 20, "the same one again changes nothing"
    window.take(None)
    assert window.latest is None


async def test_a_restart_and_the_end_of_the_window(autojump_clock: trio.testing.MockClock) -> None:
    (before,), (after,) = await snapshots(3)
    window = Window()
    window.take(after)
    again = {**before, "incarnation": "0" * 16, "time": after["time"] + 1}
    window.take(again)
    assert window.counted("started") == 0 and window.seconds == 0
    for second in range(1, 40):
        window.take({**again, "time": again["time"] + second})
    assert WINDOW_SECONDS <= window.seconds <= WINDOW_SECONDS + 1


def cluster_of(folder: Path, replicas: int) -> Cluster:
    return Cluster(UpConfig(replicas=replicas), StateDirectory(folder), Output(), LocalEngine(), lambda name: {})


def feed(folder: Path, replicas: int = 2) -> Feed:
    cluster, demo = cluster_of(folder, replicas), DemoState(UpConfig(replicas=replicas), folder)
    return Feed(cluster, Operator(cluster, demo, None), None, title="a test", slots=8)


async def test_without_any_sample(tmp_path: Path) -> None:
    found = json.loads(feed(tmp_path).live(0))
    now = found["now"]
    assert [replica["state"] for replica in now["replicas"]] == ["starting", "starting"]
    assert now["replicas"][0]["queue"] is None and now["replicas"][0]["service_ms"] is None
    assert now["methods"] == [] and now["races"] == [] and now["traffic"] is None
    assert found["points"] == [
        {
            "n": 1,
            "t": 0.0,
            "r": {"r0": [None] * 5, "r1": [None] * 5},
            "c": {"p50": None, "p99": None, "p999": None, "duplicates": None, "wasted": None},
        }
    ]


async def test_points_are_told_once_and_bounded(tmp_path: Path) -> None:
    made = feed(tmp_path, replicas=3)
    for _ in range(POINTS_MAX + 50):
        made.tick()
    found = json.loads(made.live(0))
    assert len(found["points"]) == POINTS_MAX
    assert found["points"][-1]["n"] == found["now"]["sequence"] == POINTS_MAX + 51
    assert [point["n"] for point in json.loads(made.live(POINTS_MAX + 49))["points"]] == [
        POINTS_MAX + 50,
        POINTS_MAX + 51,
    ]
    assert json.loads(made.live(10**9))["points"] == []


async def test_many_replicas_have_a_shorter_history(tmp_path: Path) -> None:
    made = feed(tmp_path, replicas=250)
    for _ in range(85):
        made.tick()
    found = made.live(0)
    assert len(json.loads(found)["points"]) == 80
    assert len(found) < 2_000_000


async def test_the_history_is_bounded_while_replicas_come_and_go(tmp_path: Path) -> None:
    """The bound is of values, each point with the replicas that there were; a point tells which they were."""
    few, many = (cluster_of(tmp_path, count).keepers for count in (4, 256))
    made = feed(tmp_path, replicas=4)
    for keepers, ticks in ((few, 350), (many, 90), (few, 350)):
        made._cluster.keepers = keepers
        for _ in range(ticks):
            made.tick()
            points = json.loads(made.live(0))["points"] if made._sequence % 10 == 0 else []
            assert sum(len(point["r"]) for point in points) <= POINTS_TOTAL_MAX and len(points) <= POINTS_MAX
        points = json.loads(made.live(0))["points"]
        assert list(points[-1]["r"]) == [keeper.name for keeper in keepers]
        assert len(points) == (POINTS_MAX if keepers is few else POINTS_TOTAL_MAX // 256)
        numbers = [point["n"] for point in points]
        assert numbers == list(range(numbers[0], made._sequence + 1)), "the newest are kept"


async def test_each_launch_has_a_name_of_its_own(tmp_path: Path) -> None:
    """By it a page sees that another launcher has come at the same address, however far that one has counted."""
    one, other = feed(tmp_path), feed(tmp_path)
    first = json.loads(one.live(0))["now"]["launch"]
    one.tick()
    assert json.loads(one.live(0))["now"]["launch"] == first != json.loads(other.live(0))["now"]["launch"]


def test_recent_calls_are_bounded_and_exact() -> None:
    recently = Recently()
    assert recently.view(0.0) == {}
    for number in range(1000):
        recently.add("work", number / 100, (number % 100 + 1) / 1000, 1 + (number % 4 == 0), number % 10 != 0)
    view = recently.view(9.99)["work"]
    assert (view["calls"], view["errors"], view["duplicate_execution_rate"]) == (1000, 100, 0.25)
    curve = dict(map(tuple, view["curve"]))
    assert curve[0.0] == 1.0 and curve[50.0] == pytest.approx(50, abs=1) and curve[100.0] == 100.0
    assert recently.view(14.995)["work"]["calls"] == 500
    for _ in range(2 * SAMPLES_MAX):
        recently.add("lookup", 15.0, 0.001, 1, True)
    assert recently.view(15.0)["lookup"]["calls"] == SAMPLES_MAX
    assert recently.view(100.0) == {}
