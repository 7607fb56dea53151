"""The driver of a link: runs a LinkCore over transports, one connection after another.

Per connection there is exactly one task that writes (it takes the whole outbox, a frame at a time) and one that reads
(it decodes and calls the owner's synchronous callbacks). Nothing but tear-down interrupts a send, and a connection
whose send was interrupted is never used again. All decisions are ``LinkCore``'s.

The owner's callbacks run in the link's own tasks, between two awaits. They may call anything synchronous of the link,
must not take long, and must not raise: one that does ends that connection with Goodbye("internal") and is logged.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import trio

from tiedreq.core import link_commands as commands
from tiedreq.core import link_events as events
from tiedreq.core.errors import RemoteViolation, UsageError
from tiedreq.core.link import LinkCore
from tiedreq.core.link_table import LinkState
from tiedreq.core.messages import Hello, Message, Welcome
from tiedreq.core.types import CopyId
from tiedreq.errors import AuthRefused, ConnectError, VersionMismatch
from tiedreq.net import outbox_waits
from tiedreq.net.alarm import Alarm
from tiedreq.net.bell import Bell
from tiedreq.net.edge import no_groups
from tiedreq.net.frames import FrameDecoder
from tiedreq.net.link_owner import LinkDown, LinkOptions, LinkOwner, LinkUp
from tiedreq.net.outbox import Outbox
from tiedreq.net.quiet import QuietLog
from tiedreq.net.sending import Sending
from tiedreq.net.transport import CLOSE_SECONDS, Transport, TransportClosed
from tiedreq.wire.limits import PAYLOAD_BYTES_MAX, WireLimits, wire_limits

logger = logging.getLogger("tiedreq.link")

Connect = Callable[[], AbstractAsyncContextManager[Transport]]
"""Makes a transport for as long as its block runs; raises ``ConnectError``."""

_quiet = QuietLog(logger)
_ERRORS = {"auth": AuthRefused, "cluster": AuthRefused, "version": VersionMismatch}
_CLOSE_CODES = {"protocol": 1002, "internal": 1011, "closed": 1001}
_CLOSE_CODE_OTHERWISE = 1008


class Link:
    """One side of one link. Made by ``net.link_ends``; ``run_…`` runs in the owner's nursery."""

    def __init__(
        self,
        core: LinkCore,
        owner: LinkOwner,
        options: LinkOptions,
        welcome: Callable[[], Welcome] | None,
        label: str,
    ) -> None:
        self.label = label
        self.last_error: ConnectError | None = None
        self._core = core
        self._owner = owner
        self._options = options
        self._make_welcome = welcome
        self._decoder = self._new_decoder(options.wire)
        outbox = Outbox(options.outbox, options.wire)
        outbox.close()
        self.sending = Sending(outbox, options.when_full, self._too_slow)
        """The way out of this link, for owners that send much."""
        self.statistics = self.sending.statistics
        self._scope: trio.CancelScope | None = None  # of the dial or the connection
        self._moved = Bell()
        self._alarm = Alarm(lambda: core.wake_at, lambda: self._step(events.TimePassed()))
        self._pending: deque[events.LinkEvent] = deque()
        self._stepping = False
        self._close_words = (_CLOSE_CODE_OTHERWISE, "")

    def __repr__(self) -> str:
        where = f" ({self.label})" if self.label else ""
        return f"<Link {self._core.describe()}{where}>"

    # ---- for the owner

    @property
    def _outbox(self) -> Outbox:
        return self.sending.outbox

    @property
    def when_full(self) -> str:
        """As in ``LinkOptions``; an acceptor's owner may choose it in ``on_up``, once it knows the role."""
        return self.sending.when_full

    @when_full.setter
    def when_full(self, when_full: str) -> None:
        self.sending.when_full = when_full

    @property
    def id(self) -> int:
        """The id of the connection that is up, or 0; as in ``LinkUp.link_id``."""
        return self.sending.up_id

    @property
    def up(self) -> bool:
        """True when ``send`` may succeed."""
        return self.sending.up_id != 0

    @property
    def state(self) -> LinkState:
        """Where the link is; ``CLOSED`` is for good."""
        return self._core.state

    @property
    def peer(self) -> Hello | None:
        """The other side as it was met last; None before that."""
        return self._core.peer

    @property
    def round_trip(self) -> float | None:
        """Smoothed mean, in seconds; None while unknown."""
        return None if (measured := self._core.round_trip) is None else measured.mean

    @property
    def round_trip_deviation(self) -> float | None:
        """Smoothed mean deviation of the round trip, in seconds; None while unknown."""
        return None if (measured := self._core.round_trip) is None else measured.deviation

    @property
    def round_trip_min(self) -> float | None:
        """The least round trip of this connection, in seconds; None while unknown."""
        return None if (measured := self._core.round_trip) is None else measured.minimum

    @property
    def messages_waiting(self) -> int:
        """Messages that are not written yet."""
        return len(self._outbox)

    @property
    def bytes_waiting(self) -> int:
        """Their encoded bytes."""
        return self._outbox.small_bytes + self._outbox.bulk_bytes

    @property
    def unsupported_seen(self) -> int:
        """Messages that arrived with a type that nobody here knows."""
        return self._core.unknown_received

    def send(self, message: Message) -> bool:
        """Let ``message`` be written soon; False when the link is down or its outbox is full (``when_full``).

        Raises ``UsageError`` (``BadOption``, ``TooLarge``) for a message that the other side would refuse.
        """
        return self.sending.send(message)

    def discard(self, copy: CopyId) -> bool:
        """Take back a Submit that has not left; False when it has."""
        return self.sending.discard(copy)

    async def room(self, size: int, spare: int = 0) -> bool:
        """Wait until a message of ``size`` to ``size + spare`` encoded bytes may be sent without crowding out those
        that can't wait; False when this connection is over.

        Call ``send`` without waiting in between.
        """
        return await outbox_waits.room(self._outbox, size, spare)

    def has_room(self, size: int, spare: int = 0) -> bool:
        """True when ``room`` would not wait."""
        return self._outbox.has_room(size, spare)

    async def left(self, copy: CopyId) -> None:
        """Wait until no item of ``copy`` waits in a lane where smaller messages pass it, or the connection is over."""
        await outbox_waits.left(self._outbox, copy)

    async def flush(self, timeout: float) -> bool:
        """Wait until all that was sent is handed to the transport; False after ``timeout`` seconds or once lost."""
        with trio.move_on_after(timeout):
            return await outbox_waits.drained(self._outbox)
        return False

    def close(self, code: str = "closed", reason: str = "") -> None:
        """End the link for good; the other side hears why. ``run_…`` returns soon after. Idempotent."""
        self._step(events.CloseRequested(code, reason))

    def drop(self, code: str, reason: str) -> None:
        """End this connection; a dialer makes another. Does nothing while there is none."""
        if self._core.epoch and self._core.state is not LinkState.DIALING:
            self._step(events.DropRequested(self._core.epoch, code, reason))

    # ---- running

    async def run_dialer(self, connect: Connect) -> None:
        """Keep the link up until it is closed, or refused for good with ``retry_refused`` off (see ``last_error``)."""
        if self._over():
            return
        try:
            async with _helpers() as nursery:
                nursery.start_soon(self._alarm.run)
                self._step(events.LinkWanted())
                while not self._over():
                    if self._core.state is LinkState.DIALING:
                        await self._dial(connect, self._core.epoch)
                    else:
                        await self._moved.wait()
        finally:
            self.close()

    async def run_accepted(self, transport: Transport) -> None:
        """Serve one accepted connection until it ends."""
        if self._over():
            return
        try:
            async with _helpers() as nursery:
                nursery.start_soon(self._alarm.run)
                await self._run_connection(transport, 0)
        finally:
            self.close()

    def _over(self) -> bool:
        return self._core.state is LinkState.CLOSED

    async def _dial(self, connect: Connect, epoch: int) -> None:
        with trio.CancelScope() as self._scope:
            try:
                async with connect() as transport:
                    await self._run_connection(transport, epoch)
            except UsageError:
                raise
            except Exception as error:
                if not isinstance(error, ConnectError):
                    _quiet.log("dial", logging.ERROR, "%s: dialing failed in an unexpected way", self, error=error)
                code = "auth" if isinstance(error, AuthRefused) else "unreachable"
                self._step(events.DialFailed(epoch, str(error), code))

    async def _run_connection(self, transport: Transport, epoch: int) -> None:
        """From the first byte to the end of the tear-down, which is bounded."""
        self.sending.outbox = Outbox(self._options.outbox, self._options.wire)
        try:
            async with trio.open_nursery() as nursery:
                self._scope = nursery.cancel_scope
                self._step(events.TransportConnected(epoch))
                epoch = self._core.epoch
                nursery.start_soon(self._write, transport, self._outbox, epoch)
                await self._read(transport, epoch)
                nursery.cancel_scope.cancel()
        except* Exception as group:
            _quiet.log("failed", logging.ERROR, "%s failed", self, error=group)
        finally:
            self._step(events.TransportLost(epoch, "the connection was given up here"))
            self._outbox.close()
            self._decoder.close()
            transport.abort()

    async def _write(self, transport: Transport, outbox: Outbox, epoch: int) -> None:
        """The only task that sends on ``transport``. Ends by closing it when the outbox is closed."""
        try:
            while True:
                await outbox_waits.anything(outbox)
                frame = outbox.take_frame()
                if frame is not None:
                    await transport.send_frame(frame)
                    outbox.written()
                    self.statistics.frames_sent += 1
                    self.statistics.bytes_sent += len(frame)
                elif outbox.closed:
                    break
        except TransportClosed as error:
            await trio.sleep(CLOSE_SECONDS)  # for the reader: a Goodbye may have arrived, which says more than this
            self._step(events.TransportLost(epoch, str(error)))
        await transport.aclose(*self._close_words)

    async def _read(self, transport: Transport, epoch: int) -> None:
        """Decode what arrives until the transport is closed; what comes after the end of ``epoch`` changes nothing."""
        statistics, self._decoder = self.statistics, self._new_decoder(self._options.wire)
        while (frame := await transport.receive_frame()) is not None:
            statistics.frames_received += 1
            statistics.bytes_received += len(frame)
            try:
                decoded = self._decoder.decode(frame, takes_chunks=self._core.takes_chunks)
            except RemoteViolation as violation:
                self._step(events.ViolationFound(epoch, str(violation)))
            else:
                messages = decoded.messages
                statistics.messages_received += len(messages)
                if not decoded.unknown_types and self._core.hands_on(epoch, messages, trio.current_time()):
                    self._hand_on(messages)
                else:
                    self._step(events.FrameArrived(epoch, tuple(messages), tuple(decoded.unknown_types)))
        self._step(events.TransportLost(epoch, transport.closed_because or "the other side closed the connection"))

    # ---- between the core and the world

    def _hand_on(self, messages: list[Message]) -> None:
        """What ``Deliver`` would do; events that arise meanwhile wait here, too."""
        self._stepping = True
        try:
            self._owner.on_messages(self, messages)
        except Exception as error:
            self._owner_failed(error)
        finally:
            self._stepping = False
        if self._pending:
            self._step_pending()

    def _step(self, event: events.LinkEvent) -> None:
        """Give an event to the core and carry out its commands; events that arise meanwhile wait their turn."""
        self._pending.append(event)
        if not self._stepping:
            self._step_pending()

    def _step_pending(self) -> None:
        self._stepping = True
        try:
            while self._pending:
                before = self._core.state
                for command in self._core.step(self._pending.popleft(), trio.current_time()):
                    self._execute(command)
                if self._core.state is not before:
                    self._moved.ring()
        finally:
            self._stepping = False
        self._alarm.check()

    def _execute(self, command: commands.LinkCommand) -> None:
        match command:
            case commands.Deliver(_, messages):
                self._tell(lambda: self._owner.on_messages(self, list(messages)))
            case commands.Transmit(_, message):
                self._outbox.put_link(message)
            case commands.TransmitWelcome():
                assert self._make_welcome is not None  # a client sends none
                welcome = self._make_welcome()
                self._outbox.put_link(welcome)
                self._outbox.agree(welcome.payload_bytes_max)  # unless the other side's own says otherwise
            case commands.AnnounceUp(epoch, peer, peer_welcome, previous):
                self.sending.up_id = epoch
                self.last_error = None
                self.statistics.times_up += 1
                if peer_welcome is not None:
                    self._outbox.agree(peer_welcome.payload_bytes_max)
                    self._take_payloads(peer_welcome.payload_bytes_max)
                self._tell(lambda: self._owner.on_up(self, LinkUp(epoch, peer, peer_welcome, previous)))
            case commands.AnnounceDown(epoch, code, reason, by_peer):
                self.sending.up_id = 0
                self.statistics.times_down += 1
                self._tell(lambda: self._owner.on_down(self, LinkDown(epoch, code, reason, by_peer)))
            case commands.AnnounceFailure(_, code, reason):
                self._failed(code, reason)
            case commands.CloseTransport(_, code, reason, abrupt):
                self._close_transport(code, reason, abrupt)
            case commands.Dial():
                pass  # run_dialer sees the state

    def _take_payloads(self, payload_bytes_max: int) -> None:
        """Take what the other side may send, also if that is more than our own limit: the owner judges it."""
        if self._options.wire.payload_bytes_max < payload_bytes_max <= PAYLOAD_BYTES_MAX:
            self._decoder.close()
            self._decoder = self._new_decoder(wire_limits(payload_bytes_max))

    def _new_decoder(self, wire: WireLimits) -> FrameDecoder:
        return FrameDecoder(wire, self._options.unfinished, self._crowded)

    def _too_slow(self) -> None:
        self.drop("slow", "this side's outbox for the other is full")

    def _crowded(self) -> None:
        self.drop("crowded", "all links together keep too much of unfinished messages, and this one kept the most")

    def _tell(self, callback: Callable[[], None]) -> None:
        try:
            callback()
        except Exception as error:
            self._owner_failed(error)

    def _owner_failed(self, error: Exception) -> None:
        _quiet.log("owner", logging.ERROR, "%s: its owner's callback failed", self, error=error)
        self.drop("internal", "internal error")

    def _failed(self, code: str, reason: str) -> None:
        kind = _ERRORS.get(code, ConnectError)
        if code == "cluster":
            reason += f", not {self._core.side.cluster!r}"
        named = not self.label or reason.startswith(f"{self.label}: ")  # who dials names the address too
        self.last_error = kind(reason if named else f"{self.label}: {reason}")
        self.statistics.failures += 1
        error = self.last_error
        self._tell(lambda: self._owner.on_failure(self, error))

    def _close_transport(self, code: str, reason: str, abrupt: bool) -> None:
        given_up = self._core.dialing and self._over() and code in _ERRORS  # its owner hears why, and may raise it
        if code in ("protocol", "auth", "cluster", "version", "identity", "internal", "slow") and not given_up:
            _quiet.log(code, logging.WARNING, "%s ends (%s): %s", self, code, reason)
        self._close_words = (_CLOSE_CODES.get(code, _CLOSE_CODE_OTHERWISE), code)
        self._outbox.close()
        if self._scope is None:
            return
        if abrupt:
            self._scope.cancel()
        else:
            self._scope.deadline = min(self._scope.deadline, trio.current_time() + CLOSE_SECONDS)


@asynccontextmanager
async def _helpers() -> AsyncIterator[trio.Nursery]:
    """A nursery for tasks that end with the block; what the block raises comes out as it is."""
    with no_groups():
        async with trio.open_nursery() as nursery:
            yield nursery
            nursery.cancel_scope.cancel()
