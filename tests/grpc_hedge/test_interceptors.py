"""Hedged RPCs against a real server: who wins, what becomes of the others, push-back and throttle."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
import grpc.aio
import pytest

from tests.grpc_hedge._service import (
    HANG,
    OTHER,
    STREAM,
    UNARY,
    Service,
    after,
    connected,
    fails,
    hedging,
    run,
    until,
)
from tiedreq.core.errors import BadOption
from tiedreq.core.policy import Hedged, Plain, Tied
from tiedreq.grpc import HedgeEvent, Hedging, ThrottleOptions
from tiedreq.grpc.interceptors import pushback_of

Code = grpc.StatusCode
SECOND = 60.0
ROUNDED = 1.01
"""gRPC writes a deadline with few digits and rounds it up: to a hundredth at most for those of a minute."""
"""A deadline that is not meant to pass."""


async def get(channel: grpc.aio.Channel, method: str = UNARY, timeout: float | None = SECOND, **options: Any) -> bytes:
    return await channel.unary_unary(method)(b"", timeout=timeout, **options)


def test_a_quick_reply_is_asked_for_once() -> None:
    service, hedge = Service([b"hello"]), hedging(delay=30.0)

    async def main() -> None:
        async with connected(service, hedge) as channel:
            call = channel.unary_unary(UNARY)(b"", metadata=(("k", "v"),))
            assert await call == b"hello" and await call.code() == Code.OK
            assert await call.trailing_metadata() is not None

    run(main)
    assert len(service.metadata) == 1 and service.metadata[0]["k"] == "v"
    assert "tiedreq-previous-attempts" not in service.metadata[0]


def test_a_backup_replies_and_the_loser_is_cancelled() -> None:
    service, hedge = Service([HANG, b"backup"]), hedging()

    async def main() -> None:
        async with connected(service, hedge) as channel:
            assert await get(channel) == b"backup"
            assert not [task for task in asyncio.all_tasks() if "_fly" in repr(task)], "every copy is gone"
            await until(lambda: service.cancelled == 1)

    run(main)
    stats = hedge.stats()
    assert stats["backups_won"] == 1 and stats["hosts"]["channel"]["sent"] == 2
    assert service.metadata[1]["tiedreq-previous-attempts"] == "1"
    assert service.remaining[1] is not None and service.remaining[1] < ROUNDED * SECOND


@pytest.mark.parametrize("code", [Code.UNAVAILABLE, Code.RESOURCE_EXHAUSTED, Code.UNKNOWN, Code.INTERNAL])
def test_a_failure_does_not_win_while_another_copy_lives(code) -> None:
    async def main() -> None:
        go = asyncio.Event()

        async def refuse(context: grpc.aio.ServicerContext) -> None:
            go.set()
            await context.abort(code, "no")

        service = Service([after(go, b"first"), refuse])
        async with connected(service, hedging()) as channel:
            assert await get(channel) == b"first"

    run(main)


def test_a_fatal_status_ends_the_race() -> None:
    service, hedge = Service([HANG, fails(Code.INVALID_ARGUMENT)]), hedging()

    async def main() -> None:
        async with connected(service, hedge) as channel:
            with pytest.raises(grpc.aio.AioRpcError, match="as told") as raised:
                await get(channel)
            assert raised.value.code() == Code.INVALID_ARGUMENT
            await until(lambda: service.cancelled == 1)

    run(main)


def test_not_found_is_an_answer() -> None:
    service, hedge = Service([fails(Code.NOT_FOUND)]), hedging(delay=30.0)

    async def main() -> None:
        async with connected(service, hedge) as channel:
            call = channel.unary_unary(UNARY)(b"")
            assert await call.code() == Code.NOT_FOUND
            with pytest.raises(grpc.aio.AioRpcError):
                await call

    run(main)
    assert hedge.stats()["answered"] == 1


def test_a_failed_rpc_is_tried_once_more() -> None:
    service, hedge = Service([fails(Code.UNAVAILABLE), b"second"]), hedging(delay=30.0)

    async def main() -> None:
        async with connected(service, hedge) as channel:
            assert await get(channel) == b"second"

    run(main)
    assert hedge.stats()["failovers"] == 1


def test_when_all_fail_the_first_failure_is_handed_out() -> None:
    acts = [fails(Code.UNAVAILABLE), fails(Code.ABORTED)]

    async def main() -> None:
        async with connected(Service(acts), hedging(delay=30.0)) as channel:
            with pytest.raises(grpc.aio.AioRpcError) as raised:
                await get(channel)
            assert raised.value.code() == Code.UNAVAILABLE

    run(main)


def test_other_methods_are_sent_once() -> None:
    service = Service([fails(Code.UNAVAILABLE), b"never"])

    async def main() -> None:
        async with connected(service, hedging()) as channel:
            with pytest.raises(grpc.aio.AioRpcError):
                await get(channel, OTHER)

    run(main)
    assert len(service.metadata) == 1


def test_the_deadline_is_for_all_copies_together() -> None:
    service, hedge = Service([HANG]), hedging(2)

    async def main() -> None:
        async with connected(service, hedge) as channel:
            with pytest.raises(grpc.aio.AioRpcError) as raised:
                await get(channel, timeout=0.15)
            assert raised.value.code() == Code.DEADLINE_EXCEEDED
        assert all(left is not None and left <= 0.16 for left in service.remaining)

    run(main)


@pytest.mark.parametrize("seconds", [0.0, 0.005, 0.03])
@pytest.mark.parametrize("method", [UNARY, STREAM])
def test_a_caller_that_leaves_cancels_every_rpc(method, seconds) -> None:
    service = Service([HANG])

    async def main() -> None:
        async with connected(service, hedging()) as channel:
            if method == UNARY:
                call = channel.unary_unary(UNARY)(b"")
                waiting = asyncio.ensure_future(_value(call))
            else:
                call = channel.unary_stream(STREAM)(b"")
                waiting = asyncio.ensure_future(_list(call))
            await asyncio.sleep(seconds)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            call.cancel()
            await until(lambda: service.running == 0)
            assert service.cancelled == len(service.metadata)

    run(main)


async def _value(call: Any) -> Any:
    return await call


async def _list(call: Any) -> list[bytes]:
    return [message async for message in call]


# ---- streams --------------------------------------------------------------------------------------------------


def test_a_stream_is_decided_by_its_first_message_and_goes_on() -> None:
    messages = [b"%d" % number for number in range(100)]
    service = Service([HANG, messages])

    async def main() -> None:
        async with connected(service, hedging()) as channel:
            call = channel.unary_stream(STREAM)(b"", timeout=SECOND)
            assert await _list(call) == messages
            assert await call.code() == Code.OK
            await until(lambda: service.cancelled == 1)

    run(main)


def test_a_stream_can_be_read() -> None:
    service = Service([HANG, [b"a", b"b"]])

    async def main() -> None:
        async with connected(service, hedging()) as channel:
            call = channel.unary_stream(STREAM)(b"", timeout=SECOND)
            assert [await call.read(), await call.read()] == [b"a", b"b"]
            assert await call.read() is grpc.aio.EOF

    run(main)


def test_an_empty_stream_wins() -> None:
    async def main() -> None:
        async with connected(Service([[]]), hedging(delay=30.0)) as channel:
            assert await _list(channel.unary_stream(STREAM)(b"")) == []

    run(main)


def test_a_stream_that_fails_before_its_first_message_does_not_win() -> None:
    async def main() -> None:
        service = Service([fails(Code.UNAVAILABLE), [b"x"]])
        async with connected(service, hedging(delay=30.0)) as channel:
            assert await _list(channel.unary_stream(STREAM)(b"")) == [b"x"]

    run(main)


@pytest.mark.parametrize("code", [Code.PERMISSION_DENIED, Code.UNAVAILABLE])
def test_the_error_of_a_stream_reaches_the_caller(code) -> None:
    async def main() -> None:
        async with connected(Service([fails(code)]), hedging(delay=30.0)) as channel:
            call = channel.unary_stream(STREAM)(b"")
            with pytest.raises(grpc.aio.AioRpcError) as raised:
                await _list(call)
            assert raised.value.code() == code == await call.code()

    run(main)


def test_leaving_a_stream_stops_it() -> None:
    service = Service([[b"a", HANG]])

    async def main() -> None:
        async with connected(service, hedging(delay=30.0)) as channel:
            call = channel.unary_stream(STREAM)(b"")
            assert await call.read() == b"a"
            call.cancel()
            await until(lambda: service.cancelled == 1)

    run(main)


# ---- push-back and throttle -----------------------------------------------------------------------------------


def test_pushback_holds_the_next_copy_back() -> None:
    service, hedge = Service([fails(Code.UNAVAILABLE, "60"), b"later"]), hedging(delay=30.0)
    events: list[HedgeEvent] = []
    hedge._observer = events.append

    async def main() -> None:
        async with connected(service, hedge) as channel:
            began = asyncio.get_running_loop().time()
            assert await get(channel) == b"later"
            assert asyncio.get_running_loop().time() - began >= 0.06, "not before the server wants it"

    run(main)
    assert [event.what for event in events] == ["sent", "failed", "sent", "won", "answered"]


def test_pushback_beyond_the_deadline_ends_the_rpc() -> None:
    service = Service([fails(Code.UNAVAILABLE, "100000"), b"never"])

    async def main() -> None:
        async with connected(service, hedging(delay=30.0)) as channel:
            with pytest.raises(grpc.aio.AioRpcError):
                await get(channel, timeout=90.0)

    run(main)
    assert len(service.metadata) == 1


@pytest.mark.parametrize("told", ["-1", "soon"])
def test_pushback_can_forbid_further_copies(told) -> None:
    service = Service([fails(Code.UNAVAILABLE, told), b"never"])

    async def main() -> None:
        async with connected(service, hedging(delay=30.0)) as channel:
            with pytest.raises(grpc.aio.AioRpcError):
                await get(channel)

    run(main)
    assert len(service.metadata) == 1


def test_pushback_of_one_copy_leaves_the_others_alive() -> None:
    async def main() -> None:
        go = asyncio.Event()

        async def refuse(context: grpc.aio.ServicerContext) -> None:
            go.set()
            await context.abort(Code.UNAVAILABLE, "no", (("grpc-retry-pushback-ms", "-1"),))

        service = Service([after(go, b"first"), refuse])
        async with connected(service, hedging(8)) as channel:
            assert await get(channel) == b"first"
        assert len(service.metadata) == 2

    run(main)


def test_the_throttle_ends_further_copies() -> None:
    service = Service([fails(Code.UNAVAILABLE)])
    hedge = hedging(delay=30.0, throttle=ThrottleOptions(10, 0.5))

    async def main() -> None:
        async with connected(service, hedge) as channel:
            for _ in range(20):
                with pytest.raises(grpc.aio.AioRpcError):
                    await get(channel)
            assert hedge.stats()["throttle"]["open"] is False
            assert len(service.metadata) < 25
            service.acts = [b"well"]
            for _ in range(20):
                await get(channel)
            assert hedge.stats()["throttle"]["open"] is True

    run(main)


@pytest.mark.parametrize(
    ("value", "seconds"), [("0", 0.0), ("1500", 1.5), ("-1", -1.0), ("", -1.0), ("1.5", -1.0), ("²", -1.0)]
)
def test_pushback_is_read_as_the_proposal_says(value, seconds) -> None:
    metadata = grpc.aio.Metadata(("other", "1"), ("grpc-retry-pushback-ms", value))
    assert pushback_of(grpc.aio.AioRpcError(Code.UNAVAILABLE, None, metadata)) == seconds
    assert pushback_of(grpc.aio.AioRpcError(Code.UNAVAILABLE, None, grpc.aio.Metadata())) is None


# ---- the rest -------------------------------------------------------------------------------------------------


def test_other_interceptors_may_stand_below() -> None:
    class Below(grpc.aio.UnaryStreamClientInterceptor):
        async def intercept_unary_stream(self, continuation, client_call_details, request):
            call = await continuation(client_call_details, request)

            async def upper():
                async for message in call:
                    yield message.upper()

            return upper()

    async def main() -> None:
        service, hedge = Service([[b"a", b"b"]]), hedging(delay=30.0)
        hedge.interceptors = (*hedge.interceptors, Below())
        async with connected(service, hedge) as channel:
            assert await _list(channel.unary_stream(STREAM)(b"")) == [b"A", b"B"]

    run(main)


def test_plain_sends_no_backups() -> None:
    async def main() -> None:
        go = asyncio.Event()
        service = Service([after(go, b"first"), b"never"])
        async with connected(service, hedging(policy=Plain())) as channel:
            call = asyncio.ensure_future(get(channel))
            await until(lambda: service.running == 1)
            await asyncio.sleep(0.05)
            go.set()
            assert await call == b"first" and len(service.metadata) == 1

    run(main)


def test_methods_are_matched_whole_or_by_service() -> None:
    hedge = Hedging(["/a.B/C", "/x.Y/*"])
    assert [hedge.hedges(name) for name in ("/a.B/C", "/a.B/D", "/x.Y/Z", "/x.Y2/Z")] == [True, False, True, False]


@pytest.mark.parametrize(
    ("methods", "options", "told"),
    [
        ("/a.B/C", {}, "methods"),
        (["a.B/C"], {}, "methods"),
        (["/a.B"], {}, "methods"),
        ([3], {}, "methods"),
        (["/a/b"], {"policy": Tied()}, "policy"),
        (["/a/b"], {"policy": Hedged(cancel_losers=False)}, "cancel_losers"),
        (["/a/b"], {"non_fatal": ["UNAVAILABLE"]}, "non_fatal"),
        (["/a/b"], {"failovers": 99}, "failovers"),
        (["/a/b"], {"observer": 1}, "observer"),
    ],
)
def test_what_cannot_be_is_refused(methods, options, told) -> None:
    with pytest.raises(BadOption, match=told):
        Hedging(methods, **options)
