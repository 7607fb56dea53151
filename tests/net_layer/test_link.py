"""One suite for links over any transport: it runs over memory and over real WebSockets on loopback."""

from __future__ import annotations

import gc
import logging
import os
import sys
from dataclasses import replace

import pytest
import trio

from tests.net_layer.ends import (
    REPLICA_A,
    TOKEN,
    WELCOME,
    InMemory,
    OverWebsockets,
    Recorder,
    World,
    acceptor,
    cancel,
    connected,
    copy,
    dialer,
    notice,
    reply,
)
from tiedreq.core.errors import BadOption
from tiedreq.core.link_options import LinkSide, LinkTiming
from tiedreq.core.link_table import LinkState
from tiedreq.core.messages import Cancel, Draining, Message, MethodInfo, Result, Started, Submit, Welcome
from tiedreq.core.types import UNTIED, CopyKind
from tiedreq.errors import AuthRefused, ConnectError, TooLarge, VersionMismatch
from tiedreq.net.link import Link, LinkOptions
from tiedreq.net.link_ends import accepted_link
from tiedreq.net.outbox import OutboxLimits
from tiedreq.net.quiet import QuietLog
from tiedreq.net.transport import Transport
from tiedreq.wire.codec import encode_message
from tiedreq.wire.limits import WireLimits
from tiedreq.wire.proof import TokenAuthenticator

MB = 1_000_000


@pytest.fixture(params=[InMemory, OverWebsockets], ids=lambda kind: kind.name)
def world(request: pytest.FixtureRequest) -> World:
    return request.param()


def submit(number: int, payload: bytes = b"x") -> Submit:
    return Submit(copy(number), CopyKind.FIRST, "work", payload, 1.0, (), False, False, False, None, ())._replace(
        copy=copy(number)._replace(rank=UNTIED)
    )


class TestUp:
    async def test_client(self, world: World) -> None:
        async with connected(world) as pair:
            assert pair.link.id == pair.ours.ups[0].link_id != pair.theirs.ups[0].link_id
            assert pair.ours.ups[0].welcome == WELCOME and pair.ours.ups[0].peer.name == "b"
            assert pair.theirs.ups[0].welcome is None and pair.theirs.ups[0].peer.incarnation == 7
        assert [down.code for down in pair.ours.downs + pair.theirs.downs] == ["closed", "closed"]

    async def test_mesh(self, world: World) -> None:
        async with connected(world, side=REPLICA_A) as pair:
            assert pair.theirs.ups[0].welcome == WELCOME
            await pair.ours.until(lambda: pair.link.round_trip is not None)

    async def test_a_welcome_with_the_longest_method_table(self, world: World) -> None:
        """It leaves in chunks, and still before anything that is sent on coming up."""
        methods = tuple(MethodInfo(f"{number:04}" + "m" * 100, True, True, 60.0) for number in range(1000))
        welcome = Welcome(4, False, MB, methods)
        assert len(encode_message(welcome)) > WireLimits().chunk_bytes

        class Eager(Recorder):
            def on_up(self, link: Link, up) -> None:
                super().on_up(link, up)
                link.send(Draining())

        ours, theirs = Recorder(), Eager()

        async def handle(transport: Transport) -> None:
            await accepted_link(REPLICA_A, theirs, TOKEN, welcome=lambda: welcome).run_accepted(transport)

        async with trio.open_nursery() as nursery:
            await world.serve(nursery, handle)
            link = dialer(ours)
            nursery.start_soon(link.run_dialer, world.dial)
            await ours.until(lambda: ours.messages)
            assert ours.ups[0].welcome == welcome and ours.messages == [Draining()]
            nursery.cancel_scope.cancel()

    async def test_what_is_sent_on_coming_up_arrives(self, world: World) -> None:
        class Eager(Recorder):
            def on_up(self, link: Link, up) -> None:
                super().on_up(link, up)
                assert link.send(cancel(1))

        ours, theirs = Eager(), Eager()
        handle, _ = acceptor(theirs)
        async with trio.open_nursery() as nursery:
            await world.serve(nursery, handle)
            nursery.start_soon(dialer(ours).run_dialer, world.dial)
            await ours.until(lambda: ours.messages)
            await theirs.until(lambda: theirs.messages)
            nursery.cancel_scope.cancel()

    async def test_heartbeats_measure(self, world: World) -> None:
        timing = LinkTiming(heartbeat_interval=0.02)
        async with connected(world, side=REPLICA_A, options=LinkOptions(timing=timing)) as pair:
            await trio.sleep(0.1)
            for link in (pair.link, pair.accepted):
                assert link.round_trip is not None and 0 <= link.round_trip < 1
                assert link.round_trip_deviation is not None and link.round_trip_min is not None
                assert link.round_trip_min <= link.round_trip


class TestRefused:
    async def attempt(self, world: World, *, token: bytes = b"another token, 16+", **options) -> tuple[Link, Recorder]:
        theirs, ours = Recorder(), Recorder()
        handle, _ = acceptor(theirs, options.pop("acceptor", REPLICA_A), TokenAuthenticator(token))
        async with trio.open_nursery() as nursery:
            await world.serve(nursery, handle)
            link = dialer(ours, retry_refused=False, **options)
            with trio.fail_after(5):
                if options.get("expected_name"):
                    nursery.start_soon(link.run_dialer, world.dial)
                    await ours.until(lambda: ours.failures)
                else:
                    await link.run_dialer(world.dial)
            nursery.cancel_scope.cancel()
        assert not ours.ups and not theirs.ups
        return link, ours

    async def test_token(self, world: World) -> None:
        link, ours = await self.attempt(world)
        assert isinstance(link.last_error, AuthRefused) and link.state is LinkState.CLOSED
        assert len(ours.failures) == 1 and str(link.last_error).startswith("a: ")

    async def test_cluster(self, world: World) -> None:
        link, _ = await self.attempt(world, acceptor=replace(REPLICA_A, cluster="bank"))
        assert isinstance(link.last_error, AuthRefused) and "bank" not in str(link.last_error)

    async def test_version(self, world: World) -> None:
        link, _ = await self.attempt(world, acceptor=replace(REPLICA_A, protocol_min=7, protocol_max=9))
        assert isinstance(link.last_error, VersionMismatch)
        assert "1 to 1" in str(link.last_error) and "7 to 9" in str(link.last_error)

    async def test_identity_is_tried_again(self, world: World) -> None:
        _, ours = await self.attempt(world, token=b"a token of sixteen bytes", expected_name="z")
        assert type(ours.failures[0]) is ConnectError and "another replica" in str(ours.failures[0])

    async def test_names_that_nobody_would_take_are_refused_at_once(self, world: World) -> None:
        with pytest.raises(BadOption):
            dialer(Recorder(), LinkSide("shop" * 100, "client", "", 1))
        with pytest.raises(BadOption):
            dialer(Recorder(), LinkSide("shop", "client", "a\nb", 1))


class TestMessages:
    async def test_arrive_in_order_and_coalesced(self, world: World) -> None:
        async with connected(world) as pair:
            sent: list[Message] = [cancel(number) for number in range(3000)]
            for message in sent:
                assert pair.link.send(message)
            await pair.theirs.until(lambda: len(pair.theirs.messages) == 3000)
            assert pair.theirs.messages == sent
            assert pair.link.statistics.frames_sent < 15
            assert pair.link.statistics.messages_sent == 3000

    async def test_are_echoed(self, world: World) -> None:
        async with connected(world, respond=lambda link, message: link.send(message) or None) as pair:
            for number in range(200):
                pair.link.send(cancel(number))
                if number % 10 == 0:
                    await trio.lowlevel.checkpoint()
            await pair.ours.until(lambda: len(pair.ours.messages) == 200)

    async def test_of_ten_megabytes(self, world: World) -> None:
        async with connected(world) as pair:
            big = reply(1, 10 * MB)
            assert pair.accepted.send(big)
            await pair.ours.until(lambda: pair.ours.messages, 30)
            assert pair.ours.messages == [big]

    async def test_ten_megabytes_delay_no_notice_by_more_than_a_chunk(self, world: World) -> None:
        """Asserted on the order of the bytes, not on a clock: what stood in front of each notice when it was sent."""
        async with connected(world) as pair:
            pair.accepted.send(reply(0, 10 * MB))
            left: list[int] = []
            with trio.fail_after(30):
                while not any(isinstance(message, Result) for message in pair.ours.messages):
                    pair.accepted.send(notice(len(left)))
                    left.append(pair.accepted.statistics.bytes_sent)
                    await trio.sleep(0.0005)
            await pair.ours.until(lambda: len(pair.ours.messages) == len(left) + 1)
            arrived = [
                (message.copy.number, bytes_by_then)
                for message, bytes_by_then in zip(pair.ours.messages, pair.ours.bytes_by_then, strict=True)
                if isinstance(message, Started)
            ]
            assert [number for number, _ in arrived] == list(range(len(left)))
            overtaken = sum(message != pair.ours.messages[-1] for message in pair.ours.messages)
            assert overtaken > 5, "notices arrived before the reply that was sent ahead of them"
            for number, bytes_by_then in arrived:
                # The frame that was being written, then the notice's own, each with one chunk.
                assert bytes_by_then - left[number] <= 2 * (WireLimits().chunk_bytes + 1000)

    async def test_several_large_ones_share_the_link(self, world: World) -> None:
        async with connected(world) as pair:
            pair.link.send(reply(1, 8 * MB))
            for number in range(2, 5):
                pair.link.send(reply(number, 200_000))
            await pair.theirs.until(lambda: len(pair.theirs.messages) == 4, 30)
            assert [message.copy.number for message in pair.theirs.messages][-1] == 1

    async def test_both_ends_send_without_waiting(self, world: World) -> None:
        """Trap: two ends that send without reading deadlock. Our reader never waits for our writer."""
        async with connected(world) as pair:
            for number in range(3):
                pair.link.send(reply(number, 8 * MB))
                pair.accepted.send(reply(number, 8 * MB))
            await pair.ours.until(lambda: len(pair.ours.messages) == 3, 30)
            await pair.theirs.until(lambda: len(pair.theirs.messages) == 3, 30)
            assert not pair.ours.downs

    async def test_too_large_is_refused_at_the_sender(self, world: World) -> None:
        async with connected(world) as pair:
            for link in (pair.link, pair.accepted):
                with pytest.raises(TooLarge, match="at most"):
                    link.send(reply(1, WELCOME.payload_bytes_max + 200_000))
            assert pair.link.send(cancel(1))
            await pair.theirs.until(lambda: pair.theirs.messages)

    async def test_nothing_is_sent_while_down(self, world: World) -> None:
        link = dialer(Recorder())
        assert not link.send(cancel(1)) and not link.discard(copy(1)) and link.messages_waiting == 0
        assert not await link.flush(1.0) and not await link.room(10)


class TestOutboxOfALink:
    async def test_discard_takes_a_submit_back(self, world: World) -> None:
        async with connected(world) as pair:
            for number in range(1, 4):
                pair.link.send(submit(number))
            assert pair.link.discard(submit(2).copy)
            pair.link.send(cancel(9))
            await pair.theirs.until(lambda: cancel(9) in pair.theirs.messages)
            assert pair.theirs.messages == [submit(1), submit(3), cancel(9)]
            assert not pair.link.discard(submit(1).copy), "it has left"

    async def test_discard_abandons_one_that_left_in_part(self, world: World) -> None:
        async with connected(world) as pair:
            big = submit(1, bytes(9 * MB))
            pair.link.send(big)
            while pair.link.statistics.bytes_sent < MB:
                await trio.lowlevel.checkpoint()
            assert pair.link.discard(big.copy)
            pair.link.send(cancel(9))
            await pair.theirs.until(lambda: pair.theirs.messages)
            await trio.sleep(0.05)
            assert pair.theirs.messages == [cancel(9)] and pair.link.up

    async def test_flush_waits_until_everything_left(self, world: World) -> None:
        async with connected(world) as pair:
            pair.link.send(reply(1, 5 * MB))
            assert await pair.link.flush(20)
            assert pair.link.messages_waiting == 0 == pair.link.bytes_waiting
            pair.link.close()
            await pair.theirs.until(lambda: pair.theirs.downs)
            assert len(pair.theirs.messages) == 1, "what was flushed arrives before the goodbye"

    async def test_room_is_waited_for(self, world: World) -> None:
        async with connected(world, options=LinkOptions(outbox=OutboxLimits(bulk_bytes_max=3 * MB))) as pair:
            for number in range(8):
                assert await pair.accepted.room(MB + 500)
                assert pair.accepted.send(reply(number, MB))
                assert pair.accepted.bytes_waiting <= 3 * MB
            await pair.ours.until(lambda: len(pair.ours.messages) == 8, 30)

    async def test_room_ends_with_the_connection(self, world: World) -> None:
        async with connected(world, options=LinkOptions(outbox=OutboxLimits(bulk_bytes_max=MB))) as pair:
            pair.accepted.send(reply(1, 9 * MB))
            results: list[bool] = []

            async def wait() -> None:
                results.append(await pair.accepted.room(MB))

            async with trio.open_nursery() as nursery:
                nursery.start_soon(wait)
                await trio.lowlevel.checkpoint()
                pair.link.close()
            assert results == [False]


class TestEnding:
    @pytest.mark.parametrize("by", ["dialer", "acceptor"])
    async def test_close_tells_the_other_side_why(self, world: World, by: str) -> None:
        async with connected(world) as pair:
            link, other = (pair.link, pair.theirs) if by == "dialer" else (pair.accepted, pair.ours)
            link.close("draining", "this side stops")
            await other.until(lambda: other.downs)
            down = other.downs[0]
            assert (down.code, down.reason, down.by_peer) == ("draining", "this side stops", True)

    async def test_a_dialer_comes_back(self, world: World) -> None:
        async with connected(world) as pair:
            first = pair.link.id
            pair.accepted.close("restart", "")
            await pair.ours.until(lambda: len(pair.ours.ups) == 2)
            assert pair.link.id > first and pair.ours.ups[1].previous_incarnation == 12
            assert pair.ours.downs[0].link_id == first

    async def test_drop_ends_one_connection(self, world: World) -> None:
        async with connected(world) as pair:
            pair.link.drop("slow", "its outbox is full")
            await pair.theirs.until(lambda: pair.theirs.downs)
            assert pair.theirs.downs[0].code == "slow"
            await pair.ours.until(lambda: len(pair.ours.ups) == 2)

    async def test_closed_before_it_runs(self, world: World) -> None:
        ours = Recorder()
        link = dialer(ours)
        link.close()
        with trio.fail_after(1):
            await link.run_dialer(world.dial)
        assert ours.ups == [] and not link.up

    async def test_close_while_dialing_in_vain(self, world: World) -> None:
        ours = Recorder()
        async with connected(world) as pair:
            pass
        link = dialer(ours)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(link.run_dialer, world.dial)
            await ours.until(lambda: len(ours.failures) >= 2)
            link.close()
        assert link.state is LinkState.CLOSED and pair.ours.ups

    async def test_cancel_from_outside_leaves_nothing(self, world: World) -> None:
        ours, theirs = Recorder(), Recorder()
        handle, _ = acceptor(theirs)
        async with trio.open_nursery() as nursery:
            await world.serve(nursery, handle)
            link = dialer(ours)
            with trio.CancelScope() as scope:
                async with trio.open_nursery() as inner:
                    inner.start_soon(link.run_dialer, world.dial)
                    await ours.until(lambda: ours.ups)
                    link.send(reply(1, 9 * MB))
                    scope.cancel()
            assert ours.downs and link.state is LinkState.CLOSED
            await theirs.until(lambda: theirs.downs)
            nursery.cancel_scope.cancel()

    async def test_an_owner_that_raises_ends_its_connection_only(
        self, world: World, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("tiedreq.net.link._quiet", QuietLog(logging.getLogger("tiedreq.link")))

        def respond(link: Link, message: Message) -> None:
            raise ZeroDivisionError("a bug")

        async with connected(world, respond=respond) as pair:
            pair.link.send(cancel(1))
            await pair.ours.until(lambda: pair.ours.downs)
            assert (pair.ours.downs[0].code, pair.ours.downs[0].reason) == ("internal", "internal error")
            await pair.ours.until(lambda: len(pair.ours.ups) == 2)
        assert "a bug" in caplog.text

    async def test_peer_that_vanishes_without_a_word(self, world: World) -> None:
        ours, theirs = Recorder(), Recorder()

        async def handle(transport: Transport) -> None:
            link = accepted_link(REPLICA_A, theirs, TOKEN, welcome=lambda: WELCOME)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(link.run_accepted, transport)
                await ours.until(lambda: ours.ups)
                transport.abort()

        async with trio.open_nursery() as nursery:
            await world.serve(nursery, handle)
            link = dialer(ours)
            nursery.start_soon(link.run_dialer, world.dial)
            await ours.until(lambda: ours.downs)
            assert ours.downs[0].code == "lost" and not ours.downs[0].by_peer
            nursery.cancel_scope.cancel()


class TestViolations:
    async def raw(self, world: World, piece: bytes) -> Recorder:
        """An accepted link whose other side sends something of its own making after the handshake."""
        theirs = Recorder()
        handle, _ = acceptor(theirs)

        class Meddler(Recorder):
            def on_up(self, link: Link, up) -> None:
                super().on_up(link, up)
                link._outbox._link_lane.append(piece)
                link._outbox.bell.ring()

        async with trio.open_nursery() as nursery:
            await world.serve(nursery, handle)
            nursery.start_soon(dialer(Meddler()).run_dialer, world.dial)
            await theirs.until(lambda: theirs.downs)
            nursery.cancel_scope.cancel()
        return theirs

    @pytest.mark.parametrize(
        "piece",
        [b"\xc1", b"\x93\x01\x02", encode_message(WELCOME), b"\x92\x14\x01"],
        ids=["junk", "short", "late", "bad"],
    )
    async def test_end_the_connection_with_the_reason(
        self, world: World, piece: bytes, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("tiedreq.net.link._quiet", QuietLog(logging.getLogger("tiedreq.link")))
        theirs = await self.raw(world, piece)
        assert theirs.downs[0].code == "protocol" and theirs.downs[0].reason
        assert "protocol" in caplog.text

    async def test_unknown_message_types_are_survived(self, world: World) -> None:
        async with connected(world) as pair:
            pair.link._outbox._link_lane.append(b"\x92\xcd\x12\x34\x01")
            pair.link.send(cancel(1))
            await pair.theirs.until(lambda: pair.theirs.messages)
            assert pair.accepted.unsupported_seen == 1
            await pair.ours.until(lambda: pair.link._core.unsupported_told == 1)


def count_links() -> int:
    """Links that exist, those that other tests have left to the garbage collector not among them."""
    gc.collect()
    return sum(isinstance(each, Link) for each in gc.get_objects())


class TestLeavesNothing:
    @pytest.mark.soak
    @pytest.mark.timeout(120)
    async def test_after_a_thousand_connections(self, world: World) -> None:
        """No task, no socket, no link is left."""
        theirs = Recorder()
        handle, links = acceptor(theirs)

        async def one() -> None:
            ours = Recorder()
            link = dialer(ours)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(link.run_dialer, world.dial)
                await ours.until(lambda: ours.ups)
                link.send(cancel(1))
                assert await link.flush(5)
                link.close()

        async with trio.open_nursery() as server:
            await world.serve(server, handle)
            await one()
            await theirs.until(lambda: len(theirs.downs) == 1)
            await trio.testing.wait_all_tasks_blocked(0.01)
            tasks, descriptors, others = count_tasks(), count_descriptors(), count_links()
            for _ in range(1000):
                await one()
            await theirs.until(lambda: len(theirs.downs) == 1001)
            await trio.testing.wait_all_tasks_blocked(0.01)
            assert count_tasks() == tasks
            assert count_descriptors() <= descriptors
            assert sum(isinstance(message, Cancel) for message in theirs.messages) == 1001
            links.clear()
            theirs.links.clear()
            assert count_links() <= others
            server.cancel_scope.cancel()


def count_tasks() -> int:
    return trio.lowlevel.current_statistics().tasks_living


def count_descriptors() -> int:
    return len(os.listdir("/proc/self/fd")) if sys.platform == "linux" else 0


class TestFullOutbox:
    async def test_a_full_outbox_refuses(self, world: World) -> None:
        async with connected(world, options=LinkOptions(outbox=OutboxLimits(messages_max=10))) as pair:
            results = [pair.link.send(reply(number, 10)) for number in range(15)]
            assert results == [True] * 10 + [False] * 5
            assert pair.link.statistics.refused == 5
            await pair.theirs.until(lambda: len(pair.theirs.messages) == 10)

    async def test_what_a_copy_is_owed_has_some_room_more(self, world: World) -> None:
        async with connected(world, options=LinkOptions(outbox=OutboxLimits(messages_max=10))) as pair:
            assert all(pair.link.send(reply(number, 10)) for number in range(10))
            results = [pair.link.send(cancel(number)) for number in range(15)]
            assert results == [True] * 10 + [False] * 5, "twice the limit is the end"
            await pair.theirs.until(lambda: len(pair.theirs.messages) == 20)

    async def test_a_full_outbox_sheds_the_oldest_notices(self, world: World) -> None:
        options = LinkOptions(outbox=OutboxLimits(messages_max=100), when_full="shed")
        async with connected(world, side=REPLICA_A, options=options) as pair:
            assert all(pair.link.send(notice(number)) for number in range(150))
            assert pair.link.statistics.shed == 64
            await pair.theirs.until(lambda: notice(149) in pair.theirs.messages)
            assert pair.theirs.messages == [notice(number) for number in range(64, 150)]

    async def test_a_full_outbox_may_end_the_connection(self, world: World) -> None:
        """B23: a slow reader is told why, and the others don't notice."""
        options = LinkOptions(outbox=OutboxLimits(messages_max=10), when_full="close")
        async with connected(world, accepted_options=options) as pair:
            while pair.accepted.send(cancel(1)):
                pass
            await pair.ours.until(lambda: pair.ours.downs)
            assert pair.ours.downs[0].code == "slow" and pair.theirs.downs[0].code == "slow"
