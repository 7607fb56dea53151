"""What can happen inside a replica's process, given the state that it is in."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from tests.exhaustive.case import Case
from tests.exhaustive.parts import (
    CALLER,
    FOREIGN,
    FOREIGN_LINK,
    FOREVER,
    FORGER_LINK,
    MARKER_AGE,
    ReplicaPart,
    ToReplica,
    foreign_copy,
    foreign_submit,
)
from tiedreq.core.copybook import HeldCopy
from tiedreq.core.events import (
    Answer,
    DrainRequested,
    Fault,
    InputSettled,
    ItemProduced,
    PeerStarted,
    StopEnabled,
    SubmitReceived,
    TimePassed,
    WorkFinished,
)
from tiedreq.core.types import CopyId


class Local(NamedTuple):
    """A move inside one process. ``fault``: it costs one."""

    what: str
    given: ToReplica
    fault: bool


RETRYABLE = Fault("busy", "", b"", True)


def replica_moves(case: Case, part: ReplicaPart) -> Iterator[Local]:
    """All moves inside a replica's process."""
    if part.core.queue_length:
        yield Local("input has settled", ToReplica(InputSettled()), False)
    if part.core.sizes()["parked_claims"]:
        yield Local("what waits for a copy reaches its age", ToReplica(TimePassed(), MARKER_AGE), False)
    yield from _handler_moves(case, part)
    yield from _faults(case, part)


def _handler_moves(case: Case, part: ReplicaPart) -> Iterator[Local]:
    for copy, stopped in part.handlers.items():
        if stopped:
            yield Local("a stopped handler ends", ToReplica(WorkFinished(copy, None)), False)
            continue
        held = part.core.held(copy)
        yield from _item_moves(case, copy, held)
        yield Local("a handler returns", ToReplica(WorkFinished(copy, Answer(b""))), False)
        if "raise" in case.kinds and copy.client == CALLER:
            yield Local("a handler raises", ToReplica(WorkFinished(copy, RETRYABLE)), True)
        if "expire" in case.kinds and copy.client == CALLER:
            yield Local("a handler is stopped at its deadline", ToReplica(WorkFinished(copy, None), FOREVER), True)
        if case.becomes_stoppable and held is not None and not held.stoppable:
            yield Local("a handler can be stopped from now on", ToReplica(StopEnabled(copy)), False)


def _item_moves(case: Case, copy: CopyId, held: HeldCopy | None) -> Iterator[Local]:
    """A handler of the caller's that isn't paused yields: content, or first of all a preamble."""
    if held is None or held.stream is None or held.stream.paused or copy.client != CALLER:
        return
    if held.stream.items < case.stream:
        yield Local("a handler yields content", ToReplica(ItemProduced(copy, b"x", True)), False)
        if not held.stream.items:
            yield Local("a handler yields a preamble", ToReplica(ItemProduced(copy, b"", False)), False)


def _faults(case: Case, part: ReplicaPart) -> Iterator[Local]:
    core, sizes = part.core, part.core.sizes()
    if "drain" in case.kinds and not core.draining:
        yield Local("is told to drain", ToReplica(DrainRequested()), True)
    if "fill" in case.kinds:
        name = core.identity.name
        number = next(n for n in range(case.slots, 20) if core.copy_state(foreign_copy(name, n)) is None)
        submit = foreign_submit(case, name, number)
        yield Local("another client's copy", ToReplica(SubmitReceived(FOREIGN_LINK, submit)), True)
    if "evict" in case.kinds and sizes["markers"]:
        for link in core._peers:
            yield Local("another tie's start", ToReplica(PeerStarted(link, CopyId(FOREIGN, 1, 0, 0), FOREVER)), True)
    if "age" in case.kinds and sizes["markers"]:
        yield Local("its markers reach their age", ToReplica(TimePassed(), MARKER_AGE), True)
    if "expire" in case.kinds and sizes["copies"]:
        yield Local("the deadline passes", ToReplica(TimePassed(), FOREVER), True)
    if "forge" in case.kinds:
        for rank in range(case.replicas):
            copy = CopyId(CALLER, 1, 0, rank)
            yield Local("a liar claims a start", ToReplica(PeerStarted(FORGER_LINK, copy, FOREVER)), True)
