"""The commands of a scenario: one line each, on a ``Triangle``. An unknown word or option is an error.

cluster ab [slots=1] [queue=N] [markers=N] [marker_age=S] [parked=N] [rounds=N]
call plain|hedged|tied|exclusive [at=ORDER] [method=read] [timeout=10] [copies=2] [stagger=0] [backup=S] [yield=no]
busy NAME…                  a call that takes a slot of each replica, and is not told
cancel CALL
deliver ROUTE [TYPE] [COPY]  the oldest message on a directed link, of a type, about a copy
drop ROUTE [TYPE] [COPY]
hold ROUTE…  ·  release ROUTE…
settle [NAME…]               all input is handled: fill slots
flush                        deliver and settle until nothing moves
advance S  ·  lag S          time passes with alarms, or before anybody is woken
finish NAME COPY [answer|bad|busy|failed|stopped]
stoppable NAME COPY          a handler in a thread says how it can be stopped
drain NAME  ·  freeze NAME  ·  thaw NAME  ·  crash NAME [told=NAMES]  ·  boot NAME  ·  restart NAME
leave NAME                   a replica that has drained ends, with all heard that it had to say
cut X Y [told=NAMES]  ·  tell-lost X Y  ·  connect X Y
outbox-full NAME
state                        where every copy is, what replicas hold, and how calls ended
way                          the messages on their way
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from tests.core.harness import Triangle
from tests.core.parts import ANSWER, BAD_ANSWER
from tests.core.telling import copy_name, tell_message, tell_outcome
from tiedreq.core import messages as m
from tiedreq.core.events import Answer, Fault
from tiedreq.core.limits import ReplicaLimits
from tiedreq.core.policy import Backup, Hedged, Plain, Policy, Tied

OUTCOMES: Mapping[str, Answer | Fault | None] = {
    "answer": ANSWER,
    "bad": BAD_ANSWER,
    "busy": Fault("busy", "", b"", True),
    "failed": Fault("bad argument", "", b"", False),
    "stopped": None,
}
LIMITS = {
    "queue": "queue_length_max",
    "markers": "markers_per_peer_max",
    "marker_age": "marker_age_max",
    "parked": "parked_claims_max",
}
TYPES: Mapping[str, type[m.Message]] = {
    kind.__name__: kind
    for kind in (m.Submit, m.Cancel, m.Started, m.Next, m.Claim, m.Granted, m.Denied, m.Result, m.Failed, m.Ended)
}


class BadLine(Exception):
    """A line of a scenario that can't be carried out."""


class Words:
    """One line, taken apart; every word and option must be used."""

    def __init__(self, line: str) -> None:
        parts = line.split()
        self.verb = parts[0]
        self.words = [part for part in parts[1:] if "=" not in part]
        self.options = dict(part.split("=", 1) for part in parts[1:] if "=" in part)

    def word(self, default: str | None = None) -> str:
        if self.words:
            return self.words.pop(0)
        if default is None:
            raise BadLine(f"{self.verb}: a word is missing")
        return default

    def rest(self) -> list[str]:
        words, self.words = self.words, []
        return words

    def option(self, name: str, default: str) -> str:
        return self.options.pop(name, default)

    def end(self) -> None:
        if self.words or self.options:
            raise BadLine(f"{self.verb}: what is {[*self.words, *self.options]}?")


class Stage:
    """Carries out the lines of one scenario."""

    def __init__(self) -> None:
        self.replicas = ""
        self._triangle: Triangle | None = None
        self._verbs: dict[str, Callable[[Words], None]] = {
            name.removeprefix("do_").replace("_", "-"): getattr(self, name) for name in dir(self) if name[:3] == "do_"
        }

    @property
    def triangle(self) -> Triangle:
        if self._triangle is None:
            raise BadLine("a scenario begins with `cluster`")
        return self._triangle

    def run(self, line: str) -> list[str]:
        """Carry out one line; what happened."""
        words = Words(line)
        if words.verb not in self._verbs:
            raise BadLine(f"no such command: {words.verb}")
        self._verbs[words.verb](words)
        words.end()
        told, self.triangle.trace[:] = list(self.triangle.trace), []
        return told

    # ---- the stage and its calls ------------------------------------------------------------------------------

    def do_cluster(self, words: Words) -> None:
        self.replicas = words.word()
        limits = ReplicaLimits()
        for name, field in LIMITS.items():
            if text := words.option(name, ""):
                value = float(text) if field == "marker_age_max" else int(text)
                change: dict[str, Any] = {field: value}
                limits = replace(limits, **change)
        slots, rounds = int(words.option("slots", "1")), int(words.option("rounds", "5"))
        self._triangle = Triangle(self.replicas, slots=slots, limits=limits, rounds_max=rounds)
        self._triangle.trace.clear()

    def do_call(self, words: Words) -> None:
        kind = words.word()
        at = words.option("at", self.replicas)
        method = words.option("method", "read")
        timeout = float(words.option("timeout", "10"))
        self.triangle.call(self._policy(kind, words), at=at, method=method, timeout=timeout)

    def _policy(self, kind: str, words: Words) -> Policy:
        if kind == "plain":
            return Plain()
        after = words.option("backup", "")
        if kind == "hedged":
            return Hedged(Backup(after=float(after), since="send"))
        if kind not in ("tied", "exclusive"):
            raise BadLine(f"call: no such policy: {kind}")
        return Tied(
            copies=int(words.option("copies", "2")),
            stagger=float(words.option("stagger", "0")),
            backup=Backup(after=float(after)) if after else None,
            exclusive=kind == "exclusive",
            yield_=words.option("yield", "yes") == "yes",
        )

    def do_busy(self, words: Words) -> None:
        for name in words.rest():
            number = self.triangle.call(at=name, timeout=500.0)
            self.triangle.deliver(f"u>{name}", m.Submit, f"{number}/u0")
            self.triangle.settle(name)
            self.triangle.deliver(f"{name}>u", m.Started, f"{number}/u0")
        self.triangle.trace.clear()

    def do_cancel(self, words: Words) -> None:
        self.triangle.cancel(int(words.word()))

    # ---- messages ---------------------------------------------------------------------------------------------

    def _message(self, words: Words) -> tuple[str, type[m.Message] | None, str | None]:
        route, kind, copy = words.word(), None, None
        for word in words.rest():
            if "/" in word:
                copy = word
            elif word in TYPES:
                kind = TYPES[word]
            else:
                raise BadLine(f"{words.verb}: no such type of message: {word}")
        return route, kind, copy

    def do_deliver(self, words: Words) -> None:
        self.triangle.deliver(*self._message(words))

    def do_drop(self, words: Words) -> None:
        self.triangle.drop(*self._message(words))

    def do_hold(self, words: Words) -> None:
        self.triangle.hold(*words.rest())

    def do_release(self, words: Words) -> None:
        self.triangle.release(*words.rest())

    def do_settle(self, words: Words) -> None:
        self.triangle.settle(*words.rest())

    def do_flush(self, words: Words) -> None:
        self.triangle.flush()

    # ---- time, handlers, faults -------------------------------------------------------------------------------

    def do_advance(self, words: Words) -> None:
        self.triangle.advance(float(words.word()))

    def do_lag(self, words: Words) -> None:
        self.triangle.lag(float(words.word()))

    def do_finish(self, words: Words) -> None:
        name, copy, how = words.word(), words.word(), words.word("answer")
        if how not in OUTCOMES:
            raise BadLine(f"finish: no such outcome: {how}")
        self.triangle.finish(name, copy, OUTCOMES[how])

    def do_stoppable(self, words: Words) -> None:
        self.triangle.enable_stop(words.word(), words.word())

    def do_drain(self, words: Words) -> None:
        self.triangle.drain(words.word())

    def do_freeze(self, words: Words) -> None:
        self.triangle.freeze(words.word())

    def do_thaw(self, words: Words) -> None:
        self.triangle.thaw(words.word())

    def do_crash(self, words: Words) -> None:
        told = words.option("told", "*")
        self.triangle.crash(words.word(), told=None if told == "*" else told)

    def do_leave(self, words: Words) -> None:
        self.triangle.leave(words.word())

    def do_boot(self, words: Words) -> None:
        self.triangle.boot(words.word())

    def do_restart(self, words: Words) -> None:
        self.triangle.restart(words.word())

    def do_cut(self, words: Words) -> None:
        one, other = words.word(), words.word()
        self.triangle.cut(one, other, told=words.option("told", one + other))

    def do_tell_lost(self, words: Words) -> None:
        self.triangle.tell_lost(words.word(), words.word())

    def do_connect(self, words: Words) -> None:
        self.triangle.connect(words.word(), words.word())

    def do_outbox_full(self, words: Words) -> None:
        self.triangle.outbox_full.add(words.word())

    # ---- looking ----------------------------------------------------------------------------------------------

    def do_way(self, words: Words) -> None:
        t = self.triangle
        t.trace += [f"{flight.route}  {tell_message(flight.message)}" for flight in t.flights] or ["nothing"]

    def do_state(self, words: Words) -> None:
        t = self.triangle
        for copy, target in t.watch.targets.items():
            told = t.state(target, copy_name(copy)) if target in t.nodes else None
            t.trace.append(f"{copy_name(copy)} at {target}: {told.label if told is not None else 'unknown there'}")
        for name, node in t.nodes.items():
            core, sizes = node.core, node.core.sizes()
            kept = [f" {key}={sizes[key]}" for key in ("markers", "cancel_markers", "parked_claims") if sizes[key]]
            gauges = f"queue={core.queue_length} running={core.running} of {core.slots}"
            t.trace.append(f"{name}: {gauges}{''.join(kept)}")
        for number in t.calls:
            outcome = t.outcome(number)
            t.trace.append(f"call {number}: {tell_outcome(outcome) if outcome is not None else 'open'}")
