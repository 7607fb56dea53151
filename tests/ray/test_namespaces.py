"""Replicas on a Ray of three network namespaces: a node is lost by the death of its raylet, and by a cable pulled."""

from __future__ import annotations

import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster._launcher import eventually, gone_within
from tests.ray._namespaces import PATIENCE, PREFIX, Machines, UpInside, missing
from tests.ray._patience import Stopwatch
from tests.ray.test_nodes import BACK_SECONDS, seen

pytestmark = [pytest.mark.system, pytest.mark.timeout(600)]


@pytest.fixture
def machines(ray_is_installed: None) -> Iterator[Machines]:
    why = missing()
    if why:
        pytest.skip(f"no network namespaces can be had: {why}")
    with tempfile.TemporaryDirectory(prefix="tq-", dir="/tmp", ignore_cleanup_errors=True) as temporary:
        found = Machines(3, 2, Path(temporary))
        yield found
        found.end()


@pytest.fixture
def launcher(machines: Machines, tmp_path: Path) -> Iterator[UpInside]:
    options = ["--replicas", "3", "--rate", "40", "--policy", "tied", "--no-dashboard", "--json"]
    address = ["--engine", "ray", "--address", machines.address]
    up = UpInside(machines.machines[0], tmp_path, *address, *options, **machines.environment)
    yield up
    up.end()


@pytest.mark.parametrize("how", ["raylet", "cable"])
def test_a_node_is_lost_under_load(machines: Machines, launcher: UpInside, how: str) -> None:
    launcher.event("ready", PATIENCE)
    before = {replica["name"]: replica for replica in launcher.cluster()["replicas"]}
    homes = {replica["url"].split("//")[1].split(":")[0] for replica in before.values()}
    assert homes == {f"{PREFIX}{index}" for index in (1, 2, 3)}

    stopwatch = Stopwatch()
    if how == "raylet":
        machines.lose_raylet(2)
    else:
        machines.cut(2)
    lost = launcher.event("replica_lost", PATIENCE)
    assert lost["state"] == "restarting" and lost["reason"] == f"was lost with its node {PREFIX}3"
    back = launcher.event("replica_restarted", PATIENCE)
    assert stopwatch.seconds < BACK_SECONDS, f"back after {stopwatch.all_seconds:.1f} s"
    after = {replica["name"]: replica for replica in launcher.cluster()["replicas"]}
    assert {name for name in after if after[name] != before[name]} == {back["replica"]} == {lost["replica"]}
    assert after[back["replica"]]["url"] == back["url"] and not back["url"].startswith(f"ws://{PREFIX}3:")

    # The others find it at its new address, and so does the client, which was there before.
    assert eventually(lambda: seen(launcher, back["replica"]) == (2, True), PATIENCE), seen(launcher, back["replica"])
    if how == "cable":
        machines.mend(2)  # and the raylet that comes back learns that it was given up, and ends with its replica
    assert gone_within([lost["pid"]], PATIENCE)
    launcher.signal(signal.SIGINT)
    summary = launcher.event("summary", PATIENCE)
    assert launcher.wait(PATIENCE) == 0
    assert (summary["errors"], summary["unfinished"]) == (0, 0) and summary["calls"] > 40
    assert eventually(lambda: not machines.workers())
