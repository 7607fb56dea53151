"""The clusters in memory that tests off Trio use, in virtual time too, and the fixtures of the pytest plugin."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import textwrap
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import tiedreq
from tests.bridges.bench import Journal, make_service
from tiedreq.testing import AsyncioCluster, BlockingCluster, LocalCluster


@pytest.fixture
def service() -> tiedreq.Service:
    return make_service(Journal())


def test_blocking(service: tiedreq.Service) -> None:
    with BlockingCluster(service, replicas=2, slots=3, timeout=5.0) as client:
        assert client.tied_call("echo", 1) == 1 and client.timeout == 5.0
        assert sorted(client.stats()["replicas"]) == ["r0", "r1"]
        with pytest.raises(tiedreq.RemoteFailure):
            client.call("fail")
    with pytest.raises(tiedreq.BadOption, match="closed"):
        client.call("echo")


def test_asyncio(service: tiedreq.Service) -> None:
    async def main() -> None:
        async with AsyncioCluster(service, replicas=2) as client:
            assert await client.tied_call("echo", 1) == 1
            assert sorted(client.stats()["replicas"]) == ["r0", "r1"]
        with pytest.raises(tiedreq.BadOption, match="closed"):
            await client.call("echo")

    asyncio.run(main())


def test_what_is_for_trio_says_so_on_asyncio(service: tiedreq.Service) -> None:
    async def main() -> None:
        with pytest.raises(tiedreq.BadOption, match=r"use tiedreq\.aio\.connect"):
            await tiedreq.connect("ws://127.0.0.1:1").__aenter__()
        with pytest.raises(tiedreq.BadOption, match="use AsyncioCluster"):
            await LocalCluster(service).__aenter__()

    asyncio.run(main())


def test_virtual_time_in_threads(service: tiedreq.Service) -> None:
    with BlockingCluster(service, virtual_time=True) as client, ThreadPoolExecutor(4) as pool:
        naps = [pool.submit(client.call, "nap", 2.0 + number) for number in range(4)]
        assert [nap.result() for nap in naps] == [2.0, 3.0, 4.0, 5.0]
        with pytest.raises(tiedreq.DeadlineExceeded):
            client.call("nap", 9.0, timeout=3.0)
        reply = client.request("nap", 8.0)
        assert 7.9999 < reply.service_time < 8.001 and 7.9999 < reply.latency < 8.01, "to the instant, but for rounding"


def test_virtual_time_stands_still_between_calls(service: tiedreq.Service) -> None:
    cluster = BlockingCluster(service, virtual_time=True, client_latency=0.001)
    with cluster as client:
        client.call("echo")
        before = cluster.run(trio_time)
        time.sleep(0.05)
        assert cluster.run(trio_time) == before
        cluster.sleep(7.0)
        assert cluster.run(trio_time) - before == pytest.approx(7.0)


def trio_time() -> float:
    import trio

    return trio.current_time()


def test_virtual_time_on_asyncio_and_a_cancelled_call() -> None:
    journal = Journal()

    async def main() -> None:
        cluster = AsyncioCluster(make_service(journal), virtual_time=True)
        async with cluster as client:
            assert await asyncio.gather(*(client.call("nap", seconds) for seconds in (5.0, 3.0))) == [5.0, 3.0]

            loop = asyncio.get_running_loop()
            task = asyncio.create_task(client.call("hang", timeout=36.0))
            # By the handler, and as soon as it has started: virtual time does not wait for this thread.
            journal.on_start = lambda: loop.call_soon_threadsafe(task.cancel)
            with pytest.raises(asyncio.CancelledError):
                await task
            await cluster.sleep(1.0)
            assert journal.started == journal.cancelled >= 1

    asyncio.run(main())


def test_replicas_stop_and_start(service: tiedreq.Service) -> None:
    cluster = BlockingCluster(service, replicas=2, virtual_time=True)
    with cluster as client:
        client.call("echo")
        cluster.stop("r0")
        cluster.sleep(5.0)
        assert [client.request("echo").replica for _ in range(3)] == ["r1"] * 3
        cluster.start("r0")
        cluster.run(cluster.local.network.partition, ["client"], ["r1"])
        cluster.sleep(10.0)
        assert [client.request("echo").replica for _ in range(3)] == ["r0"] * 3
        with pytest.raises(tiedreq.BadOption, match="runs; stop it first"):
            cluster.start("r0")
        with pytest.raises(tiedreq.BadOption, match="it is open"):
            cluster.__enter__()


def test_a_cluster_that_can_not_start_says_why() -> None:
    from contextlib import asynccontextmanager

    @asynccontextmanager
    async def lifespan():  # type: ignore[no-untyped-def]
        raise LookupError("no index")
        yield

    with (
        pytest.raises(LookupError, match="no index"),
        BlockingCluster(tiedreq.Service("s", lifespan=lifespan)),
    ):
        raise AssertionError("it has not started")


def test_a_blocking_call_in_a_handler_is_nested(service: tiedreq.Service) -> None:
    from tiedreq import blocking

    clients: list[blocking.Client] = []
    outer = tiedreq.Service("outer")

    @outer.method(idempotent=True)
    def ask(ctx: tiedreq.Context, args: object) -> object:
        about = clients[0].request("about", timeout=30.0)
        return [about.value["remaining"], ctx.remaining(), len(about.attempts)]

    with BlockingCluster(service) as inner, BlockingCluster(outer) as client:
        clients.append(inner)
        left, mine, attempts = client.tied_call("ask", timeout=4.0)
        assert left <= 4.0 and mine <= left and attempts == 1, "the handler's deadline, and one copy"


CONFTEST = """
    import pytest, trio, tiedreq

    pytest_plugins = ["tiedreq.pytest_plugin"]

    @pytest.fixture
    def tied_service():
        service = tiedreq.Service("mine")

        @service.method(idempotent=True)
        async def nap(ctx, seconds):
            await trio.sleep(seconds)
            return ctx.replica

        return service
"""
TESTS = """
    import asyncio
    import pytest

    async def test_trio(tied_client, tied_cluster, autojump_clock):
        assert await tied_client.tied_call("nap", 9.0) in tied_cluster.names

    class TestVirtualTime:
        @pytest.fixture
        def tied_options(self):
            return {"virtual_time": True, "replicas": 2}

        def test_blocking(self, tied_client_blocking, tied_cluster_blocking):
            tied_cluster_blocking.stop("r0")
            assert tied_client_blocking.call("nap", 9.0) == "r1"

        def test_aio(self, tied_client_aio):
            assert asyncio.run(tied_client_aio.call("nap", 9.0)) in ("r0", "r1")
"""


@pytest.mark.system
@pytest.mark.parametrize("with_trio", [True, False])
def test_the_plugin(tmp_path: Path, with_trio: bool) -> None:
    (tmp_path / "conftest.py").write_text(textwrap.dedent(CONFTEST))
    (tmp_path / "test_mine.py").write_text(textwrap.dedent(TESTS))
    mode = "trio_mode = true\n" if with_trio else ""
    (tmp_path / "pytest.ini").write_text(f"[pytest]\nfilterwarnings = error\n{mode}")
    options = [] if with_trio else ["-p", "no:trio", "-k", "not trio"]
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *options],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert ran.returncode == 0, ran.stdout
    assert ("3 passed" if with_trio else "2 passed, 1 deselected") in ran.stdout
