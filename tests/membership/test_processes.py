"""Real processes started by ``tiedreq serve`` that find each other by a list: one joins, one moves, one leaves."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import trio

import tiedreq
from tests.cluster._launcher import Child, Up, alive, eventually, starter, write_app
from tests.net.bench import until

pytestmark = pytest.mark.system

Start = Callable[..., Child]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """``start(NAME)`` starts a replica that finds its peers by ``members.txt``; its URL is in ``urls``."""
    write_app(tmp_path)
    started: list[Child] = []

    def run(name: str, *options: str) -> Child:
        words = ["-m", "tiedreq", "serve", "app:service", "--name", name, "--discover", "members.txt", *options]
        started.append(Child(words, tmp_path))
        return started[-1]

    yield run
    for child in started:
        child.end()


@pytest.fixture
def up(tmp_path: Path) -> Iterator[Callable[..., Up]]:
    yield from starter(tmp_path)


def url_of(child: Child) -> str:
    words = child.line().split()
    assert words[0] == "ready"
    return words[2]


def put_up(folder: Path, members: dict[str, str]) -> None:
    """Put the list in place in one go, as people should."""
    fresh = folder / "members.new"
    fresh.write_text("".join(f"{name}={url}\n" for name, url in members.items()))
    os.replace(fresh, folder / "members.txt")


async def linked(client: tiedreq.Client, names: set[str]) -> None:
    """Wait until these replicas, no more, can be reached, and each knows the latency to each."""
    with trio.fail_after(30):
        while True:
            status = await client.replica_status()
            pairs = [link["notice_latency_ms"] for each in status.values() for link in each["links"].values()]
            if set(status) == names and len(pairs) == len(names) * (len(names) - 1) and None not in pairs:
                return
            await trio.sleep(0.1)


def test_one_joins_one_moves_one_leaves_under_traffic(start: Start, tmp_path: Path) -> None:
    replicas = {name: start(name) for name in "abc"}
    members = {name: url_of(child) for name, child in replicas.items()}
    put_up(tmp_path, members)

    async def main() -> tuple[int, set[str]]:
        answers: list[str] = []
        stopped = False

        async def calls(client: tiedreq.Client) -> None:
            while not stopped:
                answers.append((await client.tied_call("lookup", {"sleep": 0.01}, timeout=20))["replica"])

        async with tiedreq.connect(tmp_path / "members.txt") as client, trio.open_nursery() as nursery:
            await linked(client, set("abc"))
            for _ in range(4):
                nursery.start_soon(calls, client)
            joined = start("d")
            members["d"] = await trio.to_thread.run_sync(url_of, joined)
            put_up(tmp_path, members)
            await linked(client, set("abcd"))
            moved = start("b")  # at another address, while the old one still answers
            members["b"] = await trio.to_thread.run_sync(url_of, moved)
            put_up(tmp_path, members)
            with trio.fail_after(30):
                while (await client.replica_status()).get("b", {}).get("pid") != moved.pid:  # noqa: ASYNC110
                    await trio.sleep(0.1)
            replicas["b"].signal(signal.SIGTERM)
            del members["a"]
            put_up(tmp_path, members)
            await until(lambda: all(row["name"] != "a" for row in client.stats()["members"]), patience=30)
            replicas["a"].signal(signal.SIGTERM)
            await linked(client, set("bcd"))
            mark = len(answers)
            await until(lambda: len(answers) >= mark + 50, patience=30)
            stopped = True
        return len(answers), set(answers[mark:])

    count, last = trio.run(main)
    assert count > 50 and last <= set("bcd")
    assert replicas["a"].wait() == 0 and replicas["b"].wait() == 0


def test_what_the_command_line_refuses(start: Start) -> None:
    child = start("a", "--peers", "b=ws://127.0.0.1:1")
    assert child.wait() == 2 and "--peers and --discover" in child.stderr


def test_a_cluster_that_grows_and_shrinks_under_traffic(up: Callable[..., Up], tmp_path: Path) -> None:
    launcher = up("--replicas", "2", "--json", "--rate", "30", "--no-dashboard")
    launcher.event("ready")

    def ctl(*words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "cluster.ctl", *words]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)

    grown = ctl("scale", "4")
    assert grown.returncode == 0 and "r2, r3: joined; there are 4 replicas" in grown.stdout, grown.stderr
    assert {launcher.event("replica_joined")["replica"] for _ in range(2)} == {"r2", "r3"}
    assert list(launcher.replica_pids()) == ["r0", "r1", "r2", "r3"]
    old = launcher.replica_pids()
    assert eventually(lambda: ctl("status").stdout.count("3/3") == 4)

    async def answerers(wanted: set[str]) -> set[str]:
        found: set[str] = set()
        async with tiedreq.connect(launcher.cluster_file) as client:
            with trio.move_on_after(20):
                while not wanted <= found:
                    found.add((await client.request("search", {"query": "json"}, timeout=10)).replica)
        return found

    assert trio.run(answerers, set(old)) == set(old)
    shrunk = ctl("scale", "1")
    assert shrunk.returncode == 0 and "r1, r2, r3: drained and left" in shrunk.stdout, shrunk.stderr
    assert list(launcher.replica_pids()) == ["r0"] and not any(alive(old[name]) for name in ("r1", "r2", "r3"))
    refused = ctl("scale", "0")
    assert refused.returncode == 2 and "replicas: 0 is not a whole number from 1 to" in refused.stderr
    assert "there are 1 replicas already" in ctl("scale", "1").stdout
    assert launcher.stop() == 0
    summary = launcher.event("summary")
    assert summary["errors"] == 0 and summary["calls"] > 30


def test_what_a_replica_of_a_mesh_holds_is_measured(tmp_path: Path) -> None:
    root, file = Path(__file__).resolve().parent.parent.parent, tmp_path / "rows.json"
    words = [sys.executable, "scripts/_bench_mesh.py", *"--replicas 3 --seconds 1 --rate 20 --json".split(), str(file)]
    done = subprocess.run(words, cwd=root, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    rows = {row["name"]: row["value"] for row in json.loads(file.read_text())["rows"]}
    assert rows["all links: links"] == 2 and 0 <= rows["links on use: links"] <= 2
    for mesh in ("all links", "links on use"):
        assert rows[f"{mesh}: failed"] == 0 < rows[f"{mesh}: calls"]
        assert 5 < rows[f"{mesh}: memory of its own"] < 200 and 5 < rows[f"{mesh}: descriptors"] < 50
