"""Delay lines in virtual time, where every number is exact."""

from __future__ import annotations

import math
from random import Random

import pytest
import trio

from tests.net_layer.ends import CLIENT, REPLICA_A, REPLICA_B, InMemory, Recorder, acceptor, dialer, notice
from tiedreq.core.errors import BadOption
from tiedreq.net.memory import memory_pair
from tiedreq.net.shaping import DelayLine, constant
from tiedreq.net.transport import Transport, TransportClosed


async def arrivals(transport: Transport, count: int) -> list[tuple[float, bytes]]:
    got = []
    for _ in range(count):
        frame = await transport.receive_frame()
        assert frame is not None
        got.append((trio.current_time(), frame))
    return got


class TestDelay:
    async def test_is_exact(self, autojump_clock) -> None:
        ours, theirs = memory_pair()
        async with DelayLine(constant(0.005)).attach(ours) as shaped:
            began = trio.current_time()
            await shaped.send_frame(b"one")
            await trio.sleep(0.002)
            await shaped.send_frame(b"two")
            assert trio.current_time() == began + 0.002, "sending does not wait for the delay"
            got = await arrivals(theirs, 2)
        assert got == [(pytest.approx(began + 0.005), b"one"), (pytest.approx(began + 0.007), b"two")]

    async def test_nothing_without_a_law(self, autojump_clock) -> None:
        ours, theirs = memory_pair()
        async with DelayLine().attach(ours) as shaped:
            began = trio.current_time()
            await shaped.send_frame(b"one")
            assert await arrivals(theirs, 1) == [(began, b"one")]

    async def test_one_direction_only(self, autojump_clock) -> None:
        ours, theirs = memory_pair()
        async with DelayLine(constant(1.0)).attach(ours) as shaped:
            began = trio.current_time()
            await theirs.send_frame(b"back")
            assert await arrivals(shaped, 1) == [(began, b"back")]

    async def test_jitter_keeps_the_order(self, autojump_clock) -> None:
        rng = Random(3)
        ours, theirs = memory_pair()
        async with DelayLine(lambda: rng.random() * 0.1).attach(ours) as shaped:
            for number in range(50):
                await shaped.send_frame(b"%d" % number)
                await trio.sleep(0.001)
            got = await arrivals(theirs, 50)
        assert [frame for _, frame in got] == [b"%d" % number for number in range(50)]
        assert [at for at, _ in got] == sorted(at for at, _ in got)

    async def test_law_changes_while_it_runs(self, autojump_clock) -> None:
        ours, theirs = memory_pair()
        line = DelayLine(constant(0.010))
        async with line.attach(ours) as shaped:
            began = trio.current_time()
            await shaped.send_frame(b"slow")
            line.set_law(constant(0.001))
            await shaped.send_frame(b"fast, but behind it")
            got = [at - began for at, _ in await arrivals(theirs, 2)]
            await trio.sleep(0.09)
            await shaped.send_frame(b"fast")
            got += [at - began for at, _ in await arrivals(theirs, 1)]
        assert got == [pytest.approx(0.010), pytest.approx(0.010), pytest.approx(0.101)]

    @pytest.mark.parametrize("delay", [-0.001, math.nan, math.inf])
    def test_bad_delays(self, delay: float) -> None:
        with pytest.raises(BadOption):
            constant(delay)


class TestBounds:
    async def test_a_sender_waits_when_too_much_is_under_way(self, autojump_clock) -> None:
        ours, theirs = memory_pair()
        async with DelayLine(constant(1.0), bytes_max=100).attach(ours) as shaped:
            began = trio.current_time()
            await shaped.send_frame(bytes(80))
            await shaped.send_frame(bytes(20))
            assert trio.current_time() == began
            await shaped.send_frame(bytes(30))
            assert trio.current_time() == pytest.approx(began + 1.0)
            assert len(await arrivals(theirs, 3)) == 3

    async def test_a_frame_larger_than_the_bound_passes_alone(self, autojump_clock) -> None:
        ours, theirs = memory_pair()
        async with DelayLine(constant(1.0), bytes_max=100).attach(ours) as shaped:
            await shaped.send_frame(bytes(1000))
            assert len(await arrivals(theirs, 1)) == 1

    async def test_a_cancelled_send_leaves_nothing_behind(self, autojump_clock) -> None:
        ours, theirs = memory_pair()
        async with DelayLine(constant(5.0), bytes_max=100).attach(ours) as shaped:
            await shaped.send_frame(bytes(80))
            with trio.move_on_after(1) as scope:
                await shaped.send_frame(bytes(30))
            assert scope.cancelled_caught
            await trio.sleep(10)
            await shaped.send_frame(b"next")
            assert [frame for _, frame in await arrivals(theirs, 2)] == [bytes(80), b"next"]

    def test_bad_bound(self) -> None:
        with pytest.raises(BadOption):
            DelayLine(bytes_max=0)


class TestTrouble:
    async def test_blocked_frames_wait_and_arrive_at_once(self, autojump_clock) -> None:
        ours, theirs = memory_pair()
        line = DelayLine(constant(0.01))
        async with line.attach(ours) as shaped:
            await shaped.send_frame(b"under way")
            line.block()
            await shaped.send_frame(b"later")
            with trio.move_on_after(100) as scope:
                await theirs.receive_frame()
            assert scope.cancelled_caught
            line.unblock()
            now = trio.current_time()
            assert await arrivals(theirs, 2) == [(now, b"under way"), (now, b"later")]

    async def test_cut(self, autojump_clock) -> None:
        ours, theirs = memory_pair()
        line = DelayLine(constant(0.01))
        async with line.attach(ours) as shaped:
            await shaped.send_frame(b"lost")
            assert line.cut() == 1
            assert await theirs.receive_frame() is None
            assert await shaped.receive_frame() is None
            with pytest.raises(TransportClosed):
                await shaped.send_frame(b"x")
        assert line.cut() == 0

    async def test_the_other_side_closes(self, autojump_clock) -> None:
        ours, theirs = memory_pair()
        async with DelayLine(constant(0.01)).attach(ours) as shaped:
            await theirs.aclose()
            await shaped.send_frame(b"x")
            await trio.sleep(0.02)
            with pytest.raises(TransportClosed):
                await shaped.send_frame(b"y")
            await shaped.aclose()

    async def test_close_lets_what_is_under_way_arrive(self, autojump_clock) -> None:
        ours, theirs = memory_pair()
        async with DelayLine(constant(0.2)).attach(ours) as shaped:
            await shaped.send_frame(b"goodbye")
            await shaped.aclose()
        assert await theirs.receive_frame() == b"goodbye"
        assert await theirs.receive_frame() is None

    async def test_close_of_a_blocked_line_is_bounded(self, autojump_clock) -> None:
        ours, _ = memory_pair()
        line = DelayLine()
        line.block()
        async with line.attach(ours) as shaped:
            await shaped.send_frame(b"never")
            began = trio.current_time()
            await shaped.aclose()
            assert trio.current_time() - began == pytest.approx(1.0)

    async def test_what_the_block_raises_comes_out_as_it_is(self, autojump_clock) -> None:
        ours, _ = memory_pair()
        with pytest.raises(ValueError, match="mine"):
            async with DelayLine().attach(ours):
                raise ValueError("mine")


class Mesh:
    """Replica ``a`` dials ``b`` in memory, each direction on a line of its own."""

    def __init__(self, there: DelayLine, back: DelayLine) -> None:
        self.there, self.back = there, back
        self.world = InMemory()
        self.ours, self.theirs = Recorder(), Recorder()
        self.link = dialer(self.ours, REPLICA_A)
        handle, self.accepted = acceptor(self.theirs, REPLICA_B)

        async def shaped(transport: Transport) -> None:
            async with back.attach(transport) as slow:
                await handle(slow)

        self.handle = shaped

    async def start(self, nursery: trio.Nursery) -> Mesh:
        await self.world.serve(nursery, self.handle)
        nursery.start_soon(self.link.run_dialer, lambda: self.there.dial(self.world.dial))
        await self.ours.until(lambda: self.ours.ups and self.theirs.ups)
        return self


class TestLinkOnALine:
    async def test_round_trip_is_the_sum_of_both_delays(self, autojump_clock) -> None:
        async with trio.open_nursery() as nursery:
            mesh = await Mesh(DelayLine(constant(0.003)), DelayLine(constant(0.007))).start(nursery)
            await trio.sleep(5)
            for link in (mesh.link, mesh.accepted[0]):
                assert link.round_trip == pytest.approx(0.010, abs=1e-6)
                assert link.round_trip_min == pytest.approx(0.010, abs=1e-6)
                assert link.round_trip_deviation == pytest.approx(0.0, abs=1e-4)
            nursery.cancel_scope.cancel()

    async def test_a_notice_takes_exactly_its_latency(self, autojump_clock) -> None:
        async with trio.open_nursery() as nursery:
            mesh = await Mesh(DelayLine(constant(0.010)), DelayLine()).start(nursery)
            await trio.sleep(1)
            began = trio.current_time()
            mesh.link.send(notice(1))
            await mesh.theirs.until(lambda: mesh.theirs.messages)
            assert trio.current_time() - began == pytest.approx(0.010, abs=0.0011), "polled once a millisecond"
            nursery.cancel_scope.cancel()

    async def test_a_blocked_direction_is_silence_and_the_link_rejoins(self, autojump_clock) -> None:
        """B21, one way only: the side that hears nothing gives up, and it comes back by itself."""
        async with trio.open_nursery() as nursery:
            mesh = await Mesh(DelayLine(), DelayLine()).start(nursery)
            await trio.sleep(3)
            mesh.back.block()
            began = trio.current_time()
            await mesh.ours.until(lambda: mesh.ours.downs)
            assert mesh.ours.downs[0].code == "silent"
            assert 0.74 <= trio.current_time() - began <= 1.38
            await trio.sleep(30)
            assert not mesh.link.up
            mesh.back.unblock()
            await mesh.ours.until(lambda: mesh.link.up, 8)
            nursery.cancel_scope.cancel()

    async def test_a_client_link_survives_a_slow_line(self, autojump_clock) -> None:
        async with trio.open_nursery() as nursery:
            mesh = Mesh(DelayLine(constant(0.4)), DelayLine(constant(0.4)))
            mesh.link = dialer(mesh.ours, CLIENT)
            await mesh.start(nursery)
            await trio.sleep(20)
            assert mesh.link.up and not mesh.ours.downs
            nursery.cancel_scope.cancel()
