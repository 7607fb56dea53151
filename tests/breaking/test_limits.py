"""Few descriptors, no IPv6, many launchers at once: what a machine may lack, or have too much of."""

from __future__ import annotations

import json
import os
import resource
import sys
from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager
from functools import partial
from pathlib import Path

import pytest
import trio

import tiedreq
from tests.breaking import _app
from tests.breaking._cluster import until
from tests.breaking.test_namespaces import INTO_NAMESPACE, ROOT, why_not
from tests.cluster._launcher import Child, Up, write_app

LIMITED = (
    "import os, resource, sys; resource.setrlimit(resource.RLIMIT_NOFILE, (int(sys.argv[1]),) * 2); "
    "os.execv(sys.executable, [sys.executable, *sys.argv[2:]])"
)
"""A program that starts another one, which may have so many files open, as after ``ulimit -n``."""
IPV6_OFF = "echo 1 > /proc/sys/net/ipv6/conf/all/disable_ipv6; ip link set lo up"


@pytest.mark.system
def test_a_kernel_with_ipv6_off() -> None:
    """B50: what needs none works, ``localhost`` too; what does is one plain error."""
    if (reason := why_not(script=IPV6_OFF)) is not None:
        pytest.skip(reason)
    child = Child(["-c", INTO_NAMESPACE, "-m", "tests.breaking._without_ipv6"], ROOT)
    try:
        told = json.loads(child.line(60))
        assert child.wait() == 0, child.stderr
    finally:
        child.end()
    for listen in ("127.0.0.1:0", "localhost:0", "0.0.0.0:0", ":0"):
        assert told[listen].startswith("ws://127.0.0.1:"), told
    assert told["[::1]:0"].startswith("OSError: ") and "\n" not in told["[::1]:0"], told
    assert "Error: " in told["[::]:0"] and "\n" not in told["[::]:0"], "some kernels bind it, and carry nothing"


@pytest.mark.system
async def test_a_replica_that_may_have_64_files(tmp_path: Path) -> None:
    """B50: ``ulimit -n 64``. It starts and serves; beyond its limit it waits, says so once, and recovers."""
    _app.write(tmp_path)
    serve = ["-m", "tiedreq", "serve", "app:service", "--name", "r0"]
    child = await trio.to_thread.run_sync(Child, ["-c", LIMITED, "64", *serve], tmp_path)
    try:
        url = (await trio.to_thread.run_sync(child.line)).split()[-1]
        async with tiedreq.connect([url]) as client:
            assert (await client.call("square", {"number": 3}))["square"] == 9
            streams = [await trio.open_tcp_stream("127.0.0.1", int(url.rpartition(":")[2])) for _ in range(100)]
            await until(lambda: trio.to_thread.run_sync(lambda: "cannot accept" in child.stderr))
            assert (await client.call("square", {"number": 4}))["square"] == 16, "who was there is served"
            for stream in streams:
                await stream.aclose()
            async with tiedreq.connect([url], timeout=30) as other:
                assert (await other.call("square", {"number": 5}))["square"] == 25
        child.popen.terminate()
        assert await trio.to_thread.run_sync(child.wait) == 0
        assert child.stderr.count("cannot accept") == 1 and "Traceback" not in child.stderr
    finally:
        with trio.CancelScope(shield=True):
            await trio.to_thread.run_sync(child.end)


@contextmanager
def many_files() -> Iterator[None]:
    """Let this process have as many files open as it may."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (before[1], before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


REPLICAS, CLIENTS, FILES = 8, 200, 256
CALM = tiedreq.ClientLimits(heartbeat_interval=10.0, handshake_timeout=60.0)


@pytest.mark.soak
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks into /proc")
async def test_eight_replicas_and_two_hundred_clients(tmp_path: Path) -> None:
    """B50: ``ulimit -n 256``. All links are there, every client is answered, and what left is given back."""
    children: list[Child] = []
    try:
        for index in range(REPLICAS):
            program = ["-m", "tests.breaking._patient", f"r{index}", str(tmp_path)]
            children.append(await trio.to_thread.run_sync(Child, ["-c", LIMITED, str(FILES), *program], ROOT))
        told = [(await trio.to_thread.run_sync(child.line, 90)).split() for child in children]
        peers = {name: url for _, name, url in told}
        (tmp_path / "peers.new").write_text(json.dumps(peers))
        (tmp_path / "peers.new").rename(tmp_path / "peers.json")
        with many_files():
            async with AsyncExitStack() as stack:
                connect = partial(tiedreq.connect, list(peers.values()), timeout=90, observe=None, limits=CALM)
                clients = [await stack.enter_async_context(connect()) for _ in range(CLIENTS)]
                await until(lambda: everywhere(clients), patience=60)
                answers: list[int] = []

                async def ask(client: tiedreq.Client, number: int) -> None:
                    answers.append(await client.tied_call("echo", number, timeout=60))

                async with trio.open_nursery() as nursery:
                    for number, client in enumerate(clients):
                        nursery.start_soon(ask, client, number)
                assert sorted(answers) == list(range(CLIENTS))
                seen = await clients[0].inquire("snapshot", timeout=30)
                assert {one["callers"] for one in seen.values()} == {CLIENTS}
                assert {sum(link["up"] for link in one["links"].values()) for one in seen.values()} == {REPLICAS - 1}
                used = {len(os.listdir(f"/proc/{child.pid}/fd")) for child in children}
                assert CLIENTS < min(used) <= max(used) <= FILES

        async def given_back() -> bool:
            return all(len(os.listdir(f"/proc/{child.pid}/fd")) < 40 for child in children)

        await until(given_back, patience=60)
        assert not [child.stderr for child in children if child.error]
    finally:
        with trio.CancelScope(shield=True):
            for child in children:
                await trio.to_thread.run_sync(child.end)


async def everywhere(clients: list[tiedreq.Client]) -> bool:
    """Whether each client reaches all replicas."""
    return {len(client.stats()["replicas"]) for client in clients} == {REPLICAS}


TWENTY, FEW = 20, 6


@pytest.mark.soak
def test_twenty_launchers_at_once(tmp_path: Path, minutes: float) -> None:
    """B51: none takes what another one has, each finds its own replicas, and all end well. Fewer if time is short."""
    launchers = []
    try:
        for number in range(TWENTY if minutes > 2 else FEW):
            folder = tmp_path / str(number)
            folder.mkdir()
            write_app(folder)
            launchers.append(Up(folder, "--replicas", "2", "--app", "app:service", "--no-dashboard"))
        for launcher in launchers:
            assert launcher.line(180).startswith("ready 2 replicas")
        found = [launcher.cluster() for launcher in launchers]
        urls = [replica["url"] for cluster in found for replica in cluster["replicas"]]
        assert len(set(urls)) == 2 * len(launchers) == 2 * len({cluster["cluster"] for cluster in found})
        for launcher, cluster in zip(launchers, found, strict=True):
            own = {child.pid for child in launcher.children()}
            assert {replica["pid"] for replica in cluster["replicas"]} <= own
        answers = trio.run(ask_all, [launcher.cluster_file for launcher in launchers])
        assert answers == [{"r0", "r1"}] * len(launchers)
        for launcher in launchers:
            launcher.popen.terminate()
        assert [launcher.wait(120) for launcher in launchers] == [0] * len(launchers)
    finally:
        for launcher in launchers:
            launcher.end()


async def ask_all(files: list[Path]) -> list[set[str]]:
    """The replicas that each cluster's client reaches; each is asked a call, too."""
    found = []
    for file in files:
        async with tiedreq.connect(file, timeout=60) as client:
            found.append(set(client.stats()["replicas"]))
            assert (await client.call("lookup", {"sleep": 0}, timeout=60))["args"] == {"sleep": 0}
    return found
