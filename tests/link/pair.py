"""Two LinkCores driven against each other over a wire of the test's own, in virtual time.

``Pair`` keeps a dialer's core and makes an acceptor's core for each connection. Everything that a core says is
recorded in ``log`` as text, ``heard`` has the commands.
"""

from __future__ import annotations

import hashlib
import heapq
from collections.abc import Callable
from itertools import count
from random import Random

from tiedreq.core import link_commands as c
from tiedreq.core import link_events as e
from tiedreq.core.link import Admit, LinkCore
from tiedreq.core.link_options import LinkSide, LinkTiming
from tiedreq.core.link_table import LinkState
from tiedreq.core.messages import Message, Welcome

CLIENT = LinkSide("shop", "client", "", 7)
REPLICA_A = LinkSide("shop", "replica", "a", 11)
REPLICA_B = LinkSide("shop", "replica", "b", 12)
WELCOME = Welcome(slots=4, draining=False, payload_bytes_max=1000, methods=())
QUIET = (c.Dial, c.Transmit, c.TransmitWelcome, c.CloseTransport)


class Tokens:
    """An authenticator that is easy to see through."""

    def __init__(self, token: str = "secret") -> None:
        self.token = token

    def make(self, transcript: bytes) -> bytes:
        return hashlib.sha256(self.token.encode() + transcript).digest()

    def check(self, transcript: bytes, proof: bytes) -> bool:
        return proof == self.make(transcript)


def core(
    side: LinkSide,
    *,
    dialing: bool,
    token: str = "secret",
    timing: LinkTiming | None = None,
    seed: int = 1,
    epochs: Callable[[], int] | None = None,
    expected_name: str | None = None,
    retry_refused: bool = True,
    admit: Admit | None = None,
) -> LinkCore:
    return LinkCore(
        side,
        timing or LinkTiming(),
        Tokens(token),
        Random(seed),
        epochs or count(1).__next__,
        dialing=dialing,
        expected_name=expected_name,
        retry_refused=retry_refused,
        admit=admit,
    )


class Side:
    """A core and what it said."""

    def __init__(self, name: str, core: LinkCore) -> None:
        self.name = name
        self.core = core
        self.heard: list[c.LinkCommand] = []
        self.sent: list[Message] = []

    def announced(self, kind: type) -> list:
        return [command for command in self.heard if isinstance(command, kind)]

    @property
    def delivered(self) -> list[Message]:
        return [message for command in self.announced(c.Deliver) for message in command.messages]

    @property
    def last(self) -> c.LinkCommand:
        """The last thing that the owner heard."""
        return [command for command in self.heard if not isinstance(command, QUIET)][-1]


class Pair:
    """A dialer, the acceptors of its connections, and the wire between them.

    ``delay`` is the time a frame takes. ``reachable``: whether a dial succeeds. ``silent``: frames and closings vanish.
    ``tamper`` may replace what is sent; None loses it.
    """

    def __init__(
        self,
        dialer: LinkCore | None = None,
        acceptor: Callable[[], LinkCore] | None = None,
        *,
        delay: float = 0.001,
    ) -> None:
        self.now = 100.0
        self.delay = delay
        self.reachable = True
        self.silent = False
        self.tamper: Callable[[Side, Message], Message | None] = lambda side, message: message
        self.epochs = count(1).__next__
        self.dialer = Side("dialer", dialer or core(CLIENT, dialing=True, epochs=self.epochs))
        self._make_acceptor = acceptor or (lambda: core(REPLICA_A, dialing=False, epochs=self.epochs, seed=2))
        self.acceptors: list[Side] = []
        self._links: dict[int, tuple[Side, int, Side, int]] = {}
        self._due: list[tuple[float, int, Side, e.LinkEvent]] = []
        self._order = count()
        self.dials: list[float] = []

    @property
    def acceptor(self) -> Side:
        """Of the newest connection."""
        return self.acceptors[-1]

    def start(self, seconds: float = 0.1) -> Pair:
        """Dial, and let that much time pass."""
        self.step(self.dialer, e.LinkWanted())
        return self.run(seconds)

    def step(self, side: Side, event: e.LinkEvent) -> list[c.LinkCommand]:
        commands = side.core.step(event, self.now)
        for command in commands:
            side.heard.append(command)
            self._carry_out(side, command)
        return commands

    def send(self, side: Side, *messages: Message) -> None:
        """As the owner of ``side`` would."""
        link = self._link(side)
        if link is not None:
            self._frame(side, messages, link)

    def run(self, seconds: float) -> Pair:
        """Let time pass; cores are woken when they asked to be."""
        end = self.now + seconds
        while True:
            wake = min(
                (
                    (s.core.wake_at, n)
                    for n, s in enumerate([self.dialer, *self.acceptors])
                    if s.core.wake_at is not None
                ),
                default=(float("inf"), 0),
            )
            due = self._due[0][0] if self._due else float("inf")
            if min(wake[0], due) > end:
                break
            self.now = max(self.now, min(wake[0], due))
            if due <= wake[0]:
                _, _, side, event = heapq.heappop(self._due)
                self.step(side, event)
            else:
                self.step([self.dialer, *self.acceptors][wake[1]], e.TimePassed())
        self.now = end
        return self

    def stall(self, seconds: float) -> Pair:
        """Time passes and nobody is woken: the process stood still. What was under way has arrived meanwhile."""
        self.now += seconds
        return self

    def _later(self, side: Side, event: e.LinkEvent, delay: float) -> None:
        heapq.heappush(self._due, (self.now + delay, next(self._order), side, event))

    def _link(self, side: Side) -> tuple[Side, int, Side, int] | None:
        return self._links.get(id(side) ^ side.core.epoch)

    def _carry_out(self, side: Side, command: c.LinkCommand) -> None:
        match command:
            case c.Dial(epoch):
                self.dials.append(self.now)
                if self.reachable:
                    self._connect(epoch)
                else:
                    self._later(side, e.DialFailed(epoch, "nobody listens"), self.delay)
            case c.Transmit(epoch, message):
                self._transmit(side, epoch, message)
            case c.TransmitWelcome(epoch):
                self._transmit(side, epoch, WELCOME)
            case c.CloseTransport(epoch):
                link = self._links.pop(id(side) ^ epoch, None)
                if link is not None and not self.silent:
                    self._later(link[2], e.TransportLost(link[3], "closed"), self.delay)

    def _connect(self, epoch: int) -> None:
        acceptor = Side(f"acceptor {len(self.acceptors) + 1}", self._make_acceptor())
        self.acceptors.append(acceptor)
        self.step(acceptor, e.TransportConnected(0))
        theirs = acceptor.core.epoch
        self._links[id(self.dialer) ^ epoch] = (self.dialer, epoch, acceptor, theirs)
        self._links[id(acceptor) ^ theirs] = (acceptor, theirs, self.dialer, epoch)
        self._later(self.dialer, e.TransportConnected(epoch), 0.0)

    def _transmit(self, side: Side, epoch: int, message: Message) -> None:
        side.sent.append(message)
        link = self._links.get(id(side) ^ epoch)
        if link is not None:
            self._frame(side, (message,), link)

    def _frame(self, side: Side, messages: tuple[Message, ...], link: tuple[Side, int, Side, int]) -> None:
        arriving = tuple(m for m in (self.tamper(side, message) for message in messages) if m is not None)
        if arriving and not self.silent:
            self._later(link[2], e.FrameArrived(link[3], arriving), self.delay)


def mesh(**options) -> Pair:
    """Replica ``a`` dials replica ``b``."""
    epochs = count(1).__next__
    dialer = core(REPLICA_A, dialing=True, expected_name="b", epochs=epochs)
    return Pair(dialer, lambda: core(REPLICA_B, dialing=False, epochs=epochs, seed=2), **options)


UP = LinkState.UP
