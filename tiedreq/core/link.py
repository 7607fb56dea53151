"""LinkCore: what a link decides. Handshake, epochs, heartbeats, silence, back-off.

The handshake: the dialer's Hello, the acceptor's Hello with its proof, the dialer's Proof, the acceptor's Welcome, and
between two replicas the dialer's Welcome too. Neither side says anything of itself beyond its Hello to one that has not
proven that it holds the cluster's token.

Invariants:

* ``AnnounceUp`` and ``AnnounceDown`` alternate, ``Deliver`` stands only between them.
* ``epoch`` is 0 while there is no connection; an event of another epoch changes nothing.
* Whatever the other side sends, ``step`` does not raise: a broken rule ends this connection with Goodbye("protocol").
  ``UnknownTransition`` means that the driver made a mistake; nothing is changed then.
* Only the other side's silence counts: while our own loop stood still (an event arrives much later than the time that
  ``wake_at`` asked for) no silence is counted and no round trip is measured.

Goodbye codes: ``version cluster auth identity protocol timeout closed``, those of ``admit``, and the owner's own;
besides these ``AnnounceDown`` and ``AnnounceFailure`` say ``lost``, ``silent`` and ``unreachable``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random

from tiedreq.core import link_commands as commands
from tiedreq.core import link_events as events
from tiedreq.core.errors import RemoteViolation, UnknownTransition
from tiedreq.core.link_commands import LinkCommand
from tiedreq.core.link_options import Authenticator, LinkSide, LinkTiming
from tiedreq.core.link_rules import CHALLENGE_BYTES, LASTING_CODES, Refusal, backoff, check_hello, goodbye, transcript
from tiedreq.core.link_table import ACCEPTOR_TABLE, DIALER_TABLE, LinkState, LinkTrigger
from tiedreq.core.messages import Goodbye, Heartbeat, HeartbeatEcho, Hello, Message, Proof, Unsupported, Welcome
from tiedreq.core.pulse import ACCEPTED, DIALED, SERVING, STEADY, Pulse, Rhythm, RoundTrip

LINK_MESSAGES = frozenset({Hello, Proof, Welcome, Goodbye, Heartbeat, HeartbeatEcho, Unsupported})
"""What the core keeps to itself; everything else is delivered."""

Admit = Callable[[Hello], tuple[str, str] | None]
"""Asked once the other side is proven: None, or the code and the reason of a refusal. Must not raise."""

_OPENING = (LinkState.GREETING, LinkState.PROVING, LinkState.WELCOMING)
_CONNECTED = (*_OPENING, LinkState.UP)
_DIALING_OR_CONNECTED = (LinkState.DIALING, *_CONNECTED)
_UNKNOWN_ANSWERED_PER_FRAME = 4


class LinkCore:
    """One side of one link: a dialer's slot, or one accepted connection.

    ``expected_name`` (dialer) is the only name that is accepted. ``retry_refused`` (dialer): go on after a refusal that
    only a change of configuration can lift. ``rng`` makes challenges, so in production it is ``random.SystemRandom``.
    """

    def __init__(
        self,
        side: LinkSide,
        timing: LinkTiming,
        authenticator: Authenticator,
        rng: Random,
        next_epoch: Callable[[], int],
        *,
        dialing: bool,
        expected_name: str | None = None,
        retry_refused: bool = True,
        admit: Admit | None = None,
    ) -> None:
        self.side = side
        self.timing = timing
        self.dialing = dialing
        self.expected_name = expected_name
        self.epoch = 0
        self.peer: Hello | None = None
        self.failures = 0
        self.stale_events = 0
        self.unknown_received = 0
        self.unsupported_told = 0
        self._table = DIALER_TABLE if dialing else ACCEPTOR_TABLE
        self._state = self._table.initial
        self._authenticator = authenticator
        self._rng = rng
        self._next_epoch = next_epoch
        self._retry_refused = retry_refused
        self._admit = admit
        self._own_hello: Hello | None = None
        self._met_incarnation: int | None = None
        self._deadline = 0.0  # of the dial or the handshake, or the end of the back-off
        self._up_since = 0.0
        self._heard_beyond_handshake = False
        self._pulse: Pulse | None = None  # while up, and what it measured last
        self._stepped_at: float | None = None
        self._handlers: dict[type, Callable[..., None]] = {
            events.LinkWanted: self._wanted,
            events.TransportConnected: self._connected,
            events.DialFailed: self._dial_failed,
            events.FrameArrived: self._frame_arrived,
            events.ViolationFound: self._violation_found,
            events.TransportLost: self._transport_lost,
            events.TimePassed: self._time_passed,
            events.CloseRequested: self._close_requested,
            events.DropRequested: self._drop_requested,
        }

    @property
    def state(self) -> LinkState:
        """Where the link is."""
        return self._state

    @property
    def up(self) -> bool:
        """True between AnnounceUp and AnnounceDown."""
        return self._state is LinkState.UP

    @property
    def round_trip(self) -> RoundTrip | None:
        """What the heartbeats of this connection measured; None while the link is not up."""
        return self._pulse.round_trip if self._pulse is not None and self.up else None

    @property
    def takes_chunks(self) -> bool:
        """True once the other side is proven: what it sends may be put together from chunks."""
        if self._state is LinkState.PROVING:
            return self.dialing
        return self._state in (LinkState.WELCOMING, LinkState.UP)

    @property
    def wake_at(self) -> float | None:
        """When the core wants ``TimePassed``; None when time changes nothing."""
        if self._state is LinkState.UP and self._pulse is not None:
            return self._pulse.wake_at
        if self._state in (LinkState.IDLE, LinkState.CLOSED):
            return None
        return self._deadline

    def describe(self) -> str:
        """One line for logs and tests."""
        other = self.peer.name if self.peer is not None else self.expected_name or "?"
        arrow = "->" if self.dialing else "<-"
        return f"{self.side.name or self.side.role} {arrow} {other}: {self._state.value}, epoch {self.epoch}"

    def step(self, event: events.LinkEvent, now: float) -> list[LinkCommand]:
        """Take one event in. ``now`` is monotonic seconds, never less than at the step before."""
        epoch = getattr(event, "epoch", None)
        if epoch is not None and epoch != self.epoch and not self._begins_accepted(event):
            self.stale_events += 1
            return []
        self._forgive_own_stall(now)
        commands: list[LinkCommand] = []
        self._handlers[type(event)](event, now, commands)
        return commands

    def hands_on(self, epoch: int, messages: Sequence[Message], now: float) -> bool:
        """A shortcut for a frame that holds the owner's messages only, on a link that is up.

        True: they are to be delivered, in order, and that was all. False: nothing was done; give the frame to ``step``.
        """
        pulse = self._pulse
        if epoch != self.epoch or self._state is not LinkState.UP or pulse is None or not messages:
            return False
        for message in messages:
            if type(message) in LINK_MESSAGES:
                return False
        self._forgive_own_stall(now)
        pulse.heard(now)
        pulse.used(now)
        self._heard_beyond_handshake = True
        return True

    # ---- opening

    def _begins_accepted(self, event: events.LinkEvent) -> bool:
        return not self.dialing and self._state is LinkState.IDLE and isinstance(event, events.TransportConnected)

    def _wanted(self, event: events.LinkWanted, now: float, out: list[LinkCommand]) -> None:
        self._move(LinkTrigger.WANTED)
        self._dial(now, out)

    def _dial(self, now: float, out: list[LinkCommand]) -> None:
        self.epoch = self._next_epoch()
        self._deadline = now + self.timing.dial_timeout
        out.append(commands.Dial(self.epoch))

    def _connected(self, event: events.TransportConnected, now: float, out: list[LinkCommand]) -> None:
        self._move(LinkTrigger.CONNECTED)
        self._deadline = now + self.timing.handshake_timeout
        self.peer = None
        if self.dialing:
            self._own_hello = self._hello()
            out.append(commands.Transmit(self.epoch, self._own_hello))
        else:
            self.epoch = self._next_epoch()

    def _dial_failed(self, event: events.DialFailed, now: float, out: list[LinkCommand]) -> None:
        self._move(LinkTrigger.DIAL_FAILED)
        out.append(commands.AnnounceFailure(self.epoch, event.code, event.reason, lasting=False))
        self._retire(now)

    def _hello(self) -> Hello:
        side = self.side
        challenge = self._rng.randbytes(CHALLENGE_BYTES)
        return Hello(
            side.protocol_min, side.protocol_max, side.cluster, side.role, side.name, side.incarnation, challenge, b""
        )

    def _hello_arrived(self, hello: Hello, now: float, out: list[LinkCommand]) -> None:
        self._expect(LinkTrigger.HELLO_ACCEPTED, hello)
        check_hello(self.side, hello, dialing=self.dialing)
        self.peer = hello
        if self.dialing:
            assert self._own_hello is not None
            dialer, acceptor = self._own_hello, hello
            if not self._authenticator.check(transcript("acceptor", dialer, acceptor), hello.proof):
                raise Refusal("auth", "the tokens differ")
            if self.expected_name not in (None, hello.name):
                raise Refusal("identity", "another replica was expected at this address")
            self._ask_owner(hello)
            answer: Message = Proof(self._authenticator.make(transcript("dialer", dialer, acceptor)))
        else:
            bare = self._hello()
            answer = bare._replace(proof=self._authenticator.make(transcript("acceptor", hello, bare)))
            self._own_hello = bare
        self._move(LinkTrigger.HELLO_ACCEPTED)
        out.append(commands.Transmit(self.epoch, answer))

    def _ask_owner(self, proven: Hello) -> None:
        """Raises ``Refusal`` when the owner does not want the other side, which has proven who it is."""
        refused = self._admit(proven) if self._admit is not None else None
        if refused is not None:
            raise Refusal(*refused)

    def _proof_arrived(self, message: Proof, now: float, out: list[LinkCommand]) -> None:
        self._expect(LinkTrigger.CLIENT_PROVEN, message)
        assert self.peer is not None and self._own_hello is not None
        if not self._authenticator.check(transcript("dialer", self.peer, self._own_hello), message.proof):
            raise Refusal("auth", "the tokens differ")
        self._ask_owner(self.peer)
        out.append(commands.TransmitWelcome(self.epoch))
        if self.peer.role == "replica":
            self._move(LinkTrigger.REPLICA_PROVEN)
        else:
            self._move(LinkTrigger.CLIENT_PROVEN)
            self._come_up(None, now, out)

    def _welcome_arrived(self, message: Welcome, now: float, out: list[LinkCommand]) -> None:
        self._expect(LinkTrigger.WELCOMED, message)
        self._move(LinkTrigger.WELCOMED)
        if self.dialing and self.side.role == "replica":
            out.append(commands.TransmitWelcome(self.epoch))
        self._come_up(message, now, out)

    def _come_up(self, welcome: Welcome | None, now: float, out: list[LinkCommand]) -> None:
        assert self.peer is not None
        self._up_since = now
        self._heard_beyond_handshake = False
        self._pulse = Pulse(self.timing, now, rhythm=self._rhythm(self.peer))
        out.append(commands.AnnounceUp(self.epoch, self.peer, welcome, self._met_incarnation))
        self._met_incarnation = self.peer.incarnation
        self._heartbeat(self._pulse, now, out)

    def _rhythm(self, peer: Hello) -> Rhythm:
        if self.side.role == "client":
            return STEADY
        if peer.role == "client":
            return SERVING
        return DIALED if self.dialing else ACCEPTED

    # ---- what arrives

    def _frame_arrived(self, event: events.FrameArrived, now: float, out: list[LinkCommand]) -> None:
        if self._state not in _CONNECTED:
            raise UnknownTransition(f"{self.describe()}: a frame without a connection")
        if self._pulse is not None:
            self._pulse.heard(now)
        waiting: list[Message] = []
        try:
            for message in event.messages:
                if type(message) not in LINK_MESSAGES:
                    self._expect_up(message)
                    waiting.append(message)
                    if self._pulse is not None:
                        self._pulse.used(now)
                    continue
                if waiting and type(message) not in (Heartbeat, HeartbeatEcho):
                    out.append(commands.Deliver(event.epoch, tuple(waiting)))
                    waiting.clear()
                self._link_message(message, now, out)
                if self.epoch != event.epoch:
                    return
        except RemoteViolation as violation:
            self._flush(event.epoch, waiting, out)
            self._leave("protocol", str(violation), now, out)
            return
        except Refusal as refusal:
            self._leave(refusal.code, refusal.reason, now, out)
            return
        self._flush(event.epoch, waiting, out)
        self._answer_unknown(event.unknown_types, out)

    def _link_message(self, message: Message, now: float, out: list[LinkCommand]) -> None:
        match message:
            case Heartbeat(number):
                self._expect_up(message)
                out.append(commands.Transmit(self.epoch, HeartbeatEcho(number)))
            case HeartbeatEcho(number):
                self._expect_up(message)
                if self._pulse is not None:
                    self._pulse.echoed(number, now)
            case Hello():
                self._hello_arrived(message, now, out)
            case Proof():
                self._proof_arrived(message, now, out)
            case Welcome():
                self._welcome_arrived(message, now, out)
            case Goodbye(code, reason):
                out.append(commands.CloseTransport(self.epoch, code, f"the other side says: {reason}", abrupt=False))
                self._end(code, reason, now, out, by_peer=True)
            case Unsupported():
                self.unsupported_told += 1

    def _answer_unknown(self, unknown_types: tuple[int, ...], out: list[LinkCommand]) -> None:
        self.unknown_received += len(unknown_types)
        if self.up:
            out += [
                commands.Transmit(self.epoch, Unsupported(code)) for code in unknown_types[:_UNKNOWN_ANSWERED_PER_FRAME]
            ]

    def _expect(self, trigger: LinkTrigger, message: Message) -> None:
        if not self._table.allows(self._state, trigger):
            raise RemoteViolation(f"{type(message).__name__} while {self._state.value}")

    def _expect_up(self, message: Message) -> None:
        if self._state is not LinkState.UP:
            raise RemoteViolation(f"{type(message).__name__} before the handshake was over")
        self._heard_beyond_handshake = True

    @staticmethod
    def _flush(epoch: int, waiting: list[Message], out: list[LinkCommand]) -> None:
        if waiting:
            out.append(commands.Deliver(epoch, tuple(waiting)))

    # ---- time

    def _time_passed(self, event: events.TimePassed, now: float, out: list[LinkCommand]) -> None:
        wake_at = self.wake_at
        if wake_at is None or now < wake_at:
            return
        if self._state is LinkState.UP and self._pulse is not None:
            silence = self._pulse.silence(now)
            if silence is not None:
                out.append(commands.CloseTransport(self.epoch, "silent", "the other side fell silent", abrupt=True))
                self._end("silent", f"nothing was heard for {silence:.3g} s", now, out)
            else:
                self._heartbeat(self._pulse, now, out)
        elif self._state is LinkState.BACKING_OFF:
            self._move(LinkTrigger.RETRY_DUE)
            self._dial(now, out)
        elif self._state is LinkState.DIALING:
            out.append(commands.CloseTransport(self.epoch, "timeout", "dialing took too long", abrupt=True))
            self._dial_failed(
                events.DialFailed(self.epoch, f"no connection within {self.timing.dial_timeout:g} s"), now, out
            )
        else:
            self._leave("timeout", f"no handshake within {self.timing.handshake_timeout:g} s", now, out)

    def _heartbeat(self, pulse: Pulse, now: float, out: list[LinkCommand]) -> None:
        number = pulse.due(now)
        if number is not None:
            out.append(commands.Transmit(self.epoch, Heartbeat(number)))

    def _forgive_own_stall(self, now: float) -> None:
        """Move the limits on the other side by as long as our own loop stood still."""
        wake_at, stepped_at = self.wake_at, self._stepped_at
        self._stepped_at = now
        if wake_at is None or stepped_at is None or self._state not in _DIALING_OR_CONNECTED:
            return
        late = now - max(wake_at, stepped_at)
        if late <= self.timing.heartbeat_interval / 2:
            return
        grace = min(self.timing.silence_max, self.timing.handshake_timeout)
        self._deadline = max(self._deadline + late, now + grace)
        if self._pulse is not None:
            self._pulse.forgive(late, now)

    # ---- ending

    def _violation_found(self, event: events.ViolationFound, now: float, out: list[LinkCommand]) -> None:
        self._leave("protocol", event.reason, now, out)

    def _transport_lost(self, event: events.TransportLost, now: float, out: list[LinkCommand]) -> None:
        if self._state is LinkState.DIALING:
            self._dial_failed(events.DialFailed(event.epoch, event.reason), now, out)
            return
        out.append(commands.CloseTransport(self.epoch, "lost", event.reason, abrupt=True))
        self._end("lost", event.reason, now, out)

    def _drop_requested(self, event: events.DropRequested, now: float, out: list[LinkCommand]) -> None:
        self._leave(event.code, event.reason, now, out)

    def _close_requested(self, event: events.CloseRequested, now: float, out: list[LinkCommand]) -> None:
        was = self._state
        epoch = self.epoch
        self._move(LinkTrigger.CLOSE_REQUESTED)
        self.epoch = 0
        if was in _CONNECTED:
            out.append(commands.Transmit(epoch, goodbye(event.code, event.reason)))
        if was in _DIALING_OR_CONNECTED:
            out.append(commands.CloseTransport(epoch, event.code, event.reason, abrupt=was is LinkState.DIALING))
        if was is LinkState.UP:
            out.append(commands.AnnounceDown(epoch, event.code, event.reason, by_peer=False))

    def _leave(self, code: str, reason: str, now: float, out: list[LinkCommand]) -> None:
        """End the connection from this side, and say why."""
        if self._state not in _CONNECTED:
            raise UnknownTransition(f"{self.describe()}: {code} without a connection")
        out.append(commands.Transmit(self.epoch, goodbye(code, reason)))
        out.append(commands.CloseTransport(self.epoch, code, reason, abrupt=False))
        self._end(code, reason, now, out)

    def _end(self, code: str, reason: str, now: float, out: list[LinkCommand], *, by_peer: bool = False) -> None:
        epoch, was_up = self.epoch, self.up
        lasting = code in LASTING_CODES and not was_up
        for_good = lasting and self.dialing and not self._retry_refused
        self._move(LinkTrigger.REFUSED_FOR_GOOD if for_good else LinkTrigger.ENDED)
        if was_up:
            if self._heard_beyond_handshake and now - self._up_since >= self.timing.useful_after:
                self.failures = 0
            out.append(commands.AnnounceDown(epoch, code, reason, by_peer))
        else:
            out.append(commands.AnnounceFailure(epoch, code, reason, lasting))
        self._retire(now)

    def _retire(self, now: float) -> None:
        """The epoch is over; a dialer waits before the next."""
        self.epoch = 0
        self._own_hello = None
        if self._state is LinkState.BACKING_OFF:
            self.failures += 1
            self._deadline = now + backoff(self.timing, self.failures, self._rng)

    def _move(self, trigger: LinkTrigger) -> None:
        self._state = self._table.next(self._state, trigger)
