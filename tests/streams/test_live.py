"""Streams over real sockets, in real time; and the command that compares them on live replicas."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from click.testing import CliRunner

import tiedreq
from cluster.streams import main
from tests.net.test_sockets import idle, replicas
from tests.streams._play import HEDGED, KEEPS_BOTH, Plays, stream_service, taken
from tiedreq import Plain, Tied

ROOT = Path(__file__).resolve().parent.parent.parent


async def test_over_sockets() -> None:
    """Small and large items, both ways of racing, a loser, a slow consumer and one that leaves."""
    plays = Plays()
    async with (
        replicas(2, service=stream_service(plays)) as found,
        tiedreq.connect(list(found.urls.values()), timeout=30.0) as client,
    ):
        for policy in (Plain(), Tied(), HEDGED):
            script = [["bytes", 100_000], ["item", 1], ["items", 300, 0.0]]
            async with client.stream("play", script, policy=policy) as stream:
                items = await taken(stream)
            assert items[:2] == [bytes(100_000), 1] and [item[1] for item in items[2:]] == list(range(300))
        script = {"rank 0": [60.0, ["item", 0]], "rank 1": [0.01, ["items", 10_000, 0.0]]}
        async with client.tied_stream("play", script, policy=KEEPS_BOTH) as stream:
            assert (await stream.__anext__())[1] == 0
            assert stream.kind == "tie"
        with pytest.raises(tiedreq.DeadlineExceeded):
            async with client.stream("play", [["items", 1000, 0.01]], timeout=0.2) as stream:
                await taken(stream)
        await idle(found, client)


def test_the_command_says_before_it_runs_where_a_file_can_t_be_written(tmp_path: Path) -> None:
    told = CliRunner().invoke(main, ["cold-cache", "--json", str(tmp_path / "nowhere" / "rows.json")])
    assert told.exit_code == 2 and "nowhere is no directory" in told.output


@pytest.mark.system
def test_ctrl_c_ends_the_command_in_one_line(tmp_path: Path) -> None:
    command, environment = (
        [sys.executable, "-m", "cluster.streams", "cold-cache"],
        {**os.environ, "TMPDIR": str(tmp_path)},
    )
    with subprocess.Popen(
        command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as running:
        limit = time.monotonic() + 60
        while not list(tmp_path.glob("*/cluster.json")):
            assert time.monotonic() < limit and running.poll() is None
            time.sleep(0.05)
        time.sleep(0.5)  # most times calls are under way by then; it is right at any time
        running.send_signal(signal.SIGINT)
        out, err = running.communicate(timeout=60)
    assert (running.returncode, out, err) == (130, "", "interrupted before the end\n")


@pytest.mark.system
def test_the_command_compares_live_streams(tmp_path: Path) -> None:
    target = tmp_path / "rows.json"
    command = [sys.executable, "-m", "cluster.streams", "cold-cache", "--calls", "60", "--blocks", "1"]
    done = subprocess.run([*command, "--json", str(target)], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    rows = {row["policy"]: row for row in json.loads(target.read_text())["rows"]}
    assert set(rows) == {"plain", "hedged", "tied"}
    for row in rows.values():
        assert row["errors"] == 0 and row["calls"] == 60 and row["items"] == 60 * 4  # a preamble each
        assert row["first_item_p99_ms"] > row["first_item_p50_ms"] > 5
        assert row["executions_per_call"] >= 1
    assert rows["plain"]["executions_per_call"] == 1 and "cold-cache" in done.stdout
