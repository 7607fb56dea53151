"""What one step of a core costs, and one message of the codec: see `scripts/bench_core --help`.

No driver, no network: events go in by hand, as a driver would make them. A step is one event in, its commands out.

* Replica: a copy arrives, the input settles and it starts, its handler returns; or it waits and its partner starts.
  Dropping is measured in queues of several lengths: its cost must not depend on the length. What is dropped is chosen
  at random; as many copies arrive again, outside the time that is taken.
* Call: a call with one copy, and a tied one both copies of which leave, from the request to the outcome.
* Codec: the messages of a tied call to bytes and back, sixteen to a frame.
"""

from __future__ import annotations

import argparse
import gc
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from random import Random

from _bench import Row, as_program, parser, row, show, whole, wholes, write

from tiedreq.core import events as e
from tiedreq.core import messages as m
from tiedreq.core.call import CallCore, CallRequest
from tiedreq.core.call_stats import CallStats
from tiedreq.core.commands import SendCopy
from tiedreq.core.lessons import LearningBook
from tiedreq.core.limits import ReplicaLimits
from tiedreq.core.picker import ReplicaTable, ReplicaView
from tiedreq.core.policy import Plain, Policy, Tied
from tiedreq.core.replica import HeldMethod, ReplicaCore
from tiedreq.core.types import UNTIED, CallId, CopyId, CopyKind, Identity, Load, MethodInfo
from tiedreq.wire.codec import decode_frame, encode_message, join_frame
from tiedreq.wire.limits import DEFAULT_LIMITS

ROUNDS_DEFAULT, LENGTHS_DEFAULT, REPEATS = 9, "10,100,1000,10000,100000", 2000
CALLER, PEER, CLIENT = 1, 2, 7
HERE, THERE = Identity("r0", 1), Identity("r1", 2)
INFO = MethodInfo("echo", True, True, 60.0)
PAYLOAD = bytes(128)
STEP, MESSAGE, CALL, DROP = "µs per step", "µs per message", "µs per call", "µs per drop"

Measured = Callable[[], float]
"""Takes a turn and returns microseconds."""


@contextmanager
def undisturbed() -> Iterator[None]:
    """No garbage collection meanwhile: when it comes is a matter of luck."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def submit(number: int, *, tied: bool) -> m.Submit:
    """A copy as it comes off the wire: nothing in it is shared with another."""
    copy = CopyId(CLIENT, number, 0, 0 if tied else UNTIED)
    partners = (HERE, THERE) if tied else ()
    message = m.Submit(copy, CopyKind.FIRST, "echo", PAYLOAD, 10.0, partners, True, False, False, None, ())
    (decoded,) = decode_frame(join_frame([encode_message(message)]), DEFAULT_LIMITS)
    assert isinstance(decoded, m.Submit)
    return decoded


def replica(slots: int, queue: int = 10_000, markers: int = 50_000, tombstones: int = 50_000) -> ReplicaCore:
    """A replica with a caller and a peer."""
    limits = ReplicaLimits(
        queue_length_max=queue,
        copies_per_caller_max=queue,
        markers_per_peer_max=markers,
        tombstones_max=tombstones,
    )
    core = ReplicaCore(HERE, [HeldMethod(INFO, None)], slots=slots, limits=limits)
    core.step(e.CallerConnected(CALLER, CLIENT), 0.0)
    core.step(e.PeerConnected(PEER, THERE), 0.0)
    return core


class Executions:
    """Copies that arrive, start and end at an idle replica."""

    def __init__(self, *, tied: bool) -> None:
        self._core = replica(slots=8)
        self._tied = tied
        self._number = 0

    def __call__(self) -> float:
        core, answer = self._core, e.Answer(PAYLOAD)
        first, self._number = self._number, self._number + REPEATS
        events: list[e.ReplicaEvent] = []
        for number in range(first, self._number):
            message = submit(number, tied=self._tied)
            events += e.SubmitReceived(CALLER, message), e.InputSettled(), e.WorkFinished(message.copy, answer)
        with undisturbed():
            began = time.process_time()
            for event in events:
                core.step(event, 1.0)
            return (time.process_time() - began) / len(events) * 1e6


class Drops:
    """Copies that are dropped from a queue of a given length: at random, or the oldest first.

    The partners of what waits in a queue stand in queues in much the same order, so starts come much in that order too.
    """

    def __init__(self, length: int, seed: int, *, oldest: bool) -> None:
        self._oldest = oldest
        self._rng = Random(seed)
        self._core = replica(slots=1, queue=length + 10)
        self._core.step(e.SubmitReceived(CALLER, submit(0, tied=False)), 0.0)
        self._core.step(e.InputSettled(), 0.0)
        self._waiting: list[CopyId] = []
        self._number = 0
        self._length = length
        self._fill()

    def _fill(self) -> None:
        while len(self._waiting) < self._length:
            self._number += 1
            message = submit(self._number, tied=True)
            self._core.step(e.SubmitReceived(CALLER, message), 1.0)
            self._waiting.append(message.copy)

    def __call__(self) -> float:
        took, dropped = 0.0, 0
        while dropped < REPEATS:
            count = min(self._length, REPEATS)
            taken = self._waiting[:count] if self._oldest else self._rng.sample(self._waiting, count)
            gone = set(taken)
            self._waiting = [copy for copy in self._waiting if copy not in gone]
            events = [e.PeerStarted(PEER, copy._replace(rank=1), 10.0) for copy in taken]
            with undisturbed():
                for event in events[: len(events) // 10]:  # the same start for all: the code is in the caches
                    self._core.step(event, 1.0)
                began = time.process_time()
                for event in events[len(events) // 10 :]:
                    self._core.step(event, 1.0)
                took += time.process_time() - began
            dropped += len(events) - len(events) // 10
            self._fill()
        assert self._core.queue_length == self._length
        return took / dropped * 1e6


class Calls:
    """Calls from the request to the outcome: a Started and a Result for the first copy."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._replicas = ReplicaTable(Random(1))
        for link, identity in enumerate((HERE, THERE)):
            self._replicas.add(ReplicaView(link, identity, m.Welcome(8, False, 2**20, (INFO,))))
        self._stats, self._learning = CallStats(), LearningBook()
        self._number = 0

    def __call__(self) -> float:
        with undisturbed():
            began = time.process_time()
            for _ in range(REPEATS):
                self._call()
            return (time.process_time() - began) / REPEATS * 1e6

    def _call(self) -> None:
        self._number += 1
        now = 1.0 + self._number * 1e-4
        identity = CallId(CLIENT, self._number)
        request = CallRequest(identity, "echo", True, PAYLOAD, self._policy, now + 10.0)
        core = CallCore(request, self._replicas, self._stats, rounds_max=5, learning=self._learning)
        first, *_ = core.step(e.CallRequested(), now)
        assert isinstance(first, SendCopy)
        copy = first.submit.copy
        view = self._replicas.get(first.link)
        assert view is not None
        view.take_load(Load(0, 8, view.sent, 0.0), now)
        core.step(e.CopyStarted(first.link, copy), now)
        core.step(e.ResultReceived(first.link, copy, True, 0.001, 0.0), now + 0.001)


class Codec:
    """The messages of a tied call, to bytes and back."""

    def __init__(self, *, decode: bool) -> None:
        copy, load = CopyId(2**63, 12345, 0, 0), Load(3, 0, 12345, 0.0)
        messages: list[m.Message] = [
            submit(1, tied=True),
            m.Started(copy, 9.9, load),
            m.Started(copy, 9.9, None),
            m.Result(copy, PAYLOAD, 0.010, 0.002, load),
        ] * 4
        self._messages = messages
        self._frame = join_frame([encode_message(message) for message in messages])
        self._decode = decode

    def __call__(self) -> float:
        rounds = REPEATS // len(self._messages)
        with undisturbed():
            began = time.process_time()
            for _ in range(rounds):
                if self._decode:
                    decode_frame(self._frame, DEFAULT_LIMITS)
                else:
                    join_frame([encode_message(message) for message in self._messages])
            return (time.process_time() - began) / (rounds * len(self._messages)) * 1e6


def subjects(options: argparse.Namespace) -> dict[str, tuple[str, Measured, str | None]]:
    """Everything that is measured: unit, how, and what it is compared with."""
    drops: dict[str, tuple[str, Callable[[], Measured], str | None]] = {}
    for name, oldest in (("drop from a queue", False), ("drop the oldest of a queue", True)):
        for n in options.lengths:
            make = partial(Drops, n, options.seed, oldest=oldest)
            drops[f"{name} of {n:,}"] = (DROP, make, f"{name} of {options.lengths[0]:,}")
    made: dict[str, tuple[str, Callable[[], Measured], str | None]] = {
        "replica, untied copies": (STEP, partial(Executions, tied=False), None),
        "replica, tied copies": (STEP, partial(Executions, tied=True), "replica, untied copies"),
        "call, plain": (CALL, partial(Calls, Plain()), None),
        "call, tied": (CALL, partial(Calls, Tied(stagger=0.0)), "call, plain"),
        "codec, to bytes": (MESSAGE, partial(Codec, decode=False), None),
        "codec, from bytes": (MESSAGE, partial(Codec, decode=True), "codec, to bytes"),
        **drops,
    }
    return {name: (unit, make(), peer) for name, (unit, make, peer) in made.items()}


def main() -> int:
    options = parser("bench_core", "Measure what a step of a core costs, and a message of the codec.")
    options.add_argument(
        "--rounds", type=whole, default=ROUNDS_DEFAULT, metavar="N", help="turns of each (%(default)s)"
    )
    lengths = wholes(LENGTHS_DEFAULT)
    options.add_argument(
        "--lengths", type=wholes, default=lengths, metavar="N[,N…]", help=f"lengths of the queue ({LENGTHS_DEFAULT})"
    )
    options.add_argument("--seed", type=int, default=1, help="of what is dropped (%(default)s)")
    chosen = options.parse_args()
    measured = subjects(chosen)
    values: dict[str, list[float]] = {name: [] for name in measured}
    for _ in range(chosen.rounds):
        for name, (_, measure, _) in measured.items():
            values[name].append(measure())
    rows: list[Row] = []
    for name, (unit, _, peer) in measured.items():
        rows.append(row(name, unit, values[name], peer=peer, peers=None if peer is None else values[peer]))
    show("One core of this machine; medians over rounds", rows)
    write(chosen.json, rows)
    return 0


if __name__ == "__main__":
    as_program(main)
