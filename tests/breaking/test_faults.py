"""Faults that leave the processes where they are: frozen, cut off, slow, failing, out of descriptors, not reading."""

from __future__ import annotations

import os
import signal
import sys
import textwrap
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import pytest
import trio

from tests.breaking._cluster import Broken, files_limited
from tests.breaking._history import read_runs
from tests.cluster._launcher import Child
from tiedreq import Plain, ReplicaLimits, Tied

pytestmark = pytest.mark.system

AT_ONCE = Tied(backup=None, stagger=0.0)
"""Both copies leave at once, so that the replicas have to settle it between them."""
FAULT_SECONDS = 1.2
SILENCE_SECONDS = ReplicaLimits().heartbeat_interval * ReplicaLimits().heartbeat_misses_max


def read_lines(folder: Path, number: int) -> list[str]:
    """How the executions of one call stand, as its replicas wrote it down."""
    return [run.end or "running" for run in read_runs(folder) if run.number == number]


@asynccontextmanager
async def a_client(shared: Broken, source: str, *arguments: str) -> AsyncIterator[Child]:
    """A client in a process of its own, which has said that it is ready; it is killed afterwards."""
    program = shared.folder / "client.py"
    program.write_text(textwrap.dedent(source))
    child = await trio.to_thread.run_sync(Child, [str(program), *arguments], shared.folder)
    try:
        assert await trio.to_thread.run_sync(child.line) == "ready"
        yield child
    finally:
        child.popen.kill()
        with trio.CancelScope(shield=True):
            await trio.to_thread.run_sync(child.end)


async def test_a_frozen_replica(shared: Broken, rate: float) -> None:
    """B21: SIGSTOP and SIGCONT. What it had is answered by others; when it goes on it is used again."""
    async with shared.under_load(rate) as load:
        await shared.do("pause", replica="r2")
        await trio.sleep(FAULT_SECONDS)
        frozen = trio.current_time() - 0.5
        assert "r2" not in load.answered_since(frozen)
        await shared.do("resume", replica="r2")
        thawed = trio.current_time()
        await shared.mended().until(partial(load.answered_by, "r2", thawed))
    assert shared.verdict(load).errors == {}


@pytest.mark.parametrize("one_way", [False, True], ids=["both ways", "one way"])
async def test_a_partition_between_two_replicas(shared: Broken, rate: float, one_way: bool) -> None:
    """Calls go on. What the two can't tell each other runs twice, and is counted."""
    async with shared.under_load(rate, policy=AT_ONCE) as load:
        await shared.do("partition", **{"from": "r0", "to": "r1", "one_way": one_way})
        begin = trio.current_time()
        await trio.sleep(FAULT_SECONDS)
        cut = {outcome.number for outcome in load.outcomes if outcome.began > begin}
        told = await load.client.inquire("snapshot")
        assert sum(told[name]["counters"]["notices_unsent"] for name in ("r0", "r1")) > 0
        assert not any(told[a]["links"].get(b, {"up": False})["up"] for a, b in (("r0", "r1"), ("r1", "r0")))
        assert told["r0"]["links"]["r2"]["up"] and told["r1"]["links"]["r3"]["up"]
        await shared.do("heal")
        shared.mended()
    verdict = shared.verdict(load)
    assert verdict.errors == {}
    pairs: dict[int, set[str]] = {}
    for run in read_runs(shared.folder):
        if run.number in cut:
            pairs.setdefault(run.number, set()).add(run.replica)
    assert {"r0", "r1"} in pairs.values(), "a tie of the two runs twice"
    assert verdict.doubled >= sum(len(replicas) > 1 for replicas in pairs.values()) > 0
    assert load.client.observer is not None
    counted = sum(row["duplicate_executions"] for row in load.client.observer.snapshot()["methods"])
    assert counted > 0, "the client has heard of them"


async def test_a_replica_ten_times_slower(shared: Broken, rate: float) -> None:
    async with shared.under_load(rate) as load:
        await shared.do("slow", replica="r1", factor=10)
        await trio.sleep(FAULT_SECONDS / 2)
        known = trio.current_time()
        await trio.sleep(FAULT_SECONDS)
        shares = load.answered_since(known)
        await shared.do("slow", replica="r1", factor=1)
        shared.mended()
    assert shared.verdict(load).errors == {}
    assert shares.get("r1", 0) < min(shares[name] for name in ("r0", "r2", "r3"))


async def test_a_replica_that_fails_fast(shared: Broken, rate: float) -> None:
    """The fastest of all, because it does nothing: it must not draw the calls to itself."""
    flag = shared.folder / "fail-r3"
    try:
        async with shared.under_load(rate) as load:
            flag.touch()
            await trio.sleep(FAULT_SECONDS)
            known = trio.current_time()
            await trio.sleep(FAULT_SECONDS)
            flag.unlink()
            shared.mended()
    finally:
        flag.unlink(missing_ok=True)
    verdict = shared.verdict(load)
    assert set(verdict.errors) <= {"RemoteFailure"}, "each of them is the failure itself"
    late = [outcome for outcome in load.outcomes if outcome.began > known]
    assert sum(outcome.error is not None for outcome in late) < 0.05 * len(late)
    assert verdict.errors.get("RemoteFailure", 0) < 0.05 * verdict.calls


async def test_a_handler_that_computes_for_long(shared: Broken, rate: float) -> None:
    """B22: longer than a link may be silent, without a pause. Being in a thread it takes nobody from the loop."""
    async with shared.under_load(rate / 2) as load:
        reply = await load.client.request("spin", 3 * SILENCE_SECONDS, policy=Plain(), timeout=60)
        shared.mended()
    assert [attempt.end for attempt in reply.attempts] == ["done"] and reply.value == reply.replica
    assert shared.verdict(load).errors == {}


CUT_OFF = """
    import sys
    import trio
    import tiedreq

    async def main():
        async with tiedreq.connect(sys.argv[1]) as client, trio.open_nursery() as nursery:
            for number in range(-1, -41, -1):
                nursery.start_soon(client.tied_call, "square", {"number": number, "sleep": 30})
            await trio.sleep(0.5)
            print("ready", flush=True)

    trio.run(main)
"""


async def test_a_client_that_is_killed(shared: Broken, rate: float) -> None:
    """B28, B34: what it had queued goes, what runs for it is stopped, and nobody else notices."""
    path = str(shared.launcher.cluster_file)
    async with shared.under_load(rate / 2) as load, a_client(shared, CUT_OFF, path) as child:
        child.signal(signal.SIGKILL)
        shared.mended()
    assert shared.verdict(load).errors == {}
    ends = [end for number in range(-1, -41, -1) for end in read_lines(shared.folder, number)]
    assert ends and set(ends) == {"stopped"}


async def test_a_client_that_is_frozen(shared: Broken, rate: float) -> None:
    """B21 on the other side: a silent client is lost, and what it had goes."""
    path = str(shared.launcher.cluster_file)
    before = sum(len(read_lines(shared.folder, number)) for number in range(-1, -41, -1))
    async with shared.under_load(rate / 2) as load, a_client(shared, CUT_OFF, path) as child:
        child.signal(signal.SIGSTOP)

        async def lost() -> bool:
            return all(told["callers"] == 1 for told in (await load.client.inquire("snapshot")).values())

        await shared.mended().until(lost)
    assert shared.verdict(load).errors == {}
    ends = [end for number in range(-1, -41, -1) for end in read_lines(shared.folder, number)]
    assert len(ends) > before and set(ends) == {"stopped"}, "what ran for it was stopped, and for the one before"


SLOW = """
    import sys
    import trio
    import tiedreq

    async def main():
        async with tiedreq.connect(sys.argv[1], token=sys.argv[2], cluster=sys.argv[3]) as client:
            print("ready", flush=True)
            async with trio.open_nursery() as nursery:
                for _ in range(16):
                    nursery.start_soon(client.call, "blob", 4_000_000)

    trio.run(main)
"""


async def throttled(port: int, *, task_status: trio.TaskStatus[int]) -> None:
    """A proxy that hands on what clients say, and 20 KB/s of what they are told."""

    async def forward(source: trio.SocketStream, target: trio.SocketStream, pause: float) -> None:
        try:
            while data := await source.receive_some(2000):
                await target.send_all(data)
                await trio.sleep(pause)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            pass

    async def connection(near: trio.SocketStream) -> None:
        async with await trio.open_tcp_stream("127.0.0.1", port) as far, trio.open_nursery() as nursery:
            nursery.start_soon(forward, near, far, 0.0)
            await forward(far, near, 0.1)
            nursery.cancel_scope.cancel()

    async with trio.open_nursery() as nursery:
        serve = partial(trio.serve_tcp, connection, 0, host="127.0.0.1")
        (listener,) = await nursery.start(serve)
        task_status.started(listener.socket.getsockname()[1])


async def test_a_client_that_reads_slowly(shared: Broken, rate: float) -> None:
    """B23: 64 MB of results for one that takes 20 KB a second. Others are answered, and the memory is given back."""
    cluster = shared.launcher.cluster()
    url = next(replica["url"] for replica in cluster["replicas"] if replica["name"] == "r0")
    async with trio.open_nursery() as nursery:
        port = await nursery.start(throttled, int(url.rpartition(":")[2]))
        async with shared.under_load(rate / 2) as load:
            where = (f"ws://127.0.0.1:{port}", cluster["token"], cluster["cluster"])
            async with a_client(shared, SLOW, *where):
                await trio.sleep(FAULT_SECONDS)
                assert (await load.client.inquire("snapshot"))["r0"]["callers"] == 2
            shared.mended()
        nursery.cancel_scope.cancel()
    assert shared.verdict(load).errors == {}


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="sets another process's limits")
async def test_a_replica_without_descriptors(shared: Broken, rate: float) -> None:
    """B50: links that are there go on; new ones wait, and come in when descriptors are free again."""
    pid = await shared.pid("r1")
    port = int(next(each["url"] for each in shared.launcher.cluster()["replicas"] if each["name"] == "r1")[-5:])
    async with shared.under_load(rate / 2) as load:
        with files_limited(pid, len(os.listdir(f"/proc/{pid}/fd")) + 8):
            streams = [await trio.open_tcp_stream("127.0.0.1", port) for _ in range(40)]
            begin = trio.current_time()
            await trio.sleep(FAULT_SECONDS)
            assert load.answered_since(begin).get("r1"), "who was there is served"
            for stream in streams:
                await stream.aclose()
            await shared.mended().until(lambda: answer(port))
    assert shared.verdict(load).errors == {}


async def answer(port: int) -> bytes:
    """What a server says to a request that is none of a WebSocket; nothing while it accepts nobody."""
    with trio.move_on_after(0.5):
        async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
            try:
                await stream.send_all(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
                return bytes(await stream.receive_some(100))
            except trio.BrokenResourceError:
                pass
    return b""
