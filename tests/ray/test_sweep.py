"""A sweep of ``cluster.compare`` goes on when a node is lost with all that ran there."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster._launcher import Child, eventually
from tests.ray.conftest import PATIENCE, Nodes
from tests.ray.test_nodes import without_times

pytestmark = [pytest.mark.system, pytest.mark.timeout(600)]

AT_ONCE = 4
"""Cells on each node: as many losses at once as one cell would have to suffer to be given up."""


@pytest.fixture(scope="module")
def two_nodes(ray_is_installed: None) -> Iterator[Nodes]:
    with tempfile.TemporaryDirectory(prefix="tq-", dir="/tmp", ignore_cleanup_errors=True) as temporary:
        found = Nodes(2, AT_ONCE, Path(temporary))
        yield found
        found.end()


def test_the_cells_of_a_lost_node_are_run_elsewhere_with_the_same_results(two_nodes: Nodes, tmp_path: Path) -> None:
    options = ["--policies", "plain,tied", "--load", "0.5", "--replicas", "3", "--duration", "4s"]
    options += ["--seeds", str(AT_ONCE), "--json"]
    command = ["-m", "cluster.compare", *options]
    sweep = Child(
        [*command, "far.json", "--engine", "ray", "--address", two_nodes.address], tmp_path, **two_nodes.environment
    )
    try:
        assert eventually(lambda: sum("_work" in name for name in two_nodes.workers()) == 2 * AT_ONCE, PATIENCE)
        two_nodes.lose(1)
        assert sweep.wait(PATIENCE) == 0, sweep.stderr
    finally:
        sweep.end()
    done = subprocess.run([sys.executable, *command, "here.json"], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    far, here = (json.loads((tmp_path / name).read_text())["rows"] for name in ("far.json", "here.json"))
    assert [without_times(row) for row in far] == [without_times(row) for row in here] and len(far) == 2


def test_ctrl_c_ends_what_runs_on_the_nodes(two_nodes: Nodes, tmp_path: Path) -> None:
    options = ["--policies", "plain", "--load", "0.5", "--replicas", "3", "--duration", "10m", "--json", "rows.json"]
    command = ["-m", "cluster.compare", *options, "--engine", "ray", "--address", two_nodes.address]
    sweep = Child(command, tmp_path, **two_nodes.environment)
    try:
        assert eventually(lambda: any("_work" in name for name in two_nodes.workers()), PATIENCE)
        sweep.signal(signal.SIGINT)
        assert sweep.wait(PATIENCE) == 130, sweep.stderr
        assert "Traceback" not in sweep.stderr
    finally:
        sweep.end()
    assert eventually(lambda: not any("_work" in name for name in two_nodes.workers()))
