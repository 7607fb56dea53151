"""Two link cores and the wire between them, small enough to try every order of what may happen.

Replica ``a`` dials replica ``b``. ``moves`` tells what may happen next, ``do`` lets it. What is not honest or not in
order (a lost connection, a refused dial, a stall, silence, a restart of ``b``, one who holds another token) is a
*fault*, of which there are ``faults``. ``calm`` lets everything go well from now on: then the link has to come up.

* ``search``: every order of so many moves, equal states once.
* ``LinkMachine``: Hypothesis's histories of the same world, longer, with more faults.
"""

from __future__ import annotations

import sys
from collections import deque
from itertools import count
from random import Random

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from tests.link.pair import REPLICA_A, REPLICA_B, WELCOME, Tokens
from tests.mutants.link_rules import ruled_link
from tests.mutants.replica_rules import BadStep
from tiedreq.core import link_commands as c
from tiedreq.core import link_events as e
from tiedreq.core.link import LinkCore
from tiedreq.core.link_options import LinkTiming
from tiedreq.core.link_table import LinkState
from tiedreq.core.messages import Draining, Message

TIMING = LinkTiming(useful_after=0.3)
STALL = 5.0
DEPTH = 4
UP = ("connect", "deliver 1", "deliver 0", "deliver 1", "deliver 0", "deliver 1")
"""The handshake, after which the dialer's side is up, and the acceptor's too."""
CALM_SECONDS = 60.0
STATES_MIN = 2_000
"""A search that sees fewer has lost moves."""
FAULTS = ("lose dialer", "lose acceptor", "refuse", "late loss", "late frame", "mute", "stall", "restart", "impostor")
Key = tuple[object, ...]


class Connection:
    """One connection: what is under way to each end, and whether an end has closed it."""

    def __init__(self, epoch: int, acceptor: LinkCore) -> None:
        self.epoch = epoch
        self.acceptor = acceptor
        self.theirs = acceptor.epoch
        self.wire: tuple[deque[Message], deque[Message]] = (deque(), deque())
        """To the dialer, and to the acceptor."""
        self.closed = [False, False]


class LinkWorld:
    """The two sides. ``kind`` is the core of both."""

    def __init__(self, kind: type[LinkCore], faults: int) -> None:
        self.kind = kind
        self.now = 10.0
        self.faults = faults
        self.epochs = count(1).__next__
        self.dialer = kind(REPLICA_A, TIMING, Tokens(), Random(1), self.epochs, dialing=True, expected_name="b")
        self.incarnation = REPLICA_B.incarnation
        self.impostor = self.muted = False
        self.dialing = 0
        self.line: Connection | None = None
        self.former = 0
        self._give(0, e.LinkWanted())

    # ---- what may happen ---------------------------------------------------------------------------------------

    def moves(self) -> list[str]:
        """All that may happen next."""
        found = ["time"]
        line = self.line
        if self.dialing:
            found.append("connect")
        if line is not None:
            found += [f"deliver {side}" for side in (0, 1) if line.wire[side]]
            found += [f"hear of the end {side}" for side in (0, 1) if self._hears_of_the_end(side)]
            found += [f"say {side}" for side in (0, 1) if self._core(side).up]
        if self.faults:
            found += [fault for fault in FAULTS if self._possible(fault)]
        return found

    def _hears_of_the_end(self, side: int) -> bool:
        line = self.line
        return line is not None and line.closed[1 - side] and not line.closed[side] and not line.wire[side]

    def _possible(self, fault: str) -> bool:
        line = self.line
        if fault.startswith("lose"):
            return line is not None and not line.closed[fault == "lose acceptor"]
        if fault == "refuse":
            return bool(self.dialing)
        if fault.startswith("late"):
            return bool(self.former) and self.former != self.dialer.epoch
        return line is not None if fault in ("mute", "stall") else True

    def do(self, move: str) -> None:
        """Let it happen."""
        kind, _, rest = move.rpartition(" ")
        self.faults -= move in FAULTS
        if kind in ("deliver", "hear of the end", "say"):
            self._on_the_wire(kind, int(rest))
        elif move == "time":
            self._pass_time()
        elif move == "connect":
            self._connect()
        elif move == "refuse":
            epoch, self.dialing = self.dialing, 0
            self._give(0, e.DialFailed(epoch, "nobody listens"))
        elif move.startswith("lose"):
            self._lose(int(move == "lose acceptor"))
        elif move == "late loss":
            self._give(0, e.TransportLost(self.former, "late news"))
        elif move == "late frame":
            self._give(0, e.FrameArrived(self.former, (Draining(),)))
        elif move == "stall":
            self.now += STALL
            self._give(0, e.TimePassed())
        elif move == "restart":
            self.incarnation += 1
        else:
            setattr(self, {"mute": "muted"}.get(move, move), True)

    def _on_the_wire(self, kind: str, side: int) -> None:
        line = self.line
        assert line is not None
        epoch = line.epoch if side == 0 else line.theirs
        if kind == "deliver":
            message = line.wire[side].popleft()
            if not line.closed[side]:
                self._give(side, e.FrameArrived(epoch, (message,)))
        elif kind == "say":
            self._put(side, Draining())
        else:
            self._give(side, e.TransportLost(epoch, "closed"))

    def _pass_time(self) -> None:
        cores = [self.dialer] + ([self.line.acceptor] if self.line is not None else [])
        wakes = [core.wake_at for core in cores if core.wake_at is not None]
        self.now = max(self.now, min(wakes, default=self.now))
        for side, core in enumerate(cores):
            if core.wake_at is not None and core.wake_at <= self.now:
                self._give(side, e.TimePassed())

    def _connect(self) -> None:
        epoch, self.dialing = self.dialing, 0
        side = REPLICA_B.__class__("shop", "replica", "b", self.incarnation)
        token = Tokens("another" if self.impostor else "secret")
        acceptor = self.kind(side, TIMING, token, Random(2), self.epochs, dialing=False)
        acceptor.step(e.TransportConnected(0), self.now)
        self.line = Connection(epoch, acceptor)
        self.impostor = False
        self._give(0, e.TransportConnected(epoch))

    def _lose(self, side: int) -> None:
        assert self.line is not None
        epoch = self.line.epoch if side == 0 else self.line.theirs
        self._give(side, e.TransportLost(epoch, "reset"))

    # ---- commands ----------------------------------------------------------------------------------------------

    def _core(self, side: int) -> LinkCore:
        assert side == 0 or self.line is not None
        return self.dialer if side == 0 or self.line is None else self.line.acceptor

    def _give(self, side: int, event: e.LinkEvent) -> None:
        for command in self._core(side).step(event, self.now):
            if isinstance(command, c.Dial):
                self.dialing = command.epoch
            elif isinstance(command, c.Transmit):
                self._put(side, command.message)
            elif isinstance(command, c.TransmitWelcome):
                self._put(side, WELCOME)
            elif isinstance(command, c.CloseTransport):
                self._close(side, command.epoch)

    def _put(self, side: int, message: Message) -> None:
        if self.line is not None and not self.muted and not self.line.closed[side]:
            self.line.wire[1 - side].append(message)

    def _close(self, side: int, epoch: int) -> None:
        if side == 0 and self.dialing == epoch:
            self.dialing = 0
        elif self.line is not None:
            self.line.closed[side] = True
            self.line.wire[side].clear()
        if side == 0:
            self.former, self.muted = epoch, False

    # ---- the end -----------------------------------------------------------------------------------------------

    def calm(self) -> None:
        """From now on all goes well, and the link has to come up."""
        self.faults, self.muted, self.impostor = 0, False, False
        end = self.now + CALM_SECONDS
        while self.now < end:
            moves = [move for move in self.moves() if not move.startswith("say")]
            if self.dialer.up and self.line is not None and self.line.acceptor.up and len(moves) == 1:
                return
            self.do(moves[-1])
        raise BadStep(f"7: no link in {CALM_SECONDS:g} quiet seconds: {self.dialer.describe()}")

    def key(self) -> Key:
        """All that the future depends on, but for chance."""
        line, core = self.line, self.dialer
        told: Key = ()
        if line is not None:
            wires = tuple(tuple(type(message).__name__ for message in wire) for wire in line.wire)
            told = (wires, tuple(line.closed), *self._of(line.acceptor), line.epoch == core.epoch)
        flags = (self.faults, self.muted, self.impostor, bool(self.dialing), bool(self.former))
        return (*self._of(core), self.incarnation, *flags, *told)

    def _of(self, core: LinkCore) -> Key:
        wait = None if core.wake_at is None else round(core.wake_at - self.now, 1)
        return (core.state, core.failures, wait, core._heard_beyond_handshake, round(self.now - core._up_since, 1))


def search(kind: type[LinkCore], *, depth: int = DEPTH, faults: int = 2) -> str | None:
    """Every order of ``depth`` moves, from the first dial and from a link that is up, with so many faults, each then
    left in peace: what was broken, or None.
    """
    ruled = ruled_link(kind)
    seen: set[Key] = set()
    paths: list[tuple[str, ...]] = [(), UP]
    while paths:
        longer = []
        for path in paths:
            try:
                world = LinkWorld(ruled, faults)
                for move in path:
                    world.do(move)
                key = world.key()
                if key in seen:
                    continue
                seen.add(key)
                moves = world.moves()
                world.calm()
            except BadStep as broken:
                return f"{broken} (after: {', '.join(path)})"
            if len(path) - len(UP) * (path[: len(UP)] == UP) < depth:
                longer += [(*path, move) for move in moves]
        paths = longer
    assert len(seen) > STATES_MIN or depth < DEPTH, f"only {len(seen)} states"
    return None


class LinkMachine(RuleBasedStateMachine):
    """One history of that world."""

    link_core: type[LinkCore] = LinkCore

    @initialize(faults=st.integers(0, 8))
    def begin(self, faults: int) -> None:
        self.world = LinkWorld(ruled_link(type(self).link_core), faults)

    @rule(which=st.integers(0, 11))
    def happens(self, which: int) -> None:
        """One of the things that may happen."""
        moves = self.world.moves()
        self.world.do(moves[which % len(moves)])

    @rule(times=st.integers(1, 12))
    def goes_well(self, times: int) -> None:
        """What is under way arrives."""
        for _ in range(times):
            moves = [move for move in self.world.moves() if move not in FAULTS and not move.startswith("say")]
            if self.world.dialer.state is LinkState.UP and len(moves) == 1:
                break
            self.world.do(moves[-1])

    @rule(times=st.integers(1, 6))
    def time_passes(self, times: int) -> None:
        """Timers fire, and what is sent at that arrives."""
        for _ in range(times):
            self.world.do("time")
            for move in [move for move in self.world.moves() if move.startswith("deliver")]:
                self.world.do(move)

    def teardown(self) -> None:
        """From then on all goes well."""
        if hasattr(self, "world") and sys.exc_info()[0] is None:
            self.world.calm()
