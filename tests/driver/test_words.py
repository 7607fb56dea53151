"""Who is told what of a refused connection: who asked by an error, the other by a log that says whom and why."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import pytest
import trio

import tiedreq
from tests.net_layer.ends import Recorder
from tiedreq.core.link_options import LinkSide
from tiedreq.core.messages import Welcome
from tiedreq.net.link_ends import dialed_link
from tiedreq.net.websocket import dial_websocket
from tiedreq.wire.limits import WireLimits
from tiedreq.wire.proof import TokenAuthenticator

TOKEN = "a token of the tests"
HANG = 10.0

service = tiedreq.Service("words")


@service.method(idempotent=True)
async def echo(ctx: tiedreq.Context, args: object) -> object:
    return args


@asynccontextmanager
async def replica(name: str = "m", **options: Any) -> AsyncIterator[tiedreq.ReplicaHandle]:
    async with trio.open_nursery() as nursery:

        async def run(task_status: trio.TaskStatus[tiedreq.ReplicaHandle]) -> None:
            await tiedreq.serve(service, name=name, task_status=task_status, **{"token": TOKEN, **options})

        yield await nursery.start(run)
        nursery.cancel_scope.cancel()


def lines(caplog: pytest.LogCaptureFixture, level: int = logging.WARNING) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= level]


async def test_a_wrong_token_is_an_error_here_and_a_line_there(caplog: pytest.LogCaptureFixture) -> None:
    async with replica() as handle:
        with pytest.raises(tiedreq.AuthRefused, match="the tokens differ"):
            async with tiedreq.connect([handle.url], token="another token", timeout=HANG):
                pass
        with trio.fail_after(HANG):
            while not lines(caplog):  # noqa: ASYNC110 - there is no event for it
                await trio.sleep(0.005)
    (line,) = lines(caplog)
    assert line.startswith("<Link m <- client-"), "the replica's line, none of the client's"
    assert "(127.0.0.1:" in line and "the tokens differ" in line


async def test_another_cluster_is_named_as_it_was_asked_for() -> None:
    async with replica(cluster="prod") as handle:
        with pytest.raises(tiedreq.AuthRefused, match="this is another cluster, not 'test'") as caught:
            async with tiedreq.connect([handle.url], token=TOKEN, cluster="test", timeout=HANG):
                pass
        assert "prod" not in str(caught.value), "nothing is said to one that has proven nothing"


async def test_one_of_two_replicas_refuses(caplog: pytest.LogCaptureFixture) -> None:
    """Calls work, so no error is raised: then the log has to say it, once."""
    async with (
        replica("a") as good,
        replica("b", cluster="prod") as bad,
        tiedreq.connect([good.url, bad.url], token=TOKEN, timeout=HANG) as client,
    ):
        assert await client.tied_call("echo", 1) == 1
    told = [line for line in lines(caplog) if line.startswith("a replica is not used")]
    assert told == [f"a replica is not used: {bad.url}: this is another cluster, not 'tiedreq'"]


async def test_an_address_is_named_once() -> None:
    with pytest.raises(tiedreq.ConnectError) as caught:
        async with tiedreq.connect(["ws://127.0.0.1:1"], timeout=0.3):
            pass
    assert str(caught.value).count("ws://127.0.0.1:1") == 1


OPTIONS: dict[str, dict[str, Any]] = {
    "token": {"token": 5},
    "limits": {"limits": 3},
    "policy": {"policy": "tied"},
    "timeout": {"timeout": "1"},
}


@pytest.mark.parametrize("field", OPTIONS)
async def test_options_of_the_wrong_kind(field: str) -> None:
    with pytest.raises(tiedreq.BadOption, match=rf"^{field}: "):
        async with tiedreq.connect(["ws://127.0.0.1:1"], **OPTIONS[field]):
            pass


@pytest.mark.parametrize("field", ["token", "limits"])
async def test_options_of_a_replica_of_the_wrong_kind(field: str) -> None:
    with pytest.raises(tiedreq.BadOption, match=rf"^{field}: "):
        await tiedreq.serve(service, name="m", **OPTIONS[field])


async def test_replicas_that_come_and_go_under_ever_new_names_leave_nothing() -> None:
    async with replica("m", peers={"a": "ws://127.0.0.1:1"}) as handle:

        def connect() -> AbstractAsyncContextManager[Any]:
            return dial_websocket(handle.url, limits=WireLimits())

        async def come_and_go(name: str, until: Callable[[Recorder], object]) -> None:
            owner = Recorder()
            link = dialed_link(
                LinkSide("tiedreq", "replica", name, 1),
                owner,
                TokenAuthenticator.of(TOKEN),
                welcome=lambda: Welcome(1, False, 1_000_000, ()),
            )
            async with trio.open_nursery() as nursery:
                nursery.start_soon(link.run_dialer, connect)
                await owner.until(lambda: until(owner))
                link.close()

        for name in ("a", "a1", "a2", "a3"):
            await come_and_go(name, lambda owner: owner.ups)
        with trio.fail_after(HANG):
            while handle.sizes()["links"]:  # noqa: ASYNC110 - there is no event for it
                await trio.sleep(0.005)
        assert list(handle._server.peers.troubles) == ["a"]
        handle.set_peers({})
        assert not handle._server.peers.troubles
