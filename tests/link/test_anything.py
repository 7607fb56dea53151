"""Whatever happens in whatever order, the promises of LinkCore hold (Hypothesis state machine)."""

from __future__ import annotations

from itertools import count

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.link.pair import CLIENT, REPLICA_A, REPLICA_B, WELCOME, Tokens, core
from tiedreq.core import link_commands as c
from tiedreq.core import link_events as e
from tiedreq.core.errors import UnknownTransition
from tiedreq.core.link import LINK_MESSAGES
from tiedreq.core.link_rules import LASTING_CODES, transcript
from tiedreq.core.link_table import ACCEPTOR_TABLE, DIALER_TABLE, LinkState
from tiedreq.core.messages import (
    Cancel,
    Draining,
    Goodbye,
    Heartbeat,
    HeartbeatEcho,
    Hello,
    Message,
    Proof,
    Unsupported,
)
from tiedreq.core.types import CopyId

CODES = sorted(LASTING_CODES | {"closed", "timeout", "slow", "lost"})
hellos = st.builds(
    Hello,
    st.integers(0, 2),
    st.integers(0, 2),
    st.sampled_from(["shop", "bank"]),
    st.sampled_from(["client", "replica", "boss"]),
    st.sampled_from(["", "a", "b"]),
    st.integers(0, 3),
    st.sampled_from([bytes(32), b"", b"x" * 32]),
    st.just(b""),
)
any_message = st.one_of(
    hellos,
    st.just(WELCOME),
    st.builds(Proof, st.sampled_from([b"", bytes(32)])),
    st.builds(Goodbye, st.sampled_from(CODES), st.just("because")),
    st.builds(Heartbeat, st.integers(0, 5)),
    st.builds(HeartbeatEcho, st.integers(0, 5)),
    st.builds(Unsupported, st.integers(0, 99)),
    st.just(Draining()),
    st.just(Cancel(CopyId(1, 2, 3, -1))),
)


class AnyOrder(RuleBasedStateMachine):
    """One core, fed with everything; ``next_right`` answers as a real other side would."""

    @initialize(
        dialing=st.booleans(), mesh=st.booleans(), retry=st.booleans(), expected=st.sampled_from([None, "b", "z"])
    )
    def begin(self, dialing: bool, mesh: bool, retry: bool, expected: str | None) -> None:
        self.now = 10.0
        self.mesh = mesh
        self.core = core(
            REPLICA_A if mesh or not dialing else CLIENT,
            dialing=dialing,
            retry_refused=retry,
            expected_name=expected if dialing else None,
            epochs=count(1).__next__,
        )
        self.tokens = Tokens()
        self.up = 0
        self.seen_epochs: list[int] = []
        self.own: Hello | None = None
        self.others: Hello | None = None

    def step(self, event: e.LinkEvent) -> None:
        epoch = self.core.epoch
        state = self.core.state
        before = self.core.describe()
        stale = getattr(event, "epoch", epoch) != epoch and not (state is LinkState.IDLE and not self.core.dialing)
        try:
            commands = self.core.step(event, self.now)
        except UnknownTransition:
            assert self.core.describe() == before, "an error changes nothing"
            assert not isinstance(event, e.FrameArrived) or state in (
                LinkState.DIALING,
                LinkState.BACKING_OFF,
                LinkState.CLOSED,
                LinkState.IDLE,
            ), "no frame that arrives is the driver's mistake"
            return
        assert not (stale and commands), "an old epoch changes nothing"
        self.check(commands)

    def check(self, commands: list[c.LinkCommand]) -> None:
        closed: set[int] = set()
        for command in commands:
            match command:
                case c.AnnounceUp(epoch):
                    assert not self.up and epoch == self.core.epoch
                    self.up = epoch
                case c.AnnounceDown(epoch):
                    assert self.up == epoch
                    self.up = 0
                case c.AnnounceFailure(epoch):
                    assert not self.up
                case c.Deliver(epoch, messages):
                    assert epoch == self.up and messages
                    assert not any(type(message) in LINK_MESSAGES for message in messages)
                case c.CloseTransport(epoch):
                    assert epoch not in closed, "one tear-down"
                    closed.add(epoch)
                case c.Dial(epoch):
                    assert self.core.dialing and (not self.seen_epochs or epoch > self.seen_epochs[-1])
                    self.seen_epochs.append(epoch)
                case c.Transmit(epoch, message):
                    assert epoch not in closed, "nothing is sent after the tear-down began"
                    if isinstance(message, Hello):
                        self.own = message

    def frame(self, *messages: Message) -> None:
        self.step(e.FrameArrived(self.core.epoch, messages))

    @precondition(lambda self: self.core.state is LinkState.IDLE)
    @rule()
    def begins(self) -> None:
        self.step(e.LinkWanted() if self.core.dialing else e.TransportConnected(0))

    @precondition(lambda self: self.core.state is LinkState.DIALING)
    @rule()
    def connects(self) -> None:
        self.step(e.TransportConnected(self.core.epoch))

    @precondition(lambda self: self.core.state in (LinkState.GREETING, LinkState.PROVING, LinkState.WELCOMING))
    @rule()
    def next_right(self) -> None:
        role = "client" if not self.core.dialing and not self.mesh else "replica"
        if self.core.state is LinkState.GREETING:
            self.others = Hello(1, 1, "shop", role, REPLICA_B.name, 5, b"y" * 32, b"")
            if self.core.dialing:
                assert self.own is not None
                proof = self.tokens.make(transcript("acceptor", self.own, self.others))
                self.others = self.others._replace(proof=proof)
            self.frame(self.others)
        elif self.core.state is LinkState.PROVING and not self.core.dialing:
            assert self.own is not None and self.others is not None
            self.frame(Proof(self.tokens.make(transcript("dialer", self.others, self.own))))
        else:
            self.frame(WELCOME)

    @rule(messages=st.lists(any_message, max_size=4))
    def anything_arrives(self, messages: list[Message]) -> None:
        self.frame(*messages)

    @precondition(lambda self: self.core.up)
    @rule(messages=st.lists(st.sampled_from([Draining(), Heartbeat(1), HeartbeatEcho(1)]), max_size=4))
    def sense_arrives(self, messages: list[Message]) -> None:
        self.frame(*messages)

    @rule(ago=st.integers(0, 3), kind=st.sampled_from([e.TransportLost, e.ViolationFound, e.DialFailed]))
    def trouble(self, ago: int, kind: type) -> None:
        self.step(kind(max(0, self.core.epoch - ago), "trouble"))

    @rule(ago=st.integers(0, 3))
    def dropped(self, ago: int) -> None:
        self.step(e.DropRequested(max(0, self.core.epoch - ago), "slow", "too slow"))

    @rule(seconds=st.sampled_from([0.0, 0.01, 0.25, 0.4, 1.0, 6.0, 1000.0]))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds
        self.step(e.TimePassed())

    @rule()
    def woken_as_asked(self) -> None:
        if self.core.wake_at is not None:
            self.now = max(self.now, self.core.wake_at)
            self.step(e.TimePassed())
            assert self.core.wake_at is None or self.core.wake_at > self.now, "asks for a time to come"

    @precondition(lambda self: self.core.state is not LinkState.IDLE)
    @rule()
    def closed_by_the_owner(self) -> None:
        self.step(e.CloseRequested("closed", ""))
        assert self.core.state is LinkState.CLOSED

    @invariant()
    def state_and_epoch_agree(self) -> None:
        if not hasattr(self, "core"):
            return
        connected = self.core.state not in (LinkState.IDLE, LinkState.BACKING_OFF, LinkState.CLOSED)
        assert bool(self.core.epoch) == connected
        assert (self.core.state is LinkState.UP) == bool(self.up) == self.core.up
        assert (self.core.wake_at is None) == (self.core.state in (LinkState.IDLE, LinkState.CLOSED))
        assert (self.core.round_trip is not None) == self.core.up


TestAnyOrder = AnyOrder.TestCase
TestAnyOrder.settings = settings(stateful_step_count=40)


def test_tables_end_where_they_may() -> None:
    """Every state of a table can be reached and left, but for CLOSED."""
    for table in (DIALER_TABLE, ACCEPTOR_TABLE):
        states = {state for state, _ in table.rows} | set(table.rows.values())
        reached, todo = {table.initial}, [table.initial]
        while todo:
            here = todo.pop()
            for (state, _), after in table.rows.items():
                if state is here and after not in reached:
                    reached.add(after)
                    todo.append(after)
        assert reached == states
        for state in states - {LinkState.CLOSED}:
            assert any(before is state and after is not state for (before, _), after in table.rows.items())
        assert {after for (before, _), after in table.rows.items() if before is LinkState.CLOSED} == {LinkState.CLOSED}
        assert {trigger for _, trigger in table.rows} <= set(table.notes)
