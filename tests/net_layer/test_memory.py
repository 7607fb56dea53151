"""The network in memory, and links over it in virtual time: cuts, partitions, cancellation at every point."""

from __future__ import annotations

import pytest
import trio

from tests.net_layer.ends import InMemory, Recorder, acceptor, cancel, connected, dialer, reply
from tiedreq.core.link_table import LinkState
from tiedreq.errors import ConnectError
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

    async def test_a_slow_reader_is_ended_within_a_bound(self, autojump_clock) -> None:
        """B23, B24: the writer is stuck in a send; closing gives it a second, then tears it down."""
        network = MemoryNetwork()
        ours = Recorder()
        link = dialer(ours)

        async def reads_no_more(transport: Transport) -> None:
            theirs = Recorder()
            handle, _ = acceptor(theirs)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(handle, transport)
                await theirs.until(lambda: theirs.ups)
                await trio.sleep(0.5)
                network.hold("c", "a")
                await trio.sleep_forever()

        async with trio.open_nursery() as nursery:
            await nursery.start(network.serve, "a", reads_no_more)
            nursery.start_soon(link.run_dialer, lambda: network.dial("c", "a"))
            await ours.until(lambda: ours.ups)
            await trio.sleep(0.6)
            link.send(reply(1, 5_000_000))
            await trio.sleep(0.01)
            began = trio.current_time()
            link.drop("slow", "test")
            assert not link.up
            await ours.until(lambda: link.state is LinkState.DIALING)
            while network.connections:  # noqa: ASYNC110
                await trio.sleep(0.01)
            assert trio.current_time() - began <= 1.05
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
