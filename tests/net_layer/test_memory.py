"""The network in memory, and links over it in virtual time: cuts, partitions, cancellation at every point."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio

from tests.net_layer.ends import InMemory, Recorder, acceptor, cancel, connected, dialer, reply
from tiedreq.core.link_options import LinkTiming
from tiedreq.core.link_table import LinkState
from tiedreq.errors import ConnectError
from tiedreq.net.link import Link, LinkOptions
from tiedreq.net.memory import PIPE_BYTES_MAX, MemoryNetwork, memory_pair
from tiedreq.net.transport import Transport, TransportClosed


class TestPair:
    async def test_frames_arrive_in_order_both_ways(self, autojump_clock) -> None:
        ours, theirs = memory_pair("x", "y")
        assert (ours.peer, theirs.peer) == ("y", "x")
        for number in range(10):
            await ours.send_frame(b"%d" % number)
            await theirs.send_frame(b"-%d" % number)
        assert [await theirs.receive_frame() for _ in range(10)] == [b"%d" % number for number in range(10)]
        assert await ours.receive_frame() == b"-0"

    async def test_is_bounded(self, autojump_clock) -> None:
        ours, theirs = memory_pair()
        await ours.send_frame(bytes(PIPE_BYTES_MAX + 1))
        with trio.move_on_after(1) as scope:
            await ours.send_frame(b"x")
        assert scope.cancelled_caught
        assert await theirs.receive_frame() is None, "a send that is interrupted tears the transport, as on a socket"

    async def test_close_is_seen_after_what_was_sent(self, autojump_clock) -> None:
        ours, theirs = memory_pair()
        await ours.send_frame(b"last")
        await ours.aclose(1001, "bye")
        assert await theirs.receive_frame() == b"last"
        assert await theirs.receive_frame() is None
        assert theirs.closed_because == "closed with code 1001: bye"
        assert await ours.receive_frame() is None
        with pytest.raises(TransportClosed):
            await theirs.send_frame(b"x")
        with pytest.raises(TransportClosed):
            await ours.send_frame(b"x")

    async def test_abort_loses_what_is_under_way_and_wakes(self, autojump_clock) -> None:
        ours, theirs = memory_pair()
        await ours.send_frame(b"lost")
        ours.abort()
        ours.abort()
        await ours.aclose()
        assert await theirs.receive_frame() is None and theirs.closed_because == "the connection broke"

    async def test_two_tasks_may_not_send_at_once(self, autojump_clock) -> None:
        ours, _ = memory_pair()
        await ours.send_frame(bytes(PIPE_BYTES_MAX))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(ours.send_frame, b"x")
            await trio.testing.wait_all_tasks_blocked()
            with pytest.raises(trio.BusyResourceError):
                await ours.send_frame(b"y")
            nursery.cancel_scope.cancel()


class TestNetwork:
    async def test_nobody_listens(self, autojump_clock) -> None:
        with pytest.raises(ConnectError, match="z: nobody listens"):
            async with MemoryNetwork().dial("c", "z"):
                pass

    async def test_a_name_is_served_once(self, autojump_clock) -> None:
        network = MemoryNetwork()

        async def idle(transport: Transport) -> None:
            await trio.sleep_forever()

        async with trio.open_nursery() as nursery:
            await nursery.start(network.serve, "a", idle)
            with pytest.raises(OSError):
                await network.serve("a", idle)
            nursery.cancel_scope.cancel()
        with pytest.raises(ConnectError):
            async with network.dial("c", "a"):
                pass

    async def test_a_dial_through_a_partition_times_out_or_waits(self, autojump_clock) -> None:
        network = MemoryNetwork()

        async def idle(transport: Transport) -> None:
            await trio.sleep_forever()

        async with trio.open_nursery() as nursery:
            await nursery.start(network.serve, "a", idle)
            network.partition(["c", "d"], ["a"])
            with pytest.raises(ConnectError, match="no connection within 2 s"):
                async with network.dial("c", "a", timeout=2):
                    pass

            async def heal() -> None:
                await trio.sleep(1)
                network.heal()

            nursery.start_soon(heal)
            began = trio.current_time()
            async with network.dial("c", "a", timeout=2):
                assert trio.current_time() == pytest.approx(began + 1)
                assert network.connections == 1
            assert network.connections == 0
            nursery.cancel_scope.cancel()

    async def test_handler_that_raises_ends_its_connection_only(
        self, autojump_clock, caplog: pytest.LogCaptureFixture
    ) -> None:
        network = MemoryNetwork()

        async def faulty(transport: Transport) -> None:
            raise RuntimeError("a bug")

        async with trio.open_nursery() as nursery:
            await nursery.start(network.serve, "a", faulty)
            for _ in range(3):
                async with network.dial("c", "a") as transport:
                    assert await transport.receive_frame() is None
            nursery.cancel_scope.cancel()
        assert caplog.text.count("RuntimeError: a bug") == 3


class TestLinks:
    async def test_cut_and_back(self, autojump_clock) -> None:
        world = InMemory()
        async with connected(world) as pair:
            for number in range(2, 6):
                assert world.network.cut("c", "a") == 1
                await pair.ours.until(lambda number=number: len(pair.ours.ups) == number)
            assert [down.code for down in pair.ours.downs] == ["lost"] * 4
            ids = [up.link_id for up in pair.ours.ups]
            assert ids == sorted(set(ids))

    async def test_held_frames_of_an_old_epoch_change_nothing(self, autojump_clock) -> None:
        world = InMemory()
        async with connected(world) as pair:
            await trio.sleep(2)
            world.network.hold("a", "c")
            pair.accepted.send(cancel(1))
            await pair.ours.until(lambda: pair.ours.downs)
            world.network.heal()
            await pair.ours.until(lambda: len(pair.ours.ups) == 2, 20)
            await trio.sleep(5)
            assert pair.ours.messages == [], "what the old connection still carried is of no account"

    async def test_partition_is_found_out_by_both_and_healed(self, autojump_clock) -> None:
        world = InMemory()
        async with connected(world) as pair:
            await trio.sleep(2)
            began = trio.current_time()
            world.network.partition(["c"], ["a"])
            await pair.ours.until(lambda: pair.ours.downs)
            await pair.theirs.until(lambda: pair.theirs.downs)
            assert trio.current_time() - began <= 1.3
            await trio.sleep(60)
            assert len(pair.ours.ups) == 1
            world.network.heal()
            await pair.ours.until(lambda: len(pair.ours.ups) == 2, 10)

    async def test_backoff_while_nobody_listens(self, autojump_clock) -> None:
        world, ours = InMemory(), Recorder()
        link = dialer(ours)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(link.run_dialer, world.dial)
            await trio.sleep(100)
            assert 50 <= len(ours.failures) <= 130
            assert isinstance(link.last_error, ConnectError)
            theirs = Recorder()
            await world.serve(nursery, acceptor(theirs)[0])
            await ours.until(lambda: ours.ups, 2.1)
            assert link.last_error is None
            nursery.cancel_scope.cancel()

    async def stuck(self, nursery: trio.Nursery, network: MemoryNetwork) -> tuple[Link, Recorder]:
        """A link whose writer is in the middle of a send that the other side, in no hurry, does not take."""
        ours, theirs = Recorder(), Recorder()
        patient = LinkOptions(timing=LinkTiming(heartbeat_interval=60.0))
        await nursery.start(network.serve, "a", acceptor(theirs, options=patient)[0])
        link = dialer(ours)
        nursery.start_soon(link.run_dialer, lambda: network.dial("c", "a"))
        await ours.until(lambda: ours.ups and theirs.ups)
        network.hold("c", "a")
        link.send(reply(1, 5_000_000))
        await trio.sleep(0.01)
        return link, ours

    async def gone(self, network: MemoryNetwork) -> float:
        began = trio.current_time()
        while network.connections:  # noqa: ASYNC110 - a network has no owner to tell
            await trio.sleep(0.001)
        return trio.current_time() - began

    async def test_a_stuck_writer_is_given_a_second_for_the_goodbye(self, autojump_clock) -> None:
        """B23, B24: then the send is interrupted, which tears the connection."""
        network = MemoryNetwork()
        async with trio.open_nursery() as nursery:
            link, ours = await self.stuck(nursery, network)
            link.drop("slow", "test")
            assert not link.up and ours.downs[0].code == "slow", "the owner knows at once"
            assert 0.9 <= await self.gone(network) <= 1.01
            nursery.cancel_scope.cancel()

    async def test_a_stuck_writer_of_a_silent_peer_is_given_none(self, autojump_clock) -> None:
        network = MemoryNetwork()
        async with trio.open_nursery() as nursery:
            _, ours = await self.stuck(nursery, network)
            network.hold("a", "c")
            await ours.until(lambda: ours.downs)
            assert ours.downs[0].code == "silent"
            assert await self.gone(network) <= 0.01
            nursery.cancel_scope.cancel()

    async def test_a_goodbye_that_waits_to_be_read_says_more_than_a_send_that_fails(self, autojump_clock) -> None:
        world = InMemory()
        broken = False

        class Breaking:
            """Its sends fail before what has arrived is read, as they may on a socket."""

            def __init__(self, inner: Transport) -> None:
                self._inner = inner

            def __getattr__(self, name: str):
                return getattr(self._inner, name)

            async def send_frame(self, frame: bytes) -> None:
                if broken:
                    raise TransportClosed("broken pipe")
                await self._inner.send_frame(frame)

            async def receive_frame(self) -> bytes | None:
                frame = await self._inner.receive_frame()
                if broken:
                    await trio.sleep(0.05)
                return frame

        ours, theirs = Recorder(), Recorder()

        @asynccontextmanager
        async def dial() -> AsyncIterator[Transport]:
            async with world.dial() as transport:
                yield Breaking(transport)

        async with trio.open_nursery() as nursery:
            handle, links = acceptor(theirs)
            await world.serve(nursery, handle)
            link = dialer(ours)
            nursery.start_soon(link.run_dialer, dial)
            await ours.until(lambda: ours.ups and theirs.ups)
            await trio.sleep(0.1)
            broken = True
            links[0].close("draining", "this replica stops")
            link.send(cancel(1))
            await ours.until(lambda: ours.downs)
            assert ours.downs[0].code == "draining"
            nursery.cancel_scope.cancel()

    async def test_cancelled_at_every_point(self, autojump_clock) -> None:
        """A dialer cancelled after any number of scheduler passes leaves no task, no connection and a told owner."""
        world = InMemory()
        theirs = Recorder()
        async with trio.open_nursery() as server:
            await world.serve(server, acceptor(theirs)[0])
            await trio.testing.wait_all_tasks_blocked()
            tasks = trio.lowlevel.current_statistics().tasks_living
            for passes in range(80):
                ours = Recorder()
                link = dialer(ours)
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(link.run_dialer, world.dial)
                    for _ in range(passes):
                        link.send(cancel(passes))
                        await trio.lowlevel.checkpoint()
                    nursery.cancel_scope.cancel()
                assert link.state is LinkState.CLOSED
                assert len(ours.ups) == len(ours.downs)
                await trio.testing.wait_all_tasks_blocked()
                assert world.network.connections == 0
                assert trio.lowlevel.current_statistics().tasks_living == tasks
            assert len(theirs.ups) == len(theirs.downs) > 10
            server.cancel_scope.cancel()

    async def test_our_own_stall_is_not_the_others_silence(self, autojump_clock) -> None:
        """B22: the clock leaps as it does after SIGSTOP, with both ends in one process."""
        world = InMemory()
        async with connected(world) as pair:
            await trio.sleep(2)
            for _ in range(5):
                autojump_clock.jump(5.0)
                await trio.sleep(0.3)
            assert not pair.ours.downs and not pair.theirs.downs
