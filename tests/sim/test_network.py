from __future__ import annotations

from random import Random

import pytest

from tiedreq.core.errors import BadOption
from tiedreq.core.messages import Goodbye, HeartbeatEcho, Message, Welcome
from tiedreq.core.types import Identity
from tiedreq.sim.clock import NEVER, Clock
from tiedreq.sim.links import Connection, NetworkOptions, Opening, Parcel
from tiedreq.sim.network import Network
from tiedreq.units import parse_latency

LATENCY = 0.010


def message(number: int) -> Message:
    return HeartbeatEcho(number)


class Recorder:
    """A node that notes what it is told."""

    def __init__(self, network: Network, name: str) -> None:
        self.name = name
        self.identity = Identity(name, 1)
        self.alive = True
        self.frozen = False
        self.generation = 1
        self.told: list[tuple[float, str, object]] = []
        self.connection: Connection | None = None
        self.network = network

    def receive(self, link: int, parcel: Parcel) -> None:
        if isinstance(parcel, Opening):
            self.connection = parcel.connection
            self.note("open", link)
        elif isinstance(parcel, Goodbye):
            self.note("goodbye", link)
            self.network.said_goodbye(link, self, parcel.code)
        else:
            assert isinstance(parcel, HeartbeatEcho)
            self.note("message", parcel.number)

    def accepted(self, connection: Connection) -> None:
        self.connection = connection
        self.note("accepted", connection.link)
        connection.acceptor.outgoing.send(Opening(connection, Welcome(1, False, 1000, ())))

    def lost(self, link: int, *, drained: bool) -> None:
        self.note("drained" if drained else "lost", link)

    def note(self, what: str, detail: object) -> None:
        self.told.append((round(self.network.clock.now, 6), what, detail))

    def send(self, number: int) -> None:
        assert self.connection is not None
        self.connection.end_of(self.name).outgoing.send(message(number))

    def numbers(self) -> list[object]:
        return [detail for _, what, detail in self.told if what == "message"]

    def kinds(self) -> list[str]:
        return [what for _, what, _ in self.told]


class Two:
    """Two connected nodes, r0 (the dialer) and r1."""

    def __init__(self, *, latency: str = "10ms", seed: int = 1, **options: object) -> None:
        self.clock = Clock()
        mesh = parse_latency(latency)
        self.network = Network(self.clock, NetworkOptions(mesh=mesh, **options), Random(seed))  # type: ignore[arg-type]
        self.a, self.b = Recorder(self.network, "r0"), Recorder(self.network, "r1")
        self.network.connect(self.a, self.b)
        self.clock.run(1.0)
        assert self.connection is not None
        self.a.told.clear()
        self.b.told.clear()

    @property
    def connection(self) -> Connection:
        (connection,) = self.network.connections("r0", "r1")
        return connection


def test_handshake_takes_three_ways_and_the_dialer_is_up_last() -> None:
    clock = Clock()
    network = Network(clock, NetworkOptions(mesh=parse_latency("10ms")), Random(1))
    a, b = Recorder(network, "r0"), Recorder(network, "r1")
    network.connect(a, b)
    clock.run(1.0)
    assert b.told == [(0.03, "accepted", 1)]
    assert a.told == [(0.04, "open", 1)]


def test_a_message_takes_the_latency_of_its_direction() -> None:
    two = Two(latency="10ms;r1>r0=3ms")
    two.a.send(1)
    two.b.send(2)
    two.clock.run(2.0)
    assert two.b.told == [(1.010, "message", 1)]
    assert two.a.told == [(1.003, "message", 2)]


def test_jitter_never_changes_the_order() -> None:
    two = Two(latency="10ms~10ms")
    for number in range(200):
        two.clock.run(1.0 + number * 0.001)
        two.a.send(number)
    two.clock.run(9.0)
    assert two.b.numbers() == list(range(200))
    gaps = {round(at - 1.0 - index * 0.001, 4) for index, (at, _, _) in enumerate(two.b.told)}
    assert len(gaps) > 50


def test_hold_keeps_messages_and_release_delivers_them_in_order() -> None:
    two = Two()
    two.a.send(1)
    two.network.hold("r0", "r1")
    two.a.send(2)
    two.b.send(3)
    two.clock.run(1.5)
    assert two.b.told == [] and two.a.numbers() == [3]
    two.a.send(4)
    two.network.release("r0", "r1")
    two.clock.run(2.0)
    assert two.b.told == [(1.5, "message", 1), (1.5, "message", 2), (1.51, "message", 4)]


def test_flights_can_be_looked_at_and_delivered_one_by_one() -> None:
    two = Two()
    two.a.send(1)
    assert [(flight.due, flight.message) for flight in two.network.flights()] == [(1.01, message(1))]
    two.network.hold("r0", "r1")
    two.a.send(2)
    two.a.send(3)
    two.clock.run(1.5)
    flights = two.network.flights()
    assert [(flight.due, flight.message) for flight in flights] == [(NEVER, message(n)) for n in (1, 2, 3)]
    (direction,) = two.network.directions("r0", "r1")
    assert direction.deliver(1) == message(2)
    assert direction.deliver() == message(1)
    assert two.b.numbers() == [2, 1]
    two.network.release("r0", "r1")
    two.clock.run(1.6)
    assert two.b.numbers() == [2, 1, 3]


def test_a_cut_loses_what_is_under_way_and_tells_both_ends_in_their_own_time() -> None:
    two = Two(notice_min=0.1, notice_max=0.5, reconnect_min=10.0, reconnect_max=10.0)
    two.a.send(1)
    two.b.send(2)
    two.network.cut(two.connection)
    two.clock.run(1.05)
    two.a.send(3)  # nobody has told it yet
    two.clock.run(5.0)
    assert two.a.kinds() == two.b.kinds() == ["lost"]
    assert two.network.lost_messages == 3
    (at_a, _, _), (at_b, _, _) = two.a.told[0], two.b.told[0]
    assert 1.1 <= at_a <= 1.5 and 1.1 <= at_b <= 1.5 and at_a != at_b
    assert two.network.connections("r0") == []


def test_the_dialer_dials_again_and_the_new_connection_has_a_new_number() -> None:
    two = Two(notice_max=0.01, reconnect_min=0.1, reconnect_max=0.2)
    two.network.cut(two.connection)
    two.clock.run(3.0)
    assert two.a.kinds() == ["lost", "open"]
    assert two.connection.link == 2
    two.a.send(7)
    two.clock.run(4.0)
    assert two.b.numbers() == [7]


def test_a_new_connection_may_be_up_before_the_old_one_is_known_to_be_lost() -> None:
    two = Two(reconnect_min=0.01, reconnect_max=0.01)
    old = two.connection
    two.network.cut_now(old, "r0")
    two.clock.run(2.0)
    assert two.a.kinds() == ["lost", "open"] and two.b.kinds() == ["accepted"]
    assert [connection.link for connection in two.network.connections("r0")] == [1, 2]
    two.network.notice(old, "r1")
    assert two.b.told[-1] == (2.0, "lost", 1)
    two.a.send(5)
    two.clock.run(3.0)
    assert two.b.numbers() == [5]


def test_goodbye_flushes_what_was_sent_and_nothing_comes_back() -> None:
    two = Two()
    two.b.send(1)
    two.a.send(2)
    two.network.leave(two.b)
    two.b.alive = False
    two.clock.run(2.0)
    assert two.a.told == [(1.01, "message", 1), (1.01, "goodbye", 1), (1.01, "drained", 1)]
    assert two.b.told == []


def test_a_crash_tells_only_the_others() -> None:
    two = Two(notice_min=0.2, notice_max=0.2)
    two.a.send(1)
    two.b.alive = False
    two.network.crashed(two.b)
    two.clock.run(1.5)
    assert two.a.told == [(1.2, "lost", 1)] and two.b.told == []
    two.clock.run(5.0)
    assert two.a.kinds() == ["lost"]
    two.b.alive = True
    two.b.generation += 1
    two.clock.run(6.0)
    assert two.a.kinds() == ["lost", "open"] and two.b.kinds() == ["accepted"]


def test_a_dialer_that_starts_again_dials() -> None:
    two = Two(notice_min=0.2, notice_max=0.2)
    two.a.alive = False
    two.network.crashed(two.a)
    two.a.alive = True
    two.a.generation += 1
    two.network.revived(two.a)
    two.clock.run(3.0)
    assert [told[1:] for told in two.b.told] == [("accepted", 2), ("lost", 1)]
    assert two.a.kinds() == ["open"]


def test_a_short_partition_only_delays() -> None:
    two = Two(silence=1.0)
    two.network.partition("r0", "r1")
    two.a.send(1)
    two.clock.run(1.5)
    two.network.heal("r0", "r1")
    two.clock.run(9.0)
    assert two.b.told == [(1.5, "message", 1)] and two.a.told == []


def test_a_one_way_partition_is_noticed_where_it_is_silent_and_told_the_other_way() -> None:
    two = Two(silence=1.0, reconnect_min=0.1, reconnect_max=0.1)
    two.network.partition("r0", "r1")
    two.a.send(1)
    two.clock.run(1.5)
    two.b.send(2)
    two.clock.run(8.0)
    assert two.b.kinds() == ["lost"]
    assert two.a.kinds() == ["message", "goodbye", "lost"]
    lost_at_a, lost_at_b = two.a.told[-1][0], two.b.told[-1][0]
    assert 2.0 <= lost_at_b <= 3.0 and lost_at_a == pytest.approx(lost_at_b + LATENCY)
    two.network.heal("r0", "r1")
    two.clock.run(9.0)
    assert two.a.kinds()[-1] == "open" and two.b.numbers() == []


def test_a_partition_both_ways_is_noticed_by_each_end_alone() -> None:
    two = Two(silence=1.0)
    two.network.partition("r0", "r1")
    two.network.partition("r1", "r0")
    two.clock.run(8.0)
    assert two.a.kinds() == two.b.kinds() == ["lost"]
    assert two.a.told[0][0] != two.b.told[0][0]
    two.network.heal_all()
    two.clock.run(9.0)
    assert two.a.kinds() == ["lost", "open"]


def test_a_held_direction_holds_new_connections_too() -> None:
    two = Two(notice_max=0.01, reconnect_min=0.1, reconnect_max=0.1)
    two.network.hold("r1", "r0")
    two.network.cut(two.connection)
    two.clock.run(3.0)
    assert two.b.kinds() == ["lost", "accepted"] and two.a.kinds() == ["lost"]
    two.network.release("r1", "r0")
    two.clock.run(4.0)
    assert two.a.kinds() == ["lost", "open"]


def test_frozen_nodes_neither_dial_nor_accept() -> None:
    for frozen in ("a", "b"):
        two = Two(notice_max=0.01, reconnect_min=0.1, reconnect_max=0.1)
        node = getattr(two, frozen)
        node.frozen = True
        two.network.cut(two.connection)
        two.clock.run(3.0)
        assert two.network.connections("r0") == []
        node.frozen = False
        two.clock.run(4.0)
        assert len(two.network.connections("r0")) == 1


def test_overtaking_reorders_nothing_but_submits() -> None:
    two = Two(overtaking=1.0, overtaking_delay=1.0)
    for number in range(50):
        two.a.send(number)
    two.clock.run(9.0)
    assert two.b.numbers() == list(range(50))


@pytest.mark.parametrize(
    "bad",
    [{"notice_min": 0.2, "notice_max": 0.1}, {"silence": -1.0}, {"overtaking": 1.5}, {"reconnect_min": 0.0}],
    ids=str,
)
def test_options_are_checked(bad: dict[str, float]) -> None:
    with pytest.raises(BadOption, match=next(iter(bad))):
        NetworkOptions(**bad)
