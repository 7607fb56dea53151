"""The cases that are searched: those of every run, and the larger ones for when there is time.

``floor`` is a little below the number of distinct states at the last look. A search that sees less has lost moves.

At every step all checkers of ``tiedreq.sim.checkers`` look, S1 to S13; at every state in which nothing is left to
happen but faults, L1; and when a search has seen all, L2: from each of its states every call can come to its end by
moves that are no faults. Cases of every run are searched to the end. One that is stopped shows L2 as far as it came.

``COMPLETE`` is one tied call at two replicas with any two of all faults in ``case.FAULTS``, in any mixture, each at
any moment. In it: every order of messages (on a link, too), of timers, of handlers that end, of slots that get free,
of news of a connection at its two ends, of a restart and of a new connection. Not in it, but in cases of their own
with one fault: replicas that learn at different moments that a connection is up; messages of a connection that the
receiver knows to be lost; the picker's other choices (of two replicas that are alike at first, it takes the first);
exclusive ties, backups, hedged and plain calls, streams, handlers that can't be stopped, a second call and a third
replica. In no case: real time (a timer may fire at any moment after it is set), limits other than those of the queue
and of markers, what callers learn (delays, health, the brake), links' frames and outboxes, a caller that crashes. S6
says nothing of how long a notice is under way, which has no meaning without time.
"""

from __future__ import annotations

from dataclasses import replace

from tests.exhaustive.case import FAULTS, STAGGERED, TIE, Case
from tiedreq.core.policy import Backup, Hedged, Plain, Tied

MAIN = ("crash", "cut", "drain", "fill", "evict", "cancel", "deadline", "expire")
REST = ("raise", "unacceptable", "age", "unsent", "forge", "repeat")
MOVING = ("crash", "cut", "drain")

THREE = Tied(copies=3, stagger=0.0, backup=None)
THREE_STAGGERED = Tied(copies=3, stagger=1.0, backup=None)
EXCLUSIVE = Tied(stagger=1.0, backup=None, exclusive=True)
EXCLUSIVE_OF_THREE = Tied(copies=3, stagger=1.0, backup=None, exclusive=True)
GUARDED = Tied(stagger=1.0, backup=Backup(after=10.0, max_per_call=1))
HEDGED = Hedged(Backup(after=10.0, since="send"))
HEDGED_FROM_START = Hedged(Backup(after=10.0))

_SMALL = Case("", policies=(STAGGERED,), queue_max=1, markers_max=1)


def _case(name: str, faults: int, kinds: tuple[str, ...], **options: object) -> Case:
    return replace(_SMALL, name=name, faults=faults, kinds=kinds, **options)  # type: ignore[arg-type]


COMPLETE = _case("one call, two replicas, two faults", 2, tuple(FAULTS), deadline_ends=True, floor=850_000)

EVERY_RUN: tuple[Case, ...] = (
    COMPLETE,
    _case("faults of handlers and messages", 1, REST, floor=1_600),
    _case("a replica freezes", 1, ("freeze",), replicas=3, policies=(GUARDED,), floor=6_000),
    _case("late news", 1, ("cut",), late=True, floor=105_000),
    _case("sides learn of a link one by one", 1, ("crash", "cut"), whole_links=False, floor=21_000),
    _case("a third replica for failover", 1, MAIN, replicas=3, floor=72_000),
    _case("every choice of the picker", 1, ("cancel", "raise"), replicas=3, any_choice=True, floor=7_000),
    _case("tie of three", 1, ("evict", "cancel", "fill"), replicas=3, policies=(THREE_STAGGERED,), floor=36_000),
    _case("tie and backup", 1, ("evict", "cancel", "expire"), replicas=3, policies=(GUARDED,), floor=54_000),
    _case("hedged", 1, (*MAIN, "freeze"), policies=(HEDGED,), floor=62_000),
    _case("a stream of two items", 0, (), stream=2, policies=(TIE,), floor=5_500),
    _case(
        "a stream, a link lost",
        1,
        ("cut", "cancel"),
        stream=1,
        policies=(TIE,),
        queue_max=100,
        markers_max=100,
        floor=231_000,
    ),
    _case("plain", 2, (*MAIN, "raise"), policies=(Plain(),), floor=42_000),
    _case("plain, may not run twice", 2, (*MAIN, "raise"), policies=(Plain(),), idempotent=False, floor=22_500),
    _case("handlers that can't be stopped", 1, MAIN, stoppable=False, busy=True, queue_max=2, floor=117_000),
    _case(
        "handlers that can be stopped later", 1, ("cut", "evict"), stoppable=False, becomes_stoppable=True, floor=23_000
    ),
    _case("exclusive tie", 1, MAIN, policies=(EXCLUSIVE,), floor=10_500),
    _case("exclusive tie, two faults", 2, (*MAIN, "freeze"), policies=(EXCLUSIVE,), deadline_ends=True, floor=610_000),
    _case(
        "exclusive, sides learn of a link one by one",
        1,
        ("crash", "cut"),
        whole_links=False,
        policies=(EXCLUSIVE,),
        floor=19_000,
    ),
    _case("exclusive, late news", 1, ("cut",), late=True, policies=(EXCLUSIVE,), floor=40_000),
    _case(
        "exclusive, handlers that can't be stopped",
        1,
        MAIN,
        stoppable=False,
        busy=True,
        policies=(EXCLUSIVE,),
        floor=18_000,
    ),
    _case("exclusive tie of three", 1, ("cancel", "fill"), replicas=3, policies=(EXCLUSIVE_OF_THREE,), floor=19_000),
    _case("two calls", 0, (), policies=(TIE, TIE), queue_max=2, floor=5_500),
    _case("two tied calls in any order", 0, (), policies=(TIE, TIE), queue_max=2, any_choice=True, floor=23_500),
    _case("two exclusive calls", 0, (), policies=(EXCLUSIVE, EXCLUSIVE), queue_max=2, any_choice=True, floor=34_500),
    _case("two calls, one fault", 1, ("crash",), policies=(TIE, Plain()), queue_max=2, floor=70_000),
)

WHEN_THERE_IS_TIME: tuple[Case, ...] = (
    _case("all faults of an exclusive tie", 2, tuple(FAULTS), policies=(EXCLUSIVE,), deadline_ends=True),
    _case("all faults of two, sent at once", 2, tuple(FAULTS), policies=(TIE,), deadline_ends=True),
    _case("all faults of two, every choice", 2, tuple(FAULTS), any_choice=True, deadline_ends=True),
    _case("three faults", 3, tuple(FAULTS), deadline_ends=True),
    _case("tie of three, one fault", 1, MAIN, replicas=3, policies=(THREE,)),
    _case("staggered tie of three, one fault", 1, MAIN, replicas=3, policies=(THREE_STAGGERED,)),
    _case("exclusive tie of three, one fault", 1, MAIN, replicas=3, policies=(EXCLUSIVE_OF_THREE,)),
    _case("tie and backup, one crash", 1, ("crash",), replicas=3, policies=(GUARDED,)),
    _case("tie and backup, all faults", 1, tuple(FAULTS), replicas=3, policies=(GUARDED,)),
    # Three replicas: when both of two are frozen, only the deadline ends the call.
    _case("hedged from the start", 2, (*MOVING, "freeze"), replicas=3, policies=(HEDGED_FROM_START,)),
    _case("every choice of the picker, all faults", 1, MAIN, replicas=3, any_choice=True),
    _case("late news, all faults", 1, MAIN, late=True),
    _case("sides learn of a link one by one, two faults", 2, ("crash", "cut"), whole_links=False),
    _case("handlers that can't be stopped, two faults", 2, MOVING, stoppable=False, busy=True, queue_max=2),
    _case("handlers that can be stopped later, two faults", 2, MOVING, stoppable=False, becomes_stoppable=True),
    _case("two tied calls, one fault", 1, MAIN, policies=(TIE, TIE), queue_max=2),
    _case("two slots, two calls", 1, MAIN, policies=(TIE, TIE), slots=2, queue_max=2),
    _case("three rounds", 3, ("crash",), rounds_max=3),
)
