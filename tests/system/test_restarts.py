"""A replica that died comes back at its old address, and is used again."""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
import trio

import tiedreq
from tests.cluster._launcher import Up, eventually, write_app

pytestmark = pytest.mark.system

Start = Callable[..., Up]


async def answerers(path: Path, wanted: set[str]) -> set[str]:
    """Call until the wanted replicas have answered; those that did."""
    found: set[str] = set()
    async with tiedreq.connect(path) as client:
        with trio.move_on_after(10):
            while not wanted <= found:
                found.add((await client.tied_call("lookup", timeout=5))["replica"])
    return found


def test_only_its_process_id_changes(up: Start, tmp_path: Path) -> None:
    write_app(tmp_path)
    launcher = up("--replicas", "3", "--app", "app:service", "--json")
    launcher.event("ready")
    before = launcher.cluster()
    victim = launcher.replica_pids()["r1"]
    inode = launcher.cluster_file.stat().st_ino
    os.kill(victim, signal.SIGKILL)
    lost = launcher.event("replica_lost")
    assert (lost["replica"], lost["pid"], lost["state"]) == ("r1", victim, "restarting")
    assert lost["reason"] == "killed by SIGKILL"
    restarted = launcher.event("replica_restarted")
    after = launcher.cluster()
    assert restarted["replica"] == "r1" and restarted["pid"] == launcher.replica_pids()["r1"] != victim
    assert launcher.cluster_file.stat().st_ino != inode, "renamed into place"
    for cluster in (before, after):
        cluster["replicas"][1].pop("pid")
    assert before == after
    assert trio.run(answerers, launcher.cluster_file, {"r0", "r1", "r2"}) == {"r0", "r1", "r2"}
    assert launcher.stop() == 0
    stopped = launcher.event("stopped")
    assert (stopped["exit"], stopped["reason"]) == (0, "SIGTERM")


def test_a_connected_client_uses_it_again(up: Start, tmp_path: Path) -> None:
    write_app(tmp_path)
    launcher = up("--replicas", "2", "--app", "app:service", "--json")
    launcher.event("ready")

    async def program() -> None:
        async with tiedreq.connect(launcher.cluster_file) as client:
            for name in ("r0", "r1"):
                pid = launcher.replica_pids()[name]
                os.kill(pid, signal.SIGKILL)
                with trio.fail_after(20):
                    while (await client.call("lookup", timeout=10))["replica"] == name:
                        pass
                    while launcher.replica_pids()[name] == pid:  # noqa: ASYNC110
                        await trio.sleep(0.05)
                    while (await client.call("lookup", timeout=10))["replica"] != name:
                        pass

    trio.run(program)
    assert launcher.stop() == 0


def test_one_that_keeps_dying_stays_down(up: Start, tmp_path: Path) -> None:
    write_app(tmp_path)
    launcher = up("--replicas", "2", "--app", "app:service", "--json")
    launcher.event("ready")
    for wanted in ("restarting", "restarting", "restarting", "failed"):
        os.kill(launcher.replica_pids()["r0"], signal.SIGKILL)
        assert launcher.event("replica_lost")["state"] == wanted
        if wanted == "restarting":
            launcher.event("replica_restarted")
    time.sleep(1)
    assert len(launcher.children()) == 1
    assert trio.run(answerers, launcher.cluster_file, {"r1"}) == {"r1"}
    assert launcher.stop() == 0


def test_fixed_ports_are_kept(up: Start, tmp_path: Path) -> None:
    write_app(tmp_path)
    first = up("--replicas", "2", "--app", "app:service")
    first.ready()
    ports = sorted(int(replica["url"].rpartition(":")[2]) for replica in first.cluster()["replicas"])
    assert first.stop() == 0
    base = next(port for port in range(ports[0], 65_000) if not _used(port) and not _used(port + 1))
    launcher = up("--replicas", "2", "--app", "app:service", "--port", str(base))
    launcher.ready()
    assert [replica["url"] for replica in launcher.cluster()["replicas"]] == [
        f"ws://127.0.0.1:{base}",
        f"ws://127.0.0.1:{base + 1}",
    ]
    pid, before = launcher.replica_pids()["r0"], [replica["url"] for replica in launcher.cluster()["replicas"]]
    os.kill(pid, signal.SIGKILL)
    assert eventually(lambda: launcher.replica_pids()["r0"] not in (pid, None))
    assert trio.run(answerers, launcher.cluster_file, {"r0", "r1"}) == {"r0", "r1"}
    assert [replica["url"] for replica in launcher.cluster()["replicas"]] == before
    assert launcher.stop() == 0


def _used(port: int) -> bool:
    return any(connection.laddr and connection.laddr.port == port for connection in psutil.net_connections("tcp"))


def test_the_service_may_use_the_standard_streams(up: Start, tmp_path: Path) -> None:
    write_app(
        tmp_path,
        """
        import os, subprocess, sys, tiedreq
        print('{"event": "fatal", "kind": "app", "story": "not a control message"}')
        service = tiedreq.Service("app")

        @service.method()
        def talk(ctx, args):
            print("hello from", ctx.replica)
            os.write(1, b"raw\\n")
            said = subprocess.run(["cat"], stdout=subprocess.PIPE).stdout
            return [sys.stdin.read(), said.decode()]
        """,
    )
    launcher = up("--replicas", "1", "--app", "app:service")
    launcher.ready()

    async def call() -> object:
        async with tiedreq.connect(launcher.cluster_file) as client:
            return await client.call("talk", timeout=5)

    assert trio.run(call) == ["", ""]
    assert launcher.stop() == 0
    assert "r0 | hello from r0" in launcher.error and "r0 | raw" in launcher.error
    assert all(line.startswith("try: ") for line in launcher.out[1:])


@pytest.mark.parametrize(
    ("host", "shown"), [("0.0.0.0", ["127.0.0.1"]), ("::1", ["[::1]"]), ("localhost", ["127.0.0.1", "[::1]"])]
)
def test_other_hosts_to_listen_at(up: Start, tmp_path: Path, host: str, shown: list[str]) -> None:
    if ":" in host and not _has_ipv6():
        pytest.skip("no IPv6 here")
    write_app(tmp_path)
    launcher = up("--replicas", "2", "--app", "app:service", "--host", host)
    launcher.ready()
    for replica in launcher.cluster()["replicas"]:
        assert replica["url"].removeprefix("ws://").rpartition(":")[0] in shown
    assert trio.run(answerers, launcher.cluster_file, {"r0", "r1"}) == {"r0", "r1"}
    assert launcher.stop() == 0


def _has_ipv6() -> bool:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        return False
    return True
