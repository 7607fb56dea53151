"""Replicas on a real Ray of three nodes on this host: where they run, and what becomes of them when a node is lost."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cluster._launcher import Up, eventually, gone_within, write_app
from tests.ray._patience import Stopwatch
from tests.ray.conftest import PATIENCE, Nodes

pytestmark = [pytest.mark.system, pytest.mark.timeout(600)]

BACK_SECONDS = 15.0
"""A replica of a lost node is to be back by then: so many seconds of a ``Stopwatch``."""

WHERE = """
    import os
    import ray, tiedreq
    service = tiedreq.Service("where")

    @service.method(idempotent=True)
    async def node(ctx, args):
        return [ctx.replica, ray.get_runtime_context().get_node_id(), os.getpid()]
"""


def call(launcher: Up, method: str, *options: str) -> object:
    command = [sys.executable, "-m", "tiedreq", "call", method, "null", *options]
    done = subprocess.run(command, cwd=launcher.cwd, capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_each_replica_has_a_node_of_its_own_and_is_found(nodes: Nodes, up: Callable[..., Up], tmp_path: Path) -> None:
    write_app(tmp_path, WHERE)
    options = ["--replicas", "3", "--app", "app:service", "--no-dashboard", "--json"]
    launcher = up("--engine", "ray", "--address", nodes.address, *options, **nodes.environment)
    assert launcher.event("ready", PATIENCE)["replicas"] == 3
    told = {}
    while len(told) < 3:
        name, node, pid = call(launcher, "node")
        told[name] = node, pid
    assert len({node for node, _ in told.values()}) == 3
    assert {name: pid for name, (_, pid) in told.items()} == launcher.replica_pids()
    assert ask_within_ray(nodes) == {replica["name"]: replica["url"] for replica in launcher.cluster()["replicas"]}
    assert launcher.stop() == 0
    assert eventually(lambda: not nodes.workers())


CLIENT = """
    import json, sys
    import ray, tiedreq, trio
    from cluster.engines.on_ray.discovery import RayMembers, find

    async def main(cluster):
        async with tiedreq.connect(RayMembers(), token=cluster.token, cluster=cluster.cluster) as client:
            while len({(await client.call("node"))[0] for _ in range(20)}) < 3:
                pass

    ray.init(address=sys.argv[1], log_to_driver=False, logging_level="ERROR")
    found = find()
    trio.run(main, found)
    print(json.dumps({replica.name: replica.url for replica in found.replicas}))
"""


def ask_within_ray(nodes: Nodes) -> object:
    """Where the replicas are, as a program finds them that knows the Ray cluster alone, and has called each."""
    environment = {**os.environ, **nodes.environment, "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}
    command = [sys.executable, "-c", textwrap.dedent(CLIENT), nodes.address]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_a_sweep_on_the_nodes_has_the_results_of_one_here(nodes: Nodes, tmp_path: Path) -> None:
    options = ["--policies", "plain,tied", "--load", "0.5", "--replicas", "3", "--duration", "5s", "--seeds", "2"]
    command = [sys.executable, "-m", "cluster.compare", *options, "--json"]
    environment = {**os.environ, **nodes.environment}
    rows = []
    for where in ([], ["--engine", "ray", "--address", nodes.address]):
        name = f"rows-{len(where)}.json"
        done = subprocess.run([*command, name, *where], cwd=tmp_path, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        rows.append([without_times(row) for row in json.loads((tmp_path / name).read_text())["rows"]])
    assert rows[0] == rows[1] and len(rows[0]) == 2
    assert eventually(lambda: not nodes.workers())


def without_times(row: dict[str, object]) -> dict[str, object]:
    return {key: value for key, value in row.items() if key not in ("wall_s", "calls_per_wall_s", "cpu_us_per_call")}


def test_a_node_is_lost_under_load(nodes: Nodes, up: Callable[..., Up]) -> None:
    options = ["--replicas", "3", "--rate", "40", "--policy", "tied", "--no-dashboard", "--json"]
    launcher = up("--engine", "ray", "--address", nodes.address, *options, **nodes.environment)
    launcher.event("ready", PATIENCE)
    before = {replica["name"]: replica for replica in launcher.cluster()["replicas"]}
    stopwatch = Stopwatch()
    nodes.lose(2)
    lost = launcher.event("replica_lost", PATIENCE)
    assert lost["state"] == "restarting" and "was lost with its node" in lost["reason"]
    back = launcher.event("replica_restarted", PATIENCE)
    assert stopwatch.seconds < BACK_SECONDS, f"back after {stopwatch.all_seconds:.1f} s"
    assert back["replica"] == lost["replica"]
    after = {replica["name"]: replica for replica in launcher.cluster()["replicas"]}
    changed = {name for name in after if after[name] != before[name]}
    assert changed == {lost["replica"]} and after[lost["replica"]]["url"] == back["url"]
    assert gone_within([lost["pid"]], 1)

    # The others, and clients that were there before, find it at its new address.
    assert eventually(lambda: seen(launcher, back["replica"]) == (2, True), PATIENCE), seen(launcher, back["replica"])
    launcher.signal(2)
    summary = launcher.event("summary", PATIENCE)
    assert launcher.wait(PATIENCE) == 0
    assert (summary["errors"], summary["unfinished"]) == (0, 0) and summary["calls"] > 40
    assert eventually(lambda: not nodes.workers())


def seen(launcher: Up, name: str) -> tuple[int, bool]:
    """How many links to others a replica has, and whether calls have reached it since it was started."""
    done = subprocess.run(
        [sys.executable, "-m", "cluster.ctl", "status", "--json"], cwd=launcher.cwd, capture_output=True, text=True
    )
    status = json.loads(done.stdout)["replicas"][name]["status"]
    return (sum(link["up"] for link in status["links"].values()), status["started"] > 0) if status else (0, False)
