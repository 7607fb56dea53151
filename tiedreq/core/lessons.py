"""What a client learns of all its methods, and the account that each call keeps with it.

A ``LearningBook`` holds one ``MethodLearning`` per method and ``Backup``: calls with other options learn apart, so that
each pays from its own budget. ``CallAccount`` is one call's side of it: which samples, deposits and tickets its copies
come to. A core without a book (``learning=None``) has neither brake nor learned delays. A ``Backup`` without a
budget learns but is never held back, nor is a tie without a ``Backup``, which names no budget.

Not for what a delay or a budget is (``core.learning``), nor for when a copy is sent (``core.call``). Times are seconds.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tiedreq.core.latency import LatencyEstimator, Law
from tiedreq.core.learning import BackupEnd, BackupTicket, LearningOptions, MethodLearning
from tiedreq.core.names import DONE, DROPPED, FAILED, FIRST, YIELDED
from tiedreq.core.picker import ReplicaView
from tiedreq.core.policy import Backup
from tiedreq.core.sent_copy import SentCopy
from tiedreq.core.throttle import FailureThrottle
from tiedreq.core.types import UNTIED, Cause, CopyId, CopyKind, CopyState

LESSONS_MAX = 256
NO_BUDGET = "no budget: nothing holds these backups back"
UNBRAKED = 1.0
"""What the delay's rule takes as the budget of a ``Backup`` without one."""
WAIT_SHARE = 0.05
"""How much the newest wait counts in the typical one."""
HOLD_SECONDS = 1.0
"""How often the time for which further copies of a tie are held back is computed anew."""
HOLDS_MAX = 64
OUTLASTS_SHARE = 0.5
"""A second copy goes only where a wait outlasts the news of a start at least so often."""
NEWS_STEP = 0.0005
"""News that takes about as long has the same hold, in seconds."""
DEFAULT_BACKUP = Backup()


class Lesson(MethodLearning):
    """What is known of one method under one ``Backup``, with what is known of waits in queues.

    ``wait`` is the typical one. ``waits`` is their law, from first copies alone: one that was dropped, or never started
    at all, is a censored sample, as in ``core.latency``.
    """

    def __init__(self, options: LearningOptions, now: float) -> None:
        super().__init__(options, now)
        self.wait = 0.0
        self.waits = LatencyEstimator(window=options.window, samples_min=options.samples_min)
        self._holds: dict[int, float] = {}
        self._holds_due = now
        self._waits_law: Law | None = None

    def waited(self, queue_wait: float) -> None:
        """A copy that answered had waited that long before it started."""
        self.wait += WAIT_SHARE * (queue_wait - self.wait)

    def hold(self, now: float, news: float = 0.0) -> float:
        """Seconds that a share ``budget`` of first copies waits longer than; 0 as long as nothing is known.

        A second copy that is sent no earlier can't cost much: few calls have one. And the calls that wait longest, at
        a replica that has stopped, still do. ``news`` is how long a replica takes to hear of a start at the other one:
        a call that has waited so long is to go on waiting for longer than that in half of all cases, or more. Else
        most such ties would start twice, and near capacity a little work for nothing makes all calls wait.
        """
        if now >= self._holds_due:
            self._holds_due = now + HOLD_SECONDS
            if self.waits.samples >= self.options.samples_min:
                self._waits_law = self.waits.law()
            self._holds.clear()
        law = self._waits_law
        if law is None:
            return 0.0
        step = min(int(news / NEWS_STEP), HOLDS_MAX)
        found = self._holds.get(step)
        if found is None:
            found = self._holds[step] = self._hold_of(law, news)
        return found

    def _hold_of(self, law: Law, news: float) -> float:
        share = min(max(self.options.budget, 0.001), 0.999)
        least = law.quantile(1 - share)
        if least is None:
            return law.horizon
        for time in (least, *(cell.edge for cell in law.cells if cell.edge > least)):
            alive, later = law.survival(time), law.survival(time + news)
            if alive is not None and (law.unknown if later is None else later) >= OUTLASTS_SHARE * alive > 0:
                return time
        return law.horizon


class LearningBook:
    """All lessons of one client, at most ``lessons_max``: the least recently used makes room for a new one."""

    def __init__(self, lessons_max: int = LESSONS_MAX) -> None:
        self.throttle = FailureThrottle()
        self._lessons_max = lessons_max
        self._lessons: dict[tuple[str, Backup], Lesson] = {}
        # The one that was used last, which is the newest: hashing a Backup takes longer than all else here.
        self._last: Lesson | None = None
        self._last_method = ""
        self._last_backup: Backup | None = None

    def __len__(self) -> int:
        return len(self._lessons)

    def lesson(self, method: str, backup: Backup | None, now: float) -> Lesson:
        """The lesson of a method; begun now if there is none."""
        if method == self._last_method and backup is self._last_backup and self._last is not None:
            return self._last
        key = (method, backup if backup is not None else DEFAULT_BACKUP)
        lesson = self._lessons.get(key)
        if lesson is None:
            if len(self._lessons) >= self._lessons_max:
                del self._lessons[next(iter(self._lessons))]
            lesson = self._lessons[key] = Lesson(_options(key[1]), now)
        elif len(self._lessons) >= self._lessons_max:
            self._lessons[key] = self._lessons.pop(key)
        self._last_method, self._last_backup, self._last = method, backup, lesson
        return lesson

    def view(self, now: float) -> list[dict[str, Any]]:
        """What to show of each lesson, as plain values: times in seconds, None where nothing is known."""
        shown = []
        for (method, backup), lesson in self._lessons.items():
            view = lesson.view(now)
            delay = view.delay if isinstance(view.delay, float) else None
            values = {**view._asdict(), "delay": delay, "state": view.state.value}
            if backup.budget is None:
                values["state_reason"] = NO_BUDGET
            shown.append({"method": method, "backup": str(backup), **values})
        return shown


def _options(backup: Backup) -> LearningOptions:
    return LearningOptions(
        budget=UNBRAKED if backup.budget is None else backup.budget,
        after=None if isinstance(backup.after, str) else backup.after,
        quantile=backup.quantile,
        min_after=backup.min_after,
        backups=backup.max_per_call,
    )


class CallAccount:
    """One call's account: it is told what becomes of the call's copies, and is asked before more are sent.

    Without a ``lesson`` it keeps nothing, and need not be told. ``braked``: backups and ties have a budget.
    """

    __slots__ = ("_book", "_doubled", "_from_send", "_winner", "braked", "lesson")

    def __init__(self, book: LearningBook | None, method: str, backup: Backup | None, now: float, stoppable: bool):
        self._book = book
        self._from_send = backup is not None and backup.since == "send"
        self.braked = book is not None and backup is not None and backup.budget is not None
        self._doubled = 0.0
        self._winner = 0.0
        self.lesson: Lesson | None = None
        if book is not None:
            self.lesson = lesson = book.lesson(method, backup, now)
            lesson.stoppable = stoppable
            if backup is not None:
                lesson.call_begun(now)

    # ---- questions --------------------------------------------------------------------------------------------

    def delay(self, backup: Backup, now: float) -> float | None:
        """Seconds after which a backup is worth it now; None when that is not known, or never."""
        if backup.delay is not None:
            return backup.delay
        delay = self.lesson.delay(now) if self.lesson is not None else None
        return delay if isinstance(delay, float) else None

    @property
    def stuck_after(self) -> float:
        """Seconds after which a copy is taken for stuck where no delay is worth it; infinity while nothing is known."""
        return float("inf") if self.lesson is None else self.lesson.stuck_after

    @property
    def mean(self) -> float | None:
        """The mean service time in seconds; None where nothing is learned."""
        return self.lesson.mean if self.lesson is not None else None

    def hold(self, now: float, news: float = 0.0) -> float:
        """How long further copies of a tie are held back in any case, in seconds; 0 where nothing has a budget.

        ``news`` is how long a replica takes to hear of a start at the other one.
        """
        return self.lesson.hold(now, news) if self.lesson is not None and self.braked else 0.0

    def ties_allowed(self, now: float) -> bool:
        """False for a while when double starts have emptied the budget."""
        return self.lesson is None or not self.braked or self.lesson.ties_allowed(now)

    def try_backup(self, now: float, *, first: bool, again: bool, stuck: bool) -> tuple[bool, BackupTicket | None]:
        """Whether a backup may leave, and what it is to carry. ``stuck``: see ``stuck_after``."""
        if self._book is None or self.lesson is None or not self.braked:
            return True, None
        if not self._book.throttle.open:
            return False, None
        ticket = self.lesson.try_backup(now, first=first, again=again, stuck=stuck)
        return ticket is not None, ticket

    def try_failover(self, gone: Iterable[SentCopy], now: float, under_way: int) -> bool:
        """Whether another round may be sent after these copies are gone. It is asked once per round.

        ``under_way`` calls of this client are open.
        """
        if self._book is None or self.lesson is None:
            return True
        causes = list(gone)
        if any(copy.state in (CopyState.DONE, CopyState.FAILED) for copy in causes) and not self._book.throttle.open:
            return False
        refused = bool(causes) and all(copy.state in (CopyState.REFUSED, CopyState.FAILED) for copy in causes)
        draining = any(copy.cause in (Cause.DRAINING, Cause.UNSENT) for copy in causes)
        return self.lesson.try_failover(now, link_lost=draining or not refused, under_way=under_way)

    # ---- news -------------------------------------------------------------------------------------------------

    def sent(self, view: ReplicaView) -> None:
        """A copy leaves: what a backup would take beyond its execution is known from the replica's round trip."""
        if self.lesson is not None and not self._from_send:
            self.lesson.cost = (view.round_trip or 0.0) + self.lesson.wait

    def observed(self, ticket: BackupTicket | None, now: float) -> None:
        """A backup that is counted and not sent: it costs its expected work, so that the budget stays true."""
        if ticket is not None and self.lesson is not None:
            self.lesson.backup_ended(ticket, BackupEnd.VOID, ticket.work.taken / 1e9, now)

    def ended(
        self, copy: SentCopy, view: ReplicaView | None, now: float, busy: float, wait: float, *, used: bool, final: bool
    ) -> None:
        """A copy has ended; ``busy`` and ``wait`` as its replica measured them, or 0.

        ``used``: its answer ends the call. ``final``: it failed in a way that no other try would mend.
        """
        lesson = self.lesson
        if lesson is None or self._book is None:
            return
        state = copy.state
        if busy <= 0 and copy.started_at is not None and state != DONE:
            busy = now - copy.started_at
        known = view is None or not view.on_probation
        if known and copy.kind == FIRST:
            if state == DONE:
                lesson.waits.add(wait, now)
            elif state == DROPPED:
                lesson.waits.add_stopped(now - copy.sent_at, now)
        if state == DONE:
            if not known:
                lesson.earned(busy, now)
            else:
                lesson.finished(now - copy.sent_at if self._from_send else busy, now, used=used, busy=busy)
                lesson.waited(wait)
            if used:
                self._winner = busy
                self._book.throttle.answered()
        elif state == FAILED:
            if not final:
                self._book.throttle.failed()
        elif known:
            self._stopped(copy, busy, now)
        if state == YIELDED:
            self._double(busy)
        ticket = copy.ticket
        if ticket is not None:
            lesson.backup_ended(ticket, BackupEnd.WON if used else BackupEnd.VOID, busy, now)

    def lost(self, copies: Iterable[SentCopy], winner: CopyId | None, now: float, *, cancelled: bool = True) -> None:
        """The call has its outcome; these copies are still out and are cancelled now, or (not ``cancelled``) run on."""
        lesson = self.lesson
        if lesson is None:
            return
        for copy in copies:
            busy = now - copy.started_at if copy.started_at is not None else 0.0
            if copy.kind == CopyKind.FIRST and copy.started_at is None:
                lesson.waits.add_stopped(now - copy.sent_at, now)
            self._stopped(copy, busy, now)
            if copy.ticket is not None:
                end = BackupEnd.VOID
                if winner is not None:
                    end = BackupEnd.LOST if busy > 0 else BackupEnd.LOST_UNSTARTED
                if not cancelled:
                    busy = max(busy, lesson.mean)
                lesson.backup_ended(copy.ticket, end, busy, now)
            elif busy > 0 and winner is not None and _partners(copy.id, winner):
                self._double(busy)
        if self._doubled > 0:
            extra = self._doubled
            if winner is not None and winner.rank != UNTIED:
                extra += self._winner - lesson.mean
            lesson.double_start(extra, now)

    def _double(self, busy: float) -> None:
        """A copy of the tie ran in vain for ``busy``; one that can't be stopped goes on as long as they usually do."""
        assert self.lesson is not None
        self._doubled += busy if self.lesson.stoppable else max(busy, self.lesson.mean)

    def _stopped(self, copy: SentCopy, busy: float, now: float) -> None:
        lesson = self.lesson
        assert lesson is not None
        if self._from_send:
            if copy.state not in (CopyState.REFUSED, CopyState.DROPPED):
                lesson.stopped(now - copy.sent_at, now)
        elif busy > 0:
            lesson.stopped(busy, now)


def _partners(one: CopyId, other: CopyId) -> bool:
    return one.rank != UNTIED and other.rank != UNTIED and one.round == other.round
