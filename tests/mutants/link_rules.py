"""Rules of a link (design sections 4 and 7), judged from outside as it lives: who is believed, what is old, when a peer
counts as silent, and how long a dialer waits. Broken rules raise ``BadStep``.

``Ruled`` links can stand in for ``LinkCore`` anywhere: in the real drivers, and in the small world of ``link_world``.
"""

from __future__ import annotations

from typing import Any

from tests.mutants.replica_rules import BadStep, Telling, need
from tiedreq.core import link_commands as c
from tiedreq.core import link_events as e
from tiedreq.core.link import LinkCore
from tiedreq.core.link_options import Authenticator
from tiedreq.core.link_table import LinkState
from tiedreq.core.messages import Goodbye, Heartbeat, HeartbeatEcho, Unsupported

CLOSE = 1e-9
OPEN = (LinkState.GREETING, LinkState.PROVING, LinkState.WELCOMING, LinkState.UP)


class Recording:
    """An authenticator that remembers what it said of the last proof."""

    def __init__(self, real: Authenticator) -> None:
        self.real = real
        self.believed = False

    def make(self, transcript: bytes) -> bytes:
        return self.real.make(transcript)

    def check(self, transcript: bytes, proof: bytes) -> bool:
        self.believed = self.real.check(transcript, proof)
        return self.believed


def ruled_link(kind: type[LinkCore]) -> type[LinkCore]:
    """That core; a broken rule is told to ``broken``."""

    class Ruled(Telling, kind):  # type: ignore[misc, valid-type]  # a class that is made at run time
        def __init__(self, side: Any, timing: Any, authenticator: Authenticator, *others: Any, **options: Any) -> None:
            self.recording = Recording(authenticator)
            self.judge: Judge | None = None
            super().__init__(side, timing, self.recording, *others, **options)

        def step(self, event: e.LinkEvent, now: float) -> list[c.LinkCommand]:
            if self.judge is None:
                self.judge = Judge(self, self.recording)
            self.judge.before(event, now)
            commands: list[c.LinkCommand] = super().step(event, now)
            try:
                self.judge.after(event, commands, now)
            except BadStep as error:
                self.broken(error)
            return commands

        def hands_on(self, epoch: int, messages: Any, now: float) -> bool:
            """Never: each frame is a step, and is judged; tests/link/test_shortcut.py shows that it is the same."""
            return False

    return Ruled


class Judge:
    """What is known of one link, and what follows from it."""

    def __init__(self, core: LinkCore, recording: Recording) -> None:
        self.core, self.recording = core, recording
        self.up_epoch = 0
        self.up_since = self.heard_at = self.beat_at = 0.0
        self.asked_at = float("-inf")  # the first heartbeat since anything was heard
        self.heard = self.late = self.excused = self.stale = False
        self.useless = 0
        self.met: int | None = None
        self.stepped_at: float | None = None
        self.was: tuple[Any, ...] = ()

    def _facts(self) -> tuple[Any, ...]:
        core = self.core
        return (core.state, core.epoch, core.failures, core.wake_at)

    def before(self, event: e.LinkEvent, now: float) -> None:
        """A step is about to be taken."""
        core = self.core
        epoch = getattr(event, "epoch", None)
        begins = not core.dialing and core.state is LinkState.IDLE and isinstance(event, e.TransportConnected)
        self.stale = epoch is not None and epoch != core.epoch and not begins
        self.was = self._facts()
        self.late = False
        if self.stale:
            return
        wake_at, at = core.wake_at, self.stepped_at
        self.stepped_at = now
        if wake_at is not None and at is not None and core.state in (LinkState.DIALING, *OPEN):
            self.late = now - max(wake_at, at) > core.timing.heartbeat_interval / 2
        self.excused = self.excused or self.late

    def after(self, event: e.LinkEvent, commands: list[c.LinkCommand], now: float) -> None:
        """The step was taken."""
        state = self.was[0]
        if self.stale:
            need(not commands and self._facts() == self.was, "4, epoch", f"{type(event).__name__} of an old epoch")
            return
        if isinstance(event, e.FrameArrived) and state is LinkState.UP:
            self.heard_at, self.excused = now, self.late
            self.asked_at = float("-inf")
            self.heard = self.heard or any(type(message) not in (Goodbye, Unsupported) for message in event.messages)
            self._echoes(event, commands)
        for command in commands:
            self._said(command, now)
        self._while_up(event, now)
        if self.core.state is LinkState.BACKING_OFF:
            self._back_off(state, event, now)

    def _echoes(self, event: e.FrameArrived, commands: list[c.LinkCommand]) -> None:
        asked = [message.number for message in event.messages if isinstance(message, Heartbeat)]
        sent = [command.message for command in commands if isinstance(command, c.Transmit)]
        told = [message.number for message in sent if isinstance(message, HeartbeatEcho)]
        need(told == asked or not self.core.up, "7", "a heartbeat is not answered")

    def _said(self, command: c.LinkCommand, now: float) -> None:
        core = self.core
        if isinstance(command, c.Transmit) and isinstance(command.message, Heartbeat):
            self.beat_at = now
            if self.asked_at < self.heard_at:
                self.asked_at = now
        elif isinstance(command, c.AnnounceUp):
            need(not self.up_epoch and command.epoch == core.epoch, "7", "up twice, or with another epoch")
            need(self.recording.believed, "4", "up with one who has not proven to hold the token")
            need(command.previous_incarnation == self.met, "7", "another incarnation is not told from the one before")
            self.up_epoch, self.met = command.epoch, command.peer.incarnation
            self.up_since = self.heard_at = now
            self.asked_at = float("-inf")
            self.heard = self.excused = False
        elif isinstance(command, c.Deliver):
            need(command.epoch == self.up_epoch, "7", "a message is delivered while the link is not up")
        elif isinstance(command, c.AnnounceDown):
            need(command.epoch == self.up_epoch, "7", "down with another epoch")
            self.up_epoch = 0
            if command.code == "silent":
                need(not self.late, "7", "a stall of its own is taken for silence")
                quiet = now - self.heard_at
                need(quiet >= core.timing.silence_max - CLOSE or self.excused, "7", f"silent after {quiet:g} s")
            self.useless = 0 if self.heard and now - self.up_since >= core.timing.useful_after else self.useless
        if not core.epoch or isinstance(command, c.Dial):
            self.recording.believed = False

    def _while_up(self, event: e.LinkEvent, now: float) -> None:
        core, timing = self.core, self.core.timing
        if not core.up or self.excused or core.wake_at is None:
            return
        interval = timing.heartbeat_interval
        in_mesh = core.side.role == "replica" and core.peer is not None and core.peer.role == "replica"
        limit = self.heard_at + timing.silence_max
        if in_mesh:
            limit = max(limit, self.asked_at + timing.silence_max - interval)
        need(core.wake_at <= limit + CLOSE, "7", "no timer for silence")
        need(now < limit or not isinstance(event, e.TimePassed), "7", "silence is not noticed")
        if core.dialing or (core.peer is not None and core.peer.role == "replica"):
            due = self.beat_at + interval
            if in_mesh:  # it may be at rest
                due = max(due, min(max(self.heard_at, self.beat_at) + 2.5 * interval, self.beat_at + 4 * interval))
            need(core.wake_at <= due + CLOSE, "7", "no timer for a heartbeat")
            need(now < due or not isinstance(event, e.TimePassed), "7", "no heartbeat is sent")

    def _back_off(self, was: LinkState, event: e.LinkEvent, now: float) -> None:
        core, timing = self.core, self.core.timing
        assert core.wake_at is not None
        if was is LinkState.BACKING_OFF:
            need(now < core.wake_at or not isinstance(event, e.TimePassed), "7", "it is never dialed again")
            return
        self.useless += 1
        whole = min(timing.backoff_max, timing.backoff_first * 2.0 ** min(self.useless - 1, 60))
        share = (core.wake_at - now) / whole
        need(0.5 - CLOSE <= share < 1, "7", f"waits {share:.3f} of {whole:g} s after {self.useless} useless attempts")
