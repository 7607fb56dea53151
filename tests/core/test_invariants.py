"""A checker that can't fail is a defect: each invariant of ``Watch`` is broken, by steps that no core would take."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.core.harness import Triangle
from tests.core.invariants import InvariantBroken
from tests.core.telling import copy_id
from tiedreq.core import commands as c
from tiedreq.core import events as e
from tiedreq.core import messages as m
from tiedreq.core.call import CallCore
from tiedreq.core.call_table import CallState
from tiedreq.core.policy import Tied
from tiedreq.core.types import Cause, CopyKind, CopyState, Load

LOAD = Load(0, 0, 0, 0.0)
ZERO, ONE = copy_id("1/r0.0"), copy_id("1/r0.1")
Break = Callable[[Triangle], object]


def queued(*, exclusive: bool = False) -> Triangle:
    """A tie that waits at a and b."""
    t = Triangle("ab")
    t.call(Tied(backup=None, stagger=0.0, exclusive=exclusive))
    t.deliver("u>a")
    t.deliver("u>b")
    return t


def running() -> Triangle:
    """A tie that has started at both."""
    t = queued()
    t.settle()
    return t


def step(t: Triangle, name: str, *commands: c.ReplicaCommand, event: e.ReplicaEvent | None = None) -> None:
    """Pretend that a replica took a step."""
    t.watch.replica_stepped(t.nodes[name], event if event is not None else e.InputSettled(), commands)


def ended(t: Triangle, name: str, state: CopyState, cause: Cause) -> c.SendCaller:
    copy = ZERO if name == "a" else ONE
    return c.SendCaller(t.link("u", name), m.Ended(copy, state, cause, 0.0, 0.0, LOAD))


def start(t: Triangle, name: str) -> tuple[c.ReplicaCommand, ...]:
    """What a replica does when it starts its copy."""
    submit = t.watch.submits[ZERO if name == "a" else ONE]
    return c.SendPeer(t.link("a", "b"), m.Started(submit.copy, 1.0, None)), c.StartWork(submit, t.now + 1.0)


def sent(t: Triangle, name: str, **changes: object) -> None:
    """Pretend that the call sent one more copy."""
    submit = t.watch.submits[ZERO]._replace(**{"copy": copy_id("1/r1.0"), **changes})  # type: ignore[arg-type]
    t.watch.call_stepped(t.calls[1], [c.SendCopy(t.link("u", name), submit)], t.client_links)


def all_yield(t: Triangle) -> None:
    step(t, "b", ended(t, "b", CopyState.YIELDED, Cause.STARTED))
    t.watch.fates[ZERO] = CopyState.YIELDED
    t.watch._check_tie(ZERO.tie)


def two_outcomes(t: Triangle) -> None:
    t.cancel(1)
    t.watch.call_stepped(t.calls[1], [c.CompleteCall(c.Outcome(c.OutcomeKind.CANCELLED))], t.client_links)


def forgotten_loser(t: Triangle) -> None:
    done = c.CompleteCall(c.Outcome(c.OutcomeKind.CANCELLED))
    t.watch.call_stepped(t.calls[1], [done], t.client_links)


def lost_slot(t: Triangle) -> None:
    t.watch.handlers[t.nodes["a"].identity].clear()
    step(t, "a")


def over_the_limit(t: Triangle) -> None:
    core = t.nodes["a"].core
    object.__setattr__(core.limits, "queue_length_max", 0)
    step(t, "a")


BROKEN: tuple[tuple[str, Callable[[], Triangle], Break], ...] = (
    ("S1", queued, two_outcomes),
    ("S1", queued, forgotten_loser),
    ("S2", queued, lambda t: step(t, "a", *[ended(t, "a", CopyState.EXPIRED, Cause.DEADLINE)] * 2)),
    ("S3", queued, lambda t: step(t, "b", ended(t, "b", CopyState.DROPPED, Cause.STARTED))),
    ("S3", queued, lambda t: step(t, "b", ended(t, "b", CopyState.DROPPED, Cause.NEXT))),
    ("S3", running, lambda t: step(t, "a", ended(t, "a", CopyState.YIELDED, Cause.STARTED))),
    ("S3", running, lambda t: step(t, "b", ended(t, "b", CopyState.DROPPED, Cause.DEADLINE))),
    ("S4", running, all_yield),
    ("S5", running, lambda t: step(t, "a", *start(t, "a"))),
    ("S5", running, lambda t: step(t, "a", *[c.StopWork(ZERO, Cause.CALLER)] * 2)),
    ("S8", queued, over_the_limit),
    ("S9", queued, lambda t: sent(t, "a", copy=ZERO)),
    ("S10", running, lost_slot),
    ("S12", queued, lambda t: sent(t, "a", kind=CopyKind.BACKUP)),
    ("5.1", queued, lambda t: step(t, "a", start(t, "a")[1])),
    ("5.1", queued, lambda t: step(t, "a", c.SendCaller(t.link("u", "a"), m.Started(ZERO, 1.0, LOAD)))),
    ("settle", queued, lambda t: step(t, "a", *start(t, "a"), event=e.TimePassed())),
    ("6.1", queued, lambda t: sent(t, "a", copy=copy_id("1/r0.2"))),
    ("6.1", queued, lambda t: sent(t, "b")),
    ("6.3", queued, lambda t: sent(t, "a", kind=CopyKind.BACKUP, copy=copy_id("1/u0"))),
    ("wire", queued, lambda t: sent(t, "a", remaining=0.0)),
    ("wire", queued, lambda t: step(t, "a", c.SendPeer(t.link("a", "b"), m.Next(ZERO, -1.0)))),
    ("driver", queued, lambda t: step(t, "a", c.SendPeer(99, m.Next(ZERO, 1.0)))),
    ("drain", running, lambda t: step(t, "a", c.FinishDrain())),
)


@pytest.mark.parametrize(("rule", "made", "act"), BROKEN, ids=[f"{rule}-{n}" for n, (rule, _, _) in enumerate(BROKEN)])
def test_a_broken_invariant_is_told(rule: str, made: Callable[[], Triangle], act: Break) -> None:
    t = made()
    with pytest.raises(InvariantBroken, match=f"^{rule}: "):
        act(t)


def test_s7_two_starts_of_an_exclusive_tie_are_told() -> None:
    t = queued(exclusive=True)
    t.settle("a")
    with pytest.raises(InvariantBroken, match=r"^S7: "):
        step(t, "b", *start(t, "b"))


def test_s11_two_running_copies_are_told_when_all_is_quiet() -> None:
    t = running()
    t.flights.clear()
    with pytest.raises(InvariantBroken, match=r"^S11: "):
        t.watch.check_quiet()


def test_an_alarm_that_rings_for_nothing_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    t = Triangle("ab")
    call = t.call()
    t.calls[call]._backup_at = t.now + 1.0
    monkeypatch.setattr(CallCore, "_send_backup", lambda self, now: None)
    with pytest.raises(InvariantBroken, match=r"^wake_at: "):
        t.advance(1.0)
    assert t.calls[call].state == CallState.RACING
