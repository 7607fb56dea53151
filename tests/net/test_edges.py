"""What leaves the public edge is one documented exception, never a group for a single cause (B57)."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
from trio.testing import MockClock

import tiedreq
from tests.net.bench import Journal, assert_idle, bench_service, gather, no_task_left
from tiedreq import BadOption, ConnectError
from tiedreq.net.edge import no_groups, single_cause
from tiedreq.testing import LocalCluster

BODY_ERRORS: dict[str, Callable[[], BaseException]] = {
    "an exception": lambda: ValueError("of the user"),
    "an error of ours": lambda: tiedreq.DeadlineExceeded("of the user"),
    "a ConnectError": lambda: ConnectError("of the user"),
    "KeyboardInterrupt": lambda: KeyboardInterrupt("of the user"),
    "SystemExit": lambda: SystemExit("of the user"),
    "a group of the user's own": lambda: ExceptionGroup("of the user", [ValueError("one")]),
}
body_errors = pytest.mark.parametrize("kind", BODY_ERRORS)


@asynccontextmanager
async def replica(**options: Any) -> AsyncIterator[tiedreq.ReplicaHandle]:
    """A replica over a real socket."""
    async with trio.open_nursery() as nursery:

        async def run(*, task_status: trio.TaskStatus[tiedreq.ReplicaHandle]) -> None:
            await tiedreq.serve(bench_service(), task_status=task_status, **{"name": "a", **options})

        yield await nursery.start(run)
        nursery.cancel_scope.cancel()


def free_port() -> int:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        return int(held.getsockname()[1])


@body_errors
async def test_what_the_block_of_local_cluster_raises(autojump_clock: MockClock, kind: str) -> None:
    raised = BODY_ERRORS[kind]()
    async with no_task_left():
        with pytest.raises(type(raised)) as caught:
            async with LocalCluster(bench_service(), replicas=2) as client:
                await client.tied_call("work")
                raise raised
        assert caught.value is raised


@body_errors
async def test_what_the_block_of_connect_raises(kind: str) -> None:
    raised = BODY_ERRORS[kind]()
    async with replica() as handle, no_task_left():
        with pytest.raises(type(raised)) as caught:
            async with tiedreq.connect([handle.url]) as client:
                await client.call("work")
                raise raised
        assert caught.value is raised
        await trio.sleep(0.1)


@body_errors
async def test_what_the_block_raises_while_its_caller_is_cancelled(autojump_clock: MockClock, kind: str) -> None:
    """An error is not swallowed because the scope around it has been cancelled meanwhile."""
    raised = BODY_ERRORS[kind]()
    cluster = LocalCluster(bench_service(), replicas=2)
    async with cluster:
        with pytest.raises(type(raised)) as caught, trio.CancelScope() as scope:
            async with cluster.client(name="second") as client:
                await client.call("work")
                scope.cancel()
                raise raised
        assert repr(caught.value) == repr(raised)
    with pytest.raises(type(raised)) as caught, trio.CancelScope() as scope:
        async with LocalCluster(bench_service(), replicas=2):
            scope.cancel()
            raise raised
    assert repr(caught.value) == repr(raised)


async def test_a_task_of_the_block_fails_while_its_caller_is_cancelled(autojump_clock: MockClock) -> None:
    async def fails() -> None:
        try:
            await trio.sleep_forever()
        finally:
            raise ValueError("of the user")

    cluster = LocalCluster(bench_service(), replicas=2)
    with pytest.raises(ValueError, match="of the user"), no_groups():
        with trio.move_on_after(1):
            async with cluster, trio.open_nursery() as nursery:
                nursery.start_soon(fails)
                nursery.start_soon(trio.sleep_forever)


async def test_the_block_fails_and_so_does_what_it_runs_in(autojump_clock: MockClock) -> None:
    with pytest.raises(ExceptionGroup) as caught:
        async with LocalCluster(service_with(Life("leave")), replicas=1):
            raise KeyError("of the user")
    assert [type(error) for error in caught.value.exceptions] == [KeyError, ValueError]


async def test_cancelling_the_block(autojump_clock: MockClock) -> None:
    async with no_task_left():
        with trio.move_on_after(5) as scope:
            async with LocalCluster(bench_service(), replicas=2) as client:
                await client.tied_call("work", 60)
        assert scope.cancelled_caught
        with trio.move_on_after(0) as scope:
            async with LocalCluster(bench_service(), replicas=2):
                raise AssertionError("it must not come in")
        assert scope.cancelled_caught
        with pytest.raises(trio.TooSlowError):
            with trio.fail_after(1):
                async with LocalCluster(bench_service(), replicas=2):
                    await trio.sleep_forever()


async def test_calls_in_the_users_nursery_come_out_as_the_user_expects(autojump_clock: MockClock) -> None:
    cluster = LocalCluster(bench_service(), replicas=2)
    with pytest.raises(ExceptionGroup) as caught:
        async with cluster as client, trio.open_nursery() as nursery:
            nursery.start_soon(lambda: client.call("work", 60, timeout=1))
            nursery.start_soon(lambda: client.call("work", 60, timeout=1))
    assert [type(error) for error in caught.value.exceptions] == [tiedreq.DeadlineExceeded] * 2


async def test_nobody_listens() -> None:
    url = f"ws://127.0.0.1:{free_port()}"
    async with no_task_left():
        with pytest.raises(ConnectError, match=url) as caught:
            async with tiedreq.connect([url], timeout=0.3):
                raise AssertionError("it must not come in")
        assert type(caught.value) is ConnectError and "0.3 s" in str(caught.value)


async def test_several_that_do_not_answer_are_all_named() -> None:
    urls = [f"ws://127.0.0.1:{free_port()}" for _ in range(3)]
    with pytest.raises(ConnectError) as caught:
        async with tiedreq.connect(urls, timeout=0.3):
            raise AssertionError("it must not come in")
    assert all(url in str(caught.value) for url in urls)


async def test_one_that_takes_connections_and_says_nothing() -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        url = f"ws://127.0.0.1:{silent.getsockname()[1]}"
        async with no_task_left():
            with pytest.raises(ConnectError):
                async with tiedreq.connect([url], timeout=0.3):
                    raise AssertionError("it must not come in")
        async with replica() as handle:
            with trio.fail_after(10):
                async with tiedreq.connect([url, handle.url]) as client:
                    assert await client.call("work") == "a"
                    for _ in range(20):
                        assert await client.tied_call("work", timeout=5) == "a"


async def test_wrong_options_of_connect() -> None:
    wrong: tuple[dict[str, Any], ...] = (
        {"replicas": []},
        {"replicas": ["nonsense"]},
        {"replicas": ["ws://a:1", "ws://a:1"]},
        {"replicas": ["http://a:1"]},
        {"replicas": ["ws://a:0"]},
        {"replicas": ["ws://127.0.0.1:1"], "timeout": -1},
        {"replicas": ["ws://127.0.0.1:1"], "policy": "tied"},
        {"replicas": ["ws://127.0.0.1:1"], "policy": tiedreq.Tied},
        {"replicas": ["ws://127.0.0.1:1"], "cluster": "a\nb"},
        {"replicas": ["ws://127.0.0.1:1"], "token": 5},
        {"replicas": ["ws://127.0.0.1:1"], "limits": 5},
        {"replicas": [5]},
        {"replicas": 5},
    )
    async with no_task_left():
        for options in wrong:
            with pytest.raises(BadOption):
                async with tiedreq.connect(**options):
                    raise AssertionError("it must not come in")


@pytest.mark.parametrize(
    "options",
    [
        {"name": ""},
        {"name": "a\nb"},
        {"name": "a" * 129},
        {"name": 5},
        {"cluster": ""},
        {"slots": 0},
        {"slots": 1.5},
        {"slots": True},
        {"drain_timeout": -1},
        {"drain_timeout": float("nan")},
        {"advertise": "here"},
        {"listen": "nonsense"},
        {"listen": "127.0.0.1"},
        {"listen": "127.0.0.1:99999"},
        {"peers": {"b": "nonsense"}},
        {"peers": {"": "ws://b:1"}},
        {"limits": 5},
        {"token": 5},
        {"service": 5},
        {"limits": tiedreq.ReplicaLimits(payload_bytes_max=10)},
        {"limits": tiedreq.ReplicaLimits(heartbeat_misses_max=1)},
        {"limits": tiedreq.ReplicaLimits(outbox_bytes_max=10)},
    ],
    ids=repr,
)
async def test_wrong_options_of_serve(options: dict[str, Any]) -> None:
    async with no_task_left():
        with pytest.raises(BadOption):
            await tiedreq.serve(**{"service": bench_service(), "name": "a", **options})


async def test_a_port_that_is_taken() -> None:
    async with replica() as handle, no_task_left():
        with pytest.raises(OSError) as caught:
            await tiedreq.serve(bench_service(), name="b", listen=handle.url.removeprefix("ws://"))
        assert not isinstance(caught.value, ConnectError)
        async with tiedreq.connect(handle.url) as client:
            assert await client.call("work") == "a"


async def test_serve_is_cancelled_as_anything_else() -> None:
    async with no_task_left():
        with trio.move_on_after(0.1) as scope:
            await tiedreq.serve(bench_service(), name="a")
        assert scope.cancelled_caught


class Life:
    """A lifespan that counts, and fails where it is told to."""

    def __init__(self, fail: str = "") -> None:
        self.steps: list[str] = []
        self.seen: list[BaseException | None] = []
        self._fail = fail

    @asynccontextmanager
    async def span(self) -> AsyncIterator[str]:
        self.steps.append("enter")
        if self._fail == "enter":
            raise ValueError("enter")
        error: BaseException | None = None
        try:
            if self._fail == "task":
                async with trio.open_nursery() as nursery:

                    async def fails() -> None:
                        await trio.sleep(1)
                        raise ValueError("task")

                    nursery.start_soon(fails)
                    yield "state"
            else:
                yield "state"
        except BaseException as raised:
            error = raised
            raise
        finally:
            self.seen.append(error)
            self.steps.append("leave")
            if self._fail == "leave":
                raise ValueError("leave")


def service_with(life: Life, journal: Journal | None = None) -> tiedreq.Service:
    service = bench_service(journal)
    service.lifespan = life.span

    @service.method(idempotent=True)
    async def state(ctx: tiedreq.Context, args: Any) -> Any:
        return ctx.state

    @service.method(idempotent=True)
    async def slow_to_stop(ctx: tiedreq.Context, args: Any) -> None:
        try:
            await trio.sleep_forever()
        finally:
            with trio.CancelScope(shield=True):
                await trio.sleep(0.5)
            life.steps.append("handler ended")

    return service


async def test_lifespan_is_entered_and_left_once(autojump_clock: MockClock) -> None:
    life = Life()
    async with LocalCluster(service_with(life), replicas=1) as client:
        assert life.steps == ["enter"]
        assert await client.call("state") == "state"
        with trio.move_on_after(0.1):
            await client.call("slow_to_stop")
        await trio.sleep(1)
        assert life.steps == ["enter", "handler ended"]
    assert life.steps == ["enter", "handler ended", "leave"]


@pytest.mark.parametrize("how", ["stop", "drain", "block ends", "block raises"])
async def test_lifespan_is_left_after_the_last_handler(autojump_clock: MockClock, how: str) -> None:
    life = Life()
    cluster = LocalCluster(service_with(life), replicas=1)
    with pytest.raises(ValueError, match="the end"), no_groups():
        async with cluster as client, trio.open_nursery() as nursery:
            nursery.start_soon(gather, lambda: client.call("slow_to_stop"))
            await trio.sleep(0.1)
            if how == "stop":
                cluster.stop("r0")
                await trio.sleep(1)
            elif how == "drain":
                cluster.handles["r0"].drain()
                await trio.sleep(20)
            elif how == "block raises":
                nursery.cancel_scope.cancel()
                raise ValueError("the end")
            nursery.cancel_scope.cancel()
        raise ValueError("the end")
    assert life.steps == ["enter", "handler ended", "leave"]


@pytest.mark.parametrize("fail", ["enter", "leave", "task"])
async def test_a_lifespan_that_fails_says_so(autojump_clock: MockClock, fail: str) -> None:
    life = Life(fail)
    async with no_task_left():
        with pytest.raises(ValueError, match=fail):
            async with LocalCluster(service_with(life), replicas=1) as client:
                assert await client.call("state") == "state"
                await trio.sleep(5)
        assert life.steps == (["enter"] if fail == "enter" else ["enter", "leave"])


async def test_lifespan_is_left_when_serve_cannot_listen() -> None:
    life = Life()
    async with replica() as handle:
        with pytest.raises(OSError):
            await tiedreq.serve(service_with(life), name="b", listen=handle.url.removeprefix("ws://"))
    assert life.steps == ["enter", "leave"]
    assert isinstance(life.seen[0], OSError), "it sees the cause, not a group"


async def test_a_lifespan_that_is_no_context_manager(autojump_clock: MockClock) -> None:
    service = bench_service()
    service.lifespan = lambda: 5  # type: ignore[assignment]
    with pytest.raises((TypeError, BadOption)):
        await tiedreq.serve(service, name="a")
    with pytest.raises(BadOption, match="lifespan"):
        tiedreq.Service("s", lifespan=5)  # type: ignore[arg-type]


def test_the_single_cause_of_a_group() -> None:
    one, other = ValueError(1), KeyError(2)
    assert single_cause(one) is one
    assert single_cause(ExceptionGroup("", [ExceptionGroup("", [one])])) is one
    both = ExceptionGroup("", [one, ExceptionGroup("", [other])])
    assert single_cause(both) is both
    interrupted = BaseExceptionGroup("", [KeyboardInterrupt(), one])
    assert single_cause(interrupted) is interrupted


def test_a_cause_keeps_its_own_cause() -> None:
    with pytest.raises(ValueError) as caught, no_groups():
        try:
            raise KeyError("first")
        except KeyError as first:
            error = ValueError("second")
            error.__cause__ = first
        raise ExceptionGroup("", [error])
    assert isinstance(caught.value.__cause__, KeyError)


async def test_two_replicas_whose_handlers_both_fail(autojump_clock: MockClock) -> None:
    service = bench_service()

    @service.method(idempotent=True)
    async def fail(ctx: tiedreq.Context, args: Any) -> None:
        await trio.sleep(0.1)
        raise tiedreq.Failure(ctx.replica, "no", retryable=True)

    cluster = LocalCluster(service, replicas=2, mesh_latency=0.5)
    async with cluster as client:
        with pytest.raises(tiedreq.RemoteFailure) as caught:
            await client.tied_call("fail", policy=tiedreq.Tied(stagger=0.0))
        assert len(caught.value.attempts) >= 2
        await assert_idle(cluster, client)
