"""What a replica's core keeps in the long run: memory grows until its tables are full, and no further."""

from __future__ import annotations

import gc
import tracemalloc

import pytest

from tiedreq.core import events as e
from tiedreq.core import messages as m
from tiedreq.core.limits import ReplicaLimits
from tiedreq.core.replica import HeldMethod, ReplicaCore
from tiedreq.core.types import UNTIED, CopyId, CopyKind, Identity, MethodInfo
from tiedreq.wire.codec import decode_frame, encode_message, join_frame
from tiedreq.wire.limits import DEFAULT_LIMITS

CALLER, PEER, CLIENT = 1, 2, 2**63 + 7
HERE, THERE = Identity("r0", 1), Identity("r1", 2)
LIMIT, ROUNDS, STEP = 100, 400, 0.001
COPIES_PER_ROUND = 3
FLAT_BYTES = 10_000
TOMBSTONE_BYTES_MAX = 600


class Replica:
    """A core that is driven through calls of every kind, each as it comes off the wire; ``now`` is virtual."""

    def __init__(self, tombstones_max: int) -> None:
        limits = ReplicaLimits(
            tombstones_max=tombstones_max,
            markers_per_peer_max=LIMIT,
            cancel_markers_per_caller_max=LIMIT,
            marker_age_max=LIMIT * STEP,
        )
        self.core = ReplicaCore(HERE, [HeldMethod(MethodInfo("echo", True, True, 60.0), None)], slots=8, limits=limits)
        self.now = 0.0
        self._number = 0
        self._take(e.CallerConnected(CALLER, CLIENT), e.PeerConnected(PEER, THERE))

    def _take(self, *events: e.ReplicaEvent) -> None:
        for event in events:
            self.core.step(event, self.now)

    def _submit(self, rank: int, remaining: float = 10.0) -> m.Submit:
        self._number += 1
        copy, partners = CopyId(CLIENT, self._number, 0, rank), () if rank == UNTIED else (HERE, THERE)
        message = m.Submit(copy, CopyKind.FIRST, "echo", b"x" * 128, remaining, partners, True, False, False, None, ())
        (decoded,) = decode_frame(join_frame([encode_message(message)]), DEFAULT_LIMITS)
        assert isinstance(decoded, m.Submit)
        return decoded

    def round(self) -> None:
        """One is answered, one is dropped for its partner, one expires; others never come, only news of them."""
        answered, dropped, expired = self._submit(UNTIED), self._submit(0), self._submit(0, remaining=STEP / 2)
        self._take(e.SubmitReceived(CALLER, answered), e.InputSettled())
        self._take(e.WorkFinished(answered.copy, e.Answer(b"y" * 128)))
        self._take(e.SubmitReceived(CALLER, dropped), e.PeerStarted(PEER, dropped.copy._replace(rank=1), 5.0))
        self._take(e.SubmitReceived(CALLER, expired))
        self._take(e.PeerStarted(PEER, CopyId(CLIENT, 10**9 + self._number, 0, 1), 5.0))
        self._take(e.CancelReceived(CALLER, CopyId(CLIENT, 2 * 10**9 + self._number, 0, 0)))
        self.now += STEP
        if (wake_at := self.core.wake_at) is not None and wake_at <= self.now:
            self._take(e.TimePassed())

    def bytes_after(self, rounds: int) -> int:
        """What is allocated after so many rounds more."""
        for _ in range(rounds):
            self.round()
        gc.collect()
        return tracemalloc.get_traced_memory()[0]


@pytest.mark.parametrize("tombstones_max", [LIMIT, 50_000])
def test_memory_is_flat_once_tables_are_full(tombstones_max: int) -> None:
    """Where tombstones have room, each takes some hundred bytes: so the test would notice if anything were kept."""
    tracemalloc.start()
    try:
        replica = Replica(tombstones_max)
        before = replica.bytes_after(ROUNDS)
        grown = replica.bytes_after(ROUNDS) - before
    finally:
        tracemalloc.stop()
    sizes = replica.core.sizes()
    assert sizes["copies"] == 0
    assert all(LIMIT / 2 < sizes[table] <= LIMIT for table in ("markers", "cancel_markers"))
    if tombstones_max == LIMIT:
        assert sizes["tombstones"] == LIMIT and grown < FLAT_BYTES
    else:
        assert sizes["tombstones"] == 2 * ROUNDS * COPIES_PER_ROUND
        assert 100 < grown / ROUNDS / COPIES_PER_ROUND < TOMBSTONE_BYTES_MAX
