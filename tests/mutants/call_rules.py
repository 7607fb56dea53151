"""Rules of a call that no invariant of the simulator's checkers states: what one step has to say and do, and to pay.

Each is judged by one step alone: the call before it, the event, the commands, the call after it, and the bucket of its
method where there is one. Broken rules raise ``BadStep``, with the place of the rule in the design.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.mutants.replica_rules import BadStep, Telling, need
from tiedreq.core.call import CallCore
from tiedreq.core.call_copies import NEVER
from tiedreq.core.call_table import CallState
from tiedreq.core.commands import CallCommand, CancelCopy, CompleteCall, OutcomeKind, SendCopy
from tiedreq.core.events import (
    CallEvent,
    CallRequested,
    CopyEnded,
    FailureReceived,
    LinkLost,
    ResultReceived,
    TimePassed,
)
from tiedreq.core.governor import GovernorState
from tiedreq.core.lessons import Lesson
from tiedreq.core.policy import Backup, ceiling
from tiedreq.core.types import UNTIED, Cause, CopyKind, CopyState

CLOSE = 1e-9
LOWERED = (GovernorState.SATURATED, GovernorState.USELESS)


class Before:
    """What a step is compared with."""

    def __init__(self, core: CallCore, event: CallEvent) -> None:
        self.state = core.state
        self.alive = {copy for copy, sent in core.copies.items() if sent.alive}
        self.tried = {sent.replica for sent in core.copies.values()}
        self.unsent = list(core._unsent)
        self.rounds = core._rounds
        self.partners = core._partners
        lesson = core._account.lesson
        self.taken = lesson.budget.taken if lesson is not None else 0
        self.lost = lesson.budget.lost if lesson is not None else 0
        self.earned = lesson.budget.deposited - lesson.budget.floored if lesson is not None else 0
        self.lowered = lesson is not None and lesson.governor.state in LOWERED
        sent = core.copies.get(getattr(event, "copy", None))  # type: ignore[arg-type]  # None is no key
        self.meant = sent if sent is not None and sent.alive and sent.link == getattr(event, "link", None) else None


class Step:
    """One step under judgement."""

    def __init__(
        self, before: Before, core: CallCore, event: CallEvent, commands: list[CallCommand], now: float
    ) -> None:
        self.before, self.core, self.event, self.commands, self.now = before, core, event, commands, now
        self.sent = [command for command in commands if isinstance(command, SendCopy)]
        self.backups = [command for command in self.sent if command.submit.kind == CopyKind.BACKUP]
        self.outcome = next((command.outcome for command in commands if isinstance(command, CompleteCall)), None)

    @property
    def backup(self) -> Backup | None:
        """The backup of the call's policy."""
        return self.core._backup

    @property
    def lesson(self) -> Lesson | None:
        """What is known of the method, where the brake is on."""
        return self.core._account.lesson if self.core._account.braked else None


# ---- copies, rounds, backups -----------------------------------------------------------------------------------------


def copies(step: Step) -> None:
    """Where copies go, and what they carry."""
    core, replicas, method = step.core, step.core._replicas, step.core.request.method
    for command in step.sent:
        submit, view = command.submit, replicas.get(command.link)
        left = core.request.deadline - step.now
        need(submit.remaining == left or abs(submit.remaining - left) <= CLOSE, "6.7", "another time than is left")
        names = [partner.name for partner in submit.partners]
        need(len(set(names)) == len(names), "6.1", "two copies of one tie at one replica")
        if view is None or submit.copy.rank > 0:
            continue
        need(not view.draining, "6.6", f"a copy is sent to {view.name}, which drains")
        fresh = replicas.candidates(method, step.now, step.before.tried)
        if submit.kind == CopyKind.FAILOVER and view.name in step.before.tried:
            need(not fresh, "6.6", f"another round goes to {view.name} again, though others were never tried")


def backups(step: Step) -> None:
    """How many, where, and when."""
    core = step.core
    backup = getattr(core.request.policy, "backup", None) if step.backup is not None else None
    sent = sum(other.kind == CopyKind.BACKUP for other in core.copies.values())
    need(sent <= (backup.max_per_call if backup is not None else 0), "6.3", f"{sent} backups of one call")
    held = {view.name for _, _, view in step.before.unsent}
    for command in step.backups:
        view = core._replicas.get(command.link)
        assert view is not None
        need(view.pushback_until <= step.now, "5.8", f"a backup goes to {view.name}, which wants none")
        if view.name in step.before.tried:
            others = core._replicas.candidates(core.request.method, step.now, step.before.tried | held)
            free = [other.name for other in others if other.pushback_until <= step.now]
            need(not free, "6.3", f"a backup goes to {view.name}, which has had a copy, and not to {free}")


def clocks(step: Step) -> None:
    """Which timers run."""
    core, backup = step.core, step.backup
    if backup is None or backup.since != "start" or core.state != CallState.RACING or core._observing:
        return
    known = any(sent.started_at is not None or sent.cause == Cause.STARTED for sent in core.copies.values())
    if core._backup_at < NEVER:
        need(known or core._denials or core._untargeted, "6.3", "a backup's clock runs, and nothing has started")
    if core._rounds > step.before.rounds and not core._backups:
        limit = step.now + ceiling(core._account.delay(backup, step.now))
        need(core.wake_at <= min(limit, core.request.deadline) + CLOSE, "6.3", "no timer from the sending")


def rounds(step: Step) -> None:
    """When there is another round."""
    core, before, event = step.core, step.before, step.event
    newest = max((sent.round for sent in core.copies.values() if sent.kind != CopyKind.BACKUP), default=0)
    allowed = core.rounds_allowed  # type: ignore[attr-defined]  # of a class that is made at run time
    need(newest <= allowed, "6.6", f"round {newest}, of {allowed} at most")
    need(core._rounds == newest, "6.6", f"{core._rounds} rounds are spent, {newest} were sent")
    meant = before.meant
    if meant is None or not isinstance(event, CopyEnded | FailureReceived):
        return
    refused = isinstance(event, CopyEnded) and event.state == CopyState.REFUSED and event.cause.retryable
    if refused and before.unsent and meant.round == before.rounds and meant.id.rank != UNTIED:
        moved = any(command.submit.copy.tie == meant.id.tie for command in step.sent)
        need(moved or step.now >= core.request.deadline, "6.2", "a refusal does not move the next copy up")
    lost = isinstance(event, CopyEnded) and event.cause == Cause.ARBITER_LOST
    if lost and before.partners and meant.round == before.rounds:
        views = [view for view in core._replicas.views() if view.name == before.partners[0].name]
        told = all(view.suspected_until > step.now for view in views)
        need(told, "5, exclusive", "an arbiter that was lost is not suspected")
    if isinstance(event, FailureReceived) and not event.retryable:
        need(core.state == CallState.DONE, "6.6", "an application error does not end the call")


def last_words(step: Step) -> None:
    """What a replica never spoke of before it ended its drain has not started."""
    event = step.event
    if not isinstance(event, LinkLost) or not event.drained:
        return
    for sent in step.core.copies.values():
        if sent.id in step.before.alive and sent.link == event.link and sent.started_at is None:
            need(sent.state == CopyState.REFUSED, "5.10", "a copy that never started counts as lost")


def outcomes(step: Step) -> None:
    """What ends a call."""
    core, event, outcome = step.core, step.event, step.outcome
    if outcome is None:
        return
    cancelled = [command.copy for command in step.commands if isinstance(command, CancelCopy)]
    racing = any(copy.rank != UNTIED or core.copies[copy].kind != CopyKind.BACKUP for copy in cancelled)
    if outcome.kind in (OutcomeKind.OVERLOADED, OutcomeKind.UNAVAILABLE):
        need(not racing, "6.4", f"the call ends {outcome.kind.name} while a copy lives")
    if outcome.kind == OutcomeKind.FAILED and isinstance(event, FailureReceived) and event.retryable:
        need(not racing, "6.6", "a retryable failure ends the call while a copy lives")


def unsafe(step: Step) -> None:
    """What may not run twice."""
    core = step.core
    if core.request.idempotent:
        return
    for command in step.sent:
        submit = command.submit
        need(submit.kind not in (CopyKind.TIE, CopyKind.BACKUP) and not submit.partners, "6, unsafe", "sent twice")
    others = [sent for sent in core.copies.values() if sent.sent_at < step.now or sent.ended_at is not None]
    if step.sent:
        need(all(sent.state == CopyState.REFUSED for sent in others), "6, unsafe", "sent again after it may have run")


# ---- the brake -------------------------------------------------------------------------------------------------------


def ties_pause(step: Step) -> None:
    lesson = step.lesson
    if lesson is not None and isinstance(step.event, CallRequested) and len(step.core._partners) > 1:
        bucket = lesson.budget
        paused = bucket._untied_until > -NEVER and (step.now < bucket._untied_until or bucket.balance < 0)
        need(not paused, "6.4", "a tie is sent although double starts emptied the bucket")


def backups_pay(step: Step) -> None:
    """A backup takes its expected work when it leaves, and gives it back when it never ran."""
    core, before, lesson = step.core, step.before, step.lesson
    if lesson is None or core._observing:
        return
    bucket = lesson.budget
    due = bucket.initial + bucket.deposited - bucket.forfeited - bucket.taken
    need(bucket.balance == due, "6.4", f"the bucket holds {bucket.balance} ns, by its books {due}")
    for command in step.backups:
        ticket = core.copies[command.submit.copy].ticket
        need(ticket is not None and ticket.work.taken > 0, "6.4", "a backup leaves and pays nothing")
        if before.lowered and lesson.governor.state in LOWERED:
            need(lesson.governor._probed_at == step.now, "6.4", "a backup leaves that is no probe")
    gone = [core.copies[copy] for copy in before.alive if not core.copies[copy].alive or step.outcome is not None]
    paid = [sent for sent in gone if sent.ticket is not None]
    if isinstance(step.event, TimePassed) and not gone and len(step.sent) == len(step.backups) == 1:
        ticket = core.copies[step.backups[0].submit.copy].ticket
        assert ticket is not None
        need(lesson.budget.taken - before.taken == ticket.work.taken, "6.4", "a backup's work is not taken once")
    ran = getattr(step.event, "service_time", 0.0) != 0 and before.meant in paid
    if paid and not step.sent and not ran and all(sent.started_at is None for sent in paid):
        back = sum(sent.ticket.work.taken for sent in paid if sent.ticket is not None)
        taken = lesson.budget.taken - before.taken - (lesson.budget.lost - before.lost)
        need(taken == -back or _failover_denied(step), "6.4", "work of backups that never ran does not come back")


def _failover_denied(step: Step) -> bool:
    return step.outcome is None and step.core.state != CallState.RACING


def double_starts_pay(step: Step) -> None:
    core, outcome, lesson = step.core, step.outcome, step.lesson
    if lesson is None or outcome is None or outcome.kind != OutcomeKind.ANSWERED:
        return
    ran = [
        sent
        for sent in core.copies.values()
        if sent.state == CopyState.YIELDED
        and sent.started_at is not None
        and sent.ended_at is not None
        and sent.ended_at - sent.started_at > CLOSE
    ]
    if ran:
        need(lesson.budget.lost != step.before.lost, "6.4", "a double start costs nothing")


def answers_earn(step: Step) -> None:
    """A share of the busy time of an answer that is used."""
    lesson, event, meant = step.lesson, step.event, step.before.meant
    if lesson is None or not isinstance(event, ResultReceived) or not event.acceptable or meant is None:
        return
    earned = lesson.budget.deposited - lesson.budget.floored - step.before.earned
    due = round(lesson.options.budget * round(event.service_time * 1e9))
    need(earned == due or step.core._replicas.get(meant.link) is None, "6.4", f"an answer earns {earned}, not {due} ns")


def failovers_pay(step: Step) -> None:
    core, event, lesson = step.core, step.event, core_lesson(step.core)
    if lesson is None or not any(command.submit.kind == CopyKind.FAILOVER for command in step.sent):
        return
    if core._rounds == step.before.rounds:
        return
    gone = [s for s in core.copies.values() if s.round == step.before.rounds and s.kind != CopyKind.BACKUP]
    if isinstance(event, LinkLost) and any(sent.cause == Cause.LINK_LOST for sent in gone):
        need(lesson.link_lost.debt >= 1 - CLOSE, "6.4", "a failover after a lost link draws on nothing")
    elif isinstance(event, CopyEnded) and gone and all(sent.cause == Cause.FULL for sent in gone):
        need(lesson.budget.taken > step.before.taken, "6.4", "a failover after a refusal draws on nothing")


def core_lesson(core: CallCore) -> Lesson | None:
    """What is known of the call's method, whether its policy has a brake or not."""
    return core._account.lesson


RULES: tuple[Callable[[Step], None], ...] = (
    copies,
    backups,
    clocks,
    rounds,
    last_words,
    outcomes,
    unsafe,
    ties_pause,
    backups_pay,
    double_starts_pay,
    answers_earn,
    failovers_pay,
)


def ruled_call(kind: type[CallCore]) -> type[CallCore]:
    """That core; a step that breaks a rule is told to ``broken``."""

    class Ruled(Telling, kind):  # type: ignore[misc, valid-type]  # a class that is made at run time
        def __init__(self, *arguments: Any, **options: Any) -> None:
            self.rounds_allowed = options["rounds_max"]
            super().__init__(*arguments, **options)

        def step(self, event: CallEvent, now: float) -> list[CallCommand]:
            if self.state == CallState.DONE:
                after: list[CallCommand] = super().step(event, now)
                return after
            before = Before(self, event)
            commands: list[CallCommand] = super().step(event, now)
            step = Step(before, self, event, commands, now)
            try:
                for rule in RULES:
                    rule(step)
            except BadStep as error:
                self.broken(error)
            return commands

    return Ruled
