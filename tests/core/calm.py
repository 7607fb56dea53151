"""The end of a history: all faults are mended, every message arrives, every handler ends, time goes on.

Then every call must have its outcome, from a replica and not by its deadline, and every collection must be empty.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

from tests.core.harness import CLIENT, Triangle
from tests.core.parts import ANSWER
from tests.core.telling import copy_name

LONG = 1000.0
"""Seconds after which every call of a test is past its deadline, and every marker past its age."""
PATIENCE = 10.0
"""Seconds after which a call ends that has replicas to go to, long before its deadline."""
EMPTY = "queue copies executions ties claiming deadlines markers cancel_markers parked_claims".split()


def mendings(t: Triangle, replicas: str) -> Iterator[Callable[[], None]]:
    """Everything that takes back one fault; ``replicas`` are to live."""
    for here, there in t.untold():
        yield partial(t.tell_lost, here, there)
    for name in replicas:
        if name not in t.nodes:
            yield partial(t.boot, name)
        elif t.nodes[name].frozen:
            yield partial(t.thaw, name)
        elif t.nodes[name].drained:
            yield partial(t.restart, name)
    for name in t.nodes:
        for other in CLIENT + "".join(t.nodes):
            if other != name and (other == CLIENT or other < name) and not t.connected(name, other):
                yield partial(t.connect, name, other)


def calm(t: Triangle, replicas: str) -> list[str]:
    """Mend everything and let everything end; say what does not, or not before the call's deadline."""
    t.outbox_full.clear()
    t.held.clear()
    patience = PATIENCE
    while patience > 0:
        while (mend := next(mendings(t, replicas), None)) is not None:
            mend()
        t.flush()
        busy = [(name, copy) for name, node in t.nodes.items() for copy in node.handlers]
        for name, copy in busy:
            if copy in t.nodes[name].handlers:
                t.finish(name, copy_name(copy), ANSWER)
        if t.at_rest():
            break
        if not busy:
            t.advance(0.25)
            patience -= 0.25
    late = [f"call {number} waits for its deadline" for number in t.calls if t.outcome(number) is None]
    t.advance(LONG)
    t.flush()
    return [*late, *pending(t)]


def pending(t: Triangle) -> list[str]:
    """Why the triangle is not at rest; empty when it is."""
    told = [f"call {number} is {call.state.name}" for number, call in t.calls.items() if t.outcome(number) is None]
    told += [f"{flight.route}: {flight.message}" for flight in t.flights]
    for name, node in t.nodes.items():
        sizes = node.core.sizes()
        told += [f"{name} keeps {sizes[key]} {key}" for key in EMPTY if sizes[key]]
        if node.core.draining != node.drained:
            told.append(f"{name} drains and never ends")
    return told
