"""Broken links: each breaks one rule of a link (design sections 4 and 7)."""

from __future__ import annotations

from typing import Any

from tiedreq.core import link_events as events
from tiedreq.core.link import LinkCore
from tiedreq.core.link_commands import LinkCommand
from tiedreq.core.link_rules import backoff
from tiedreq.core.link_table import LinkState
from tiedreq.core.messages import Heartbeat, Message, Welcome
from tiedreq.core.pulse import Pulse


class OldEpochsAreHeeded(LinkCore):
    """4, epoch: what is told of a connection before counts as news of this one."""

    def step(self, event: events.LinkEvent, now: float) -> list[LinkCommand]:
        if self.epoch and getattr(event, "epoch", self.epoch) != self.epoch:
            event = event._replace(epoch=self.epoch)  # type: ignore[union-attr]  # those without were sorted out
        return super().step(event, now)


class AnyTokenWillDo(LinkCore):
    """4: a proof is believed whatever token it was made with."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._authenticator = _Gullible(self._authenticator)


class _Gullible:
    def __init__(self, real: Any) -> None:
        self.make = real.make
        self._real = real

    def check(self, transcript: bytes, proof: bytes) -> bool:
        self._real.check(transcript, proof)
        return True


class SilenceIsNotNoticed(Pulse):
    """7: a peer that says nothing is never taken for lost."""

    @property
    def wake_at(self) -> float:
        return self._due_at

    def silence(self, now: float) -> float | None:
        return None


class OneMissIsSilence(Pulse):
    """7: a peer is lost when it misses one heartbeat, not after a few intervals."""

    @property
    def wake_at(self) -> float:
        return min(self._due_at, self._last_heard + 1.5 * self._timing.heartbeat_interval)

    def silence(self, now: float) -> float | None:
        silent = now >= self._last_heard + 1.5 * self._timing.heartbeat_interval
        return now - self._last_heard if silent else None


class NoHeartbeats(Pulse):
    """7: no heartbeats are sent, so that an idle link looks silent, and no round trip is measured."""

    def due(self, now: float) -> int | None:
        super().due(now)
        return None


class HeartbeatsAreNotAnswered(LinkCore):
    """7: a heartbeat of the other side is not answered."""

    def _link_message(self, message: Message, now: float, out: list[LinkCommand]) -> None:
        if isinstance(message, Heartbeat):
            self._expect_up(message)
        else:
            super()._link_message(message, now, out)


class OwnStallIsSilence(LinkCore):
    """7: when its own loop stood still, a link takes the other side for silent."""

    def _forgive_own_stall(self, now: float) -> None:
        pass


class NeverDialedAgain(LinkCore):
    """7: a link that was lost is not dialed again."""

    def _time_passed(self, event: events.TimePassed, now: float, out: list[LinkCommand]) -> None:
        if self._state is LinkState.BACKING_OFF:
            self._deadline = now + 3_600.0
        else:
            super()._time_passed(event, now, out)


class BackoffWithoutJitter(LinkCore):
    """7: two dialers that lost their links together dial together, again and again."""

    def _retire(self, now: float) -> None:
        super()._retire(now)
        if self._state is LinkState.BACKING_OFF:
            whole = self.timing.backoff_first * 2.0 ** min(self.failures - 1, 60)
            self._deadline = now + min(self.timing.backoff_max, whole)


class BackoffDoesNotGrow(LinkCore):
    """7: the wait is the same after any number of failures."""

    def _retire(self, now: float) -> None:
        super()._retire(now)
        if self._state is LinkState.BACKING_OFF:
            self._deadline = now + backoff(self.timing, 1, self._rng)


class BackoffResetsAtOnce(LinkCore):
    """7: the back-off begins anew after a link that was up and of no use."""

    def _end(self, code: str, reason: str, now: float, out: list[LinkCommand], *, by_peer: bool = False) -> None:
        if self.up:
            self.failures = 0
        super()._end(code, reason, now, out, by_peer=by_peer)


class BackoffNeverResets(LinkCore):
    """7: the back-off goes on where it was, however useful the link has been."""

    def _end(self, code: str, reason: str, now: float, out: list[LinkCommand], *, by_peer: bool = False) -> None:
        failures = self.failures
        super()._end(code, reason, now, out, by_peer=by_peer)
        if self._state is LinkState.BACKING_OFF:
            self.failures = failures + 1
            self._deadline = now + backoff(self.timing, self.failures, self._rng)


class IncarnationIsForgotten(LinkCore):
    """7: it is not told that the peer is another incarnation than the one before."""

    def _come_up(self, welcome: Welcome | None, now: float, out: list[LinkCommand]) -> None:
        self._met_incarnation = None
        super()._come_up(welcome, now, out)
