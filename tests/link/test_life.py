"""A link's life once it is up: heartbeats, silence, stalls, loss, back-off, epochs, closing."""

from __future__ import annotations

from itertools import count
from random import Random

import pytest

from tests.link.pair import CLIENT, REPLICA_A, UP, Pair, Side, core, mesh
from tiedreq.core import link_commands as c
from tiedreq.core import link_events as e
from tiedreq.core.link_options import LinkTiming
from tiedreq.core.link_table import LinkState
from tiedreq.core.messages import Cancel, Draining, Goodbye, Heartbeat, HeartbeatEcho, Hello, Proof, Welcome
from tiedreq.core.pulse import ACCEPTED, STEADY, Pulse, RoundTrip
from tiedreq.core.types import CopyId

COPY = CopyId(7, 1, 0, 0)


def times_sent(side: Side, kind: type) -> int:
    return sum(isinstance(message, kind) for message in side.sent)


class TestHeartbeats:
    def test_measure_the_round_trip(self) -> None:
        pair = mesh(delay=0.004).start(5)
        for side in (pair.dialer, pair.acceptor):
            round_trip = side.core.round_trip
            assert round_trip is not None
            assert round_trip.mean == pytest.approx(0.008) and round_trip.minimum == pytest.approx(0.008)
            assert round_trip.deviation == pytest.approx(0.0, abs=1e-3) and round_trip.samples >= 10

    def test_first_one_leaves_as_soon_as_the_link_is_up(self) -> None:
        pair = mesh(delay=0.001).start(0.0055)
        assert times_sent(pair.dialer, Heartbeat) == 1
        assert pair.dialer.core.round_trip.mean is None, "unknown, not 0"

    def test_are_sent_once_an_interval_while_a_mesh_link_is_used(self) -> None:
        pair = mesh().start(0.1)
        for _ in range(20):
            pair.send(pair.acceptor, Draining())
            pair.send(pair.dialer, Draining())
            pair.run(0.5)
        assert times_sent(pair.dialer, Heartbeat) == times_sent(pair.acceptor, Heartbeat) == 41

    def test_a_mesh_link_at_rest_says_little_and_goes_on_measuring(self) -> None:
        pair = mesh().start(5.0)
        sides = pair.dialer, pair.acceptor
        before = [(len(side.sent), side.core.round_trip.samples) for side in sides]
        pair.run(20.0)
        sent, samples = zip(
            *(
                (len(side.sent) - were_sent, side.core.round_trip.samples - were_measured)
                for side, (were_sent, were_measured) in zip(sides, before, strict=True)
            ),
            strict=True,
        )
        assert sum(sent) <= 5 * 20, "16 a second would be a good part of a core where there are many links"
        assert min(samples) >= 19

    def test_a_mesh_link_comes_to_rest_on_a_machine_too_busy_to_measure(self) -> None:
        pulse = Pulse(LinkTiming(), 0.0, rhythm=ACCEPTED)
        asked = 0
        for step in range(1, 200):
            now = step * 0.1
            pulse.forgive(0.1, now)  # an echo is awaited no longer, so none measures anything
            pulse.heard(now)
            asked += pulse.due(now) is not None
        assert pulse.round_trip.samples == 0
        assert asked <= 9 + 20

    def test_a_mesh_link_measures_at_once_when_it_is_used_again(self) -> None:
        pair = mesh().start(10.0)
        before = times_sent(pair.acceptor, Heartbeat)
        pair.send(pair.dialer, Draining())
        pair.run(1.0)
        assert times_sent(pair.acceptor, Heartbeat) - before >= 3

    def test_acceptor_of_a_client_asks_only_when_the_client_is_quiet(self) -> None:
        pair = Pair().start(10)
        assert times_sent(pair.dialer, Heartbeat) == 40 and times_sent(pair.acceptor, Heartbeat) == 0
        pair.tamper = lambda side, message: None if side is pair.dialer else message
        pair.run(0.7)
        assert times_sent(pair.acceptor, Heartbeat) >= 1 and pair.acceptor.core.state is UP

    def test_an_echo_that_nobody_awaits_says_nothing(self) -> None:
        pair = mesh().start()
        before = pair.dialer.core.round_trip.samples
        pair.step(pair.dialer, e.FrameArrived(pair.dialer.core.epoch, (HeartbeatEcho(777),)))
        assert pair.dialer.core.round_trip.samples == before

    def test_round_trip_is_unknown_while_down(self) -> None:
        pair = mesh().start(1)
        assert pair.dialer.core.round_trip is not None
        pair.step(pair.dialer, e.TransportLost(pair.dialer.core.epoch, "reset"))
        assert pair.dialer.core.round_trip is None

    def test_smoothing_follows_a_change(self) -> None:
        estimate = RoundTrip()
        assert (estimate.mean, estimate.deviation, estimate.minimum) == (None, None, None)
        estimate.add(0.010)
        assert (estimate.mean, estimate.deviation, estimate.minimum) == (0.010, 0.005, 0.010)
        for _ in range(100):
            estimate.add(0.002)
        assert estimate.mean == pytest.approx(0.002, rel=0.01)
        assert estimate.deviation == pytest.approx(0.0, abs=1e-4) and estimate.minimum == 0.002


class TestSilence:
    def test_a_silent_peer_is_lost_after_interval_times_misses(self) -> None:
        """B21: half-open."""
        pair = mesh().start(2.0)
        heard_last = pair.now
        pair.silent = True
        pair.run(0.7)
        assert pair.dialer.core.state is UP
        pair.run(0.35)
        down = pair.dialer.announced(c.AnnounceDown)[-1]
        assert (down.code, down.by_peer) == ("silent", False)
        assert pair.now - heard_last <= 1.051
        assert pair.acceptors[0].announced(c.AnnounceDown)[-1].code == "silent", "each side finds out by itself"
        close = pair.dialer.announced(c.CloseTransport)[-1]
        assert close.abrupt, "a silent peer takes no Goodbye"

    @pytest.mark.parametrize("phase", [0.0, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.35])
    def test_at_rest_a_peer_has_three_intervals_to_answer(self, phase: float) -> None:
        pair = mesh().start(10.0 + phase)
        pair.silent = True
        pair.run(0.74)
        pair.silent = False
        pair.run(0.5)
        assert pair.dialer.core.state is UP and pair.acceptor.core.state is UP
        pair.silent = True
        pair.run(1.376)
        assert pair.dialer.announced(c.AnnounceDown)[-1].code == "silent"
        assert pair.acceptors[0].core.state is not UP

    def test_any_data_is_life(self) -> None:
        pair = mesh().start(1.0)
        pair.tamper = lambda side, message: None if isinstance(message, (Heartbeat, HeartbeatEcho)) else message
        for _ in range(20):
            pair.send(pair.acceptor, Draining())
            pair.send(pair.dialer, Draining())
            pair.run(0.5)
        assert pair.dialer.core.state is UP and pair.acceptor.core.state is UP

    def test_it_rejoins_by_itself(self) -> None:
        pair = mesh().start(2.0)
        pair.silent = True
        pair.run(20)
        pair.silent = False
        pair.run(8)  # the handshake under way has 5 s, then the back-off up to 2 s
        assert pair.dialer.core.state is UP


class TestOwnStall:
    """B22: a stall of our own loop is not the other side's silence."""

    @pytest.mark.parametrize("seconds", [0.5, 1.1, 5.0, 600.0])
    def test_time_passes_late(self, seconds: float) -> None:
        pair = mesh().start(2.0).stall(seconds)
        pair.step(pair.dialer, e.TimePassed())
        assert pair.dialer.core.state is UP

    def test_a_frame_is_handled_first(self) -> None:
        pair = mesh().start(2.0).stall(5.0)
        pair.step(pair.dialer, e.FrameArrived(pair.dialer.core.epoch, (Draining(),)))
        pair.step(pair.dialer, e.TimePassed())
        assert pair.dialer.core.state is UP

    def test_the_peer_still_has_to_say_something_afterwards(self) -> None:
        pair = mesh().start(2.0)
        pair.silent = True
        pair.stall(60.0)
        pair.step(pair.dialer, e.TimePassed())
        assert pair.dialer.core.state is UP
        pair.run(1.01)
        assert pair.dialer.announced(c.AnnounceDown)[-1].code == "silent"

    def test_silence_before_the_stall_counts(self) -> None:
        pair = mesh().start(2.0)
        pair.silent = True
        pair.run(0.6).stall(10.0)
        pair.step(pair.dialer, e.TimePassed())
        pair.run(0.5)
        assert pair.dialer.announced(c.AnnounceDown)[-1].code == "silent"

    def test_at_the_very_end_of_the_patience_leaves_an_interval_to_read(self) -> None:
        pair = mesh().start(2.0)
        pair.step(pair.dialer, e.FrameArrived(pair.dialer.core.epoch, (Draining(),)))
        pair.silent = True
        pair.run(0.99).stall(30.0)
        pair.step(pair.dialer, e.TimePassed())
        assert pair.dialer.core.state is UP

    def test_measures_nothing(self) -> None:
        pair = mesh(delay=0.004).start(2.0)
        before = pair.dialer.core.round_trip.mean
        pair.run(0.245).stall(3.0).run(2.0)
        assert pair.dialer.core.round_trip.mean == pytest.approx(before, rel=0.01)

    def test_an_echo_that_was_awaited_meanwhile_measures_nothing(self) -> None:
        pulse = Pulse(LinkTiming(), 0.0, rhythm=STEADY)
        number = pulse.due(0.0)
        assert number is not None
        pulse.forgive(3.0, 3.2)
        pulse.echoed(number, 3.2)
        assert pulse.round_trip.samples == 0

    def test_extends_the_handshake(self) -> None:
        acceptor = core(REPLICA_A, dialing=False)
        acceptor.step(e.TransportConnected(0), 0.0)
        assert acceptor.wake_at == 5.0
        assert acceptor.step(e.TimePassed(), 65.0) == [], "its Hello may be waiting to be read"
        assert acceptor.wake_at == 66.0
        assert acceptor.step(e.TimePassed(), 66.0) != []

    def test_repeated_steps_in_one_stall_are_forgiven_once(self) -> None:
        pair = mesh().start(2.0)
        pair.silent = True
        pair.stall(30.0)
        for _ in range(10):
            pair.step(pair.dialer, e.FrameArrived(0, ()))
            pair.step(pair.dialer, e.DropRequested(999, "x", "y"))
            pair.dialer.core.step(e.TimePassed(), pair.now)
        pair.run(1.01)
        assert pair.dialer.core.state is not UP


class TestTimeouts:
    @pytest.mark.parametrize("lost", [Hello, Proof])
    def test_a_lost_message_of_the_handshake(self, lost: type) -> None:
        pair = Pair()
        pair.tamper = lambda side, message: None if isinstance(message, lost) else message
        pair.start(4.9)
        assert pair.dialer.announced(c.AnnounceFailure) == []
        pair.run(0.2)
        assert pair.dialer.announced(c.AnnounceFailure)[0].code == "timeout"
        assert pair.dialer.core.state in (
            LinkState.BACKING_OFF,
            LinkState.DIALING,
            LinkState.GREETING,
            LinkState.PROVING,
        )
        pair.tamper = lambda side, message: message
        pair.run(6)
        assert pair.dialer.core.state is UP

    def test_a_lost_welcome(self) -> None:
        pair = mesh()
        pair.tamper = lambda side, message: None if isinstance(message, Welcome) else message
        pair.start(5.1)
        assert pair.dialer.announced(c.AnnounceFailure)[0].code == "timeout"
        assert pair.acceptors[0].announced(c.AnnounceFailure)[0].code == "timeout"

    def test_acceptor_lets_go_of_one_that_says_nothing(self) -> None:
        acceptor = core(REPLICA_A, dialing=False, timing=LinkTiming(handshake_timeout=2.0))
        acceptor.step(e.TransportConnected(0), 0.0)
        commands = acceptor.step(e.TimePassed(), 2.0)
        assert commands[0] == c.Transmit(1, Goodbye("timeout", "no handshake within 2 s"))
        assert acceptor.state is LinkState.CLOSED and acceptor.wake_at is None

    def test_a_dial_that_hangs(self) -> None:
        dialer = core(CLIENT, dialing=True)
        dialer.step(e.LinkWanted(), 0.0)
        assert dialer.wake_at == 5.0
        close, failure = dialer.step(e.TimePassed(), 5.0)
        assert (close.epoch, close.abrupt) == (1, True) and failure.code == "unreachable"
        assert dialer.state is LinkState.BACKING_OFF
        assert dialer.step(e.TransportConnected(1), 5.01) == [], "too late"


class TestBackoff:
    def unreachable(self, seed: int = 1, seconds: float = 60.0) -> list[float]:
        pair = Pair(core(CLIENT, dialing=True, seed=seed), delay=0.0)
        pair.reachable = False
        pair.start(seconds)
        return [after - before for before, after in zip(pair.dials, pair.dials[1:], strict=False)]

    def test_grows_to_its_limit_within_jitter(self) -> None:
        waits = self.unreachable()
        for number, wait in enumerate(waits):
            whole = min(2.0, 0.05 * 2**number)
            assert whole / 2 <= wait <= whole

    def test_two_dialers_do_not_keep_in_step(self) -> None:
        assert self.unreachable(1) != self.unreachable(2)

    def test_never_overflows(self) -> None:
        dialer = core(CLIENT, dialing=True)
        now = 0.0
        dialer.step(e.LinkWanted(), now)
        for _ in range(3000):
            dialer.step(e.DialFailed(dialer.epoch, "no"), now)
            assert dialer.wake_at is not None and 0 < dialer.wake_at - now <= 2.0
            now = dialer.wake_at
            dialer.step(e.TimePassed(), now)

    def test_resets_after_a_useful_link_only(self) -> None:
        pair = mesh()
        pair.reachable = False
        pair.start(20)
        pair.reachable = True
        pair.run(4)
        assert pair.dialer.core.state is UP and pair.dialer.core.failures > 5
        pair.step(pair.dialer, e.TransportLost(pair.dialer.core.epoch, "reset"))
        assert pair.dialer.core.failures == 1

    def test_does_not_reset_for_a_link_that_dies_young(self) -> None:
        """A peer that accepts, welcomes and falls over again must not be dialed in a tight loop."""
        pair = mesh().start(0.02)
        for _ in range(40):
            if pair.dialer.core.up:
                pair.step(pair.dialer, e.TransportLost(pair.dialer.core.epoch, "reset"))
            pair.run(0.5)
        assert pair.dialer.core.failures >= 8

    def test_does_not_reset_for_a_link_that_never_said_a_thing(self) -> None:
        timing = LinkTiming(useful_after=0.5)
        epochs = count(1).__next__
        pair = Pair(
            core(CLIENT, dialing=True, timing=timing, epochs=epochs),
            lambda: core(REPLICA_A, dialing=False, epochs=epochs, seed=2),
        )
        pair.tamper = lambda side, message: (
            None if side is not pair.dialer and isinstance(message, (Heartbeat, HeartbeatEcho)) else message
        )
        pair.start(1.05)
        assert pair.dialer.announced(c.AnnounceDown)[-1].code == "silent"
        assert pair.dialer.core.failures == 1
        pair.run(3)
        assert pair.dialer.core.failures >= 2


class TestEpochs:
    def test_grow_with_each_dial(self) -> None:
        pair = mesh().start()
        first = pair.dialer.core.epoch
        pair.step(pair.dialer, e.TransportLost(first, "reset"))
        assert pair.dialer.core.epoch == 0
        pair.run(1)
        assert pair.dialer.core.epoch > first

    @pytest.mark.parametrize(
        "event",
        [
            lambda epoch: e.TransportLost(epoch, "late news"),
            lambda epoch: e.FrameArrived(epoch, (Cancel(COPY),)),
            lambda epoch: e.FrameArrived(epoch, (Goodbye("auth", "x"),)),
            lambda epoch: e.ViolationFound(epoch, "x"),
            lambda epoch: e.DialFailed(epoch, "x"),
            lambda epoch: e.TransportConnected(epoch),
            lambda epoch: e.DropRequested(epoch, "x", "y"),
        ],
    )
    def test_events_of_an_old_one_change_nothing(self, event) -> None:
        pair = mesh().start()
        old = pair.dialer.core.epoch
        pair.step(pair.dialer, e.TransportLost(old, "reset"))
        pair.run(1)
        assert pair.dialer.core.state is UP
        before = (pair.dialer.core.describe(), pair.dialer.core.wake_at, len(pair.dialer.heard))
        assert pair.step(pair.dialer, event(old)) == []
        assert (pair.dialer.core.describe(), pair.dialer.core.wake_at, len(pair.dialer.heard)) == before
        assert pair.dialer.core.stale_events >= 1

    def test_an_accepted_connection_has_one(self) -> None:
        pair = Pair().start()
        acceptor = pair.acceptor
        pair.step(acceptor, e.TransportLost(acceptor.core.epoch, "reset"))
        assert acceptor.core.state is LinkState.CLOSED
        assert pair.step(acceptor, e.TransportConnected(2)) == []

    def test_a_new_incarnation_is_announced(self) -> None:
        incarnation = count(20)
        epochs = count(1).__next__
        pair = Pair(
            core(CLIENT, dialing=True, epochs=epochs),
            lambda: core(
                type(REPLICA_A)("shop", "replica", "a", next(incarnation)), dialing=False, epochs=epochs, seed=2
            ),
        ).start()
        pair.step(pair.dialer, e.TransportLost(pair.dialer.core.epoch, "reset"))
        pair.run(1)
        ups = pair.dialer.announced(c.AnnounceUp)
        assert [(up.peer.incarnation, up.previous_incarnation) for up in ups] == [(20, None), (21, 20)]


class TestEnding:
    def test_close_says_goodbye_to_the_other_side(self) -> None:
        pair = mesh().start()
        commands = pair.step(pair.dialer, e.CloseRequested("closed", "drained"))
        assert [type(command) for command in commands] == [c.Transmit, c.CloseTransport, c.AnnounceDown]
        pair.run(10)
        assert pair.acceptor.announced(c.AnnounceDown) == [c.AnnounceDown(2, "closed", "drained", True)]
        assert pair.dialer.core.state is LinkState.CLOSED and len(pair.dials) == 1

    def test_drop_is_for_this_connection_only(self) -> None:
        pair = mesh().start()
        pair.step(pair.dialer, e.DropRequested(pair.dialer.core.epoch, "slow", "its outbox is full"))
        assert pair.dialer.last == c.AnnounceDown(1, "slow", "its outbox is full", False)
        pair.run(1)
        assert pair.dialer.core.state is UP

    @pytest.mark.parametrize("after", [0.0, 0.0005, 0.0015, 0.0025, 0.0035, 0.0045, 1.0])
    def test_close_at_any_time_is_for_good(self, after: float) -> None:
        pair = mesh().start(after)
        pair.step(pair.dialer, e.CloseRequested("closed", ""))
        pair.run(10)
        assert pair.dialer.core.state is LinkState.CLOSED and len(pair.dials) == 1
        assert pair.acceptor.core.state is LinkState.CLOSED
        assert pair.step(pair.dialer, e.CloseRequested("closed", "again")) == []
        ups, downs = pair.dialer.announced(c.AnnounceUp), pair.dialer.announced(c.AnnounceDown)
        assert len(ups) == len(downs)

    def test_close_while_backing_off(self) -> None:
        pair = Pair()
        pair.reachable = False
        pair.start(0.01)
        assert pair.dialer.core.state is LinkState.BACKING_OFF
        assert pair.step(pair.dialer, e.CloseRequested("closed", "")) == []
        assert pair.run(60).dials == pair.dials[:1]

    def test_close_before_it_was_wanted(self) -> None:
        dialer = core(CLIENT, dialing=True)
        assert dialer.step(e.CloseRequested("closed", ""), 0.0) == []
        assert dialer.state is LinkState.CLOSED and dialer.wake_at is None

    def test_the_reason_of_a_goodbye_is_passed_on(self) -> None:
        pair = Pair().start()
        pair.step(pair.acceptor, e.CloseRequested("draining", "this replica stops"))
        pair.run(0.002)
        assert pair.dialer.last == c.AnnounceDown(1, "draining", "this replica stops", by_peer=True)

    def test_a_goodbye_that_refuses_is_not_lasting_once_the_link_was_up(self) -> None:
        epochs = count(1).__next__
        pair = Pair(
            core(CLIENT, dialing=True, retry_refused=False, epochs=epochs),
            lambda: core(REPLICA_A, dialing=False, epochs=epochs, seed=2),
        ).start()
        pair.step(pair.acceptor, e.CloseRequested("auth", "changed my mind"))
        pair.run(1)
        assert pair.dialer.core.state is UP

    def test_what_follows_a_goodbye_in_its_frame_is_passed_over(self) -> None:
        pair = Pair().start()
        epoch = pair.acceptor.core.epoch
        pair.step(pair.acceptor, e.FrameArrived(epoch, (Cancel(COPY), Goodbye("closed", ""), Cancel(COPY))))
        assert pair.acceptor.delivered == [Cancel(COPY)]


def test_chunks_are_taken_from_the_proven_only() -> None:
    acceptor = core(REPLICA_A, dialing=False)
    assert not acceptor.takes_chunks
    pair = mesh()
    pair.tamper = lambda side, message: None if isinstance(message, Welcome) else message
    pair.start()
    assert pair.dialer.core.state is LinkState.PROVING and pair.dialer.core.takes_chunks
    assert pair.acceptor.core.state is LinkState.WELCOMING and pair.acceptor.core.takes_chunks


def test_describe_tells_where_a_link_is() -> None:
    pair = mesh().start()
    assert pair.dialer.core.describe() == "a -> b: up, epoch 1"
    assert pair.acceptor.core.describe() == "b <- a: up, epoch 2"


def test_a_pause_of_the_other_side_is_no_distance() -> None:
    """A few samples that a pause made long change neither the round trip nor its deviation for long."""
    trip = RoundTrip()
    for _ in range(9):
        trip.add(0.002)
    for sample in (0.202, 0.152):
        trip.add(sample)
        assert trip.mean == 0.002 and trip.deviation == 0.0
    for sample in (0.102, 0.052):
        trip.add(sample)
        assert trip.mean == 0.002
    for _ in range(9):
        trip.add(0.010)
    assert (trip.mean, trip.minimum) == (0.010, 0.002), "one that stays is believed"


def test_deviation_is_that_of_normal_noise() -> None:
    trip, rng = RoundTrip(), Random(4)
    found = []
    for _ in range(3_000):
        trip.add(rng.gauss(0.010, 0.001))
        found.append(trip.deviation or 0.0)
    assert sum(found) / len(found) == pytest.approx(0.0011, rel=0.15)
