"""Whole clusters under faults, a few hundred seeds. More: ``scripts/simulate --minutes N``."""

from __future__ import annotations

import os
import random
import re
import subprocess
import sys
import time

import pytest

from tiedreq.core.call import CallCore
from tiedreq.core.events import PeerStarted
from tiedreq.core.replica import ReplicaCore
from tiedreq.sim.faults import FaultOptions
from tiedreq.sim.options import FAULT_KINDS, SimOptions
from tiedreq.sim.run import RunResult, run_seed

SEEDS = 300
BATCH = 25
REPLAY = "replay: scripts/simulate --seed {} --trace"


def told(result: RunResult) -> str:
    violations = [str(violation) for violation in result.violations]
    return "\n".join([result.options.describe(), *violations, REPLAY.format(result.options.seed)])


@pytest.mark.parametrize("first", range(1, SEEDS + 1, BATCH))
def test_seeds(first: int) -> None:
    for seed in range(first, first + BATCH):
        result = run_seed(seed)
        assert result.ok, told(result)


@pytest.mark.soak
def test_new_seeds(minutes: float) -> None:
    end = time.monotonic() + 60 * minutes
    first = random.SystemRandom().randrange(1_000_000, 1_000_000_000)
    print(f"seeds from {first} on")
    seed = first
    while time.monotonic() < end:
        result = run_seed(seed)
        assert result.ok, told(result)
        seed += 1


def test_same_seed_same_history_in_any_process() -> None:
    program = "\n".join(
        [
            "from tiedreq.sim.run import run_seed",
            "for seed in range(1, 21):",
            "    result = run_seed(seed)",
            "    print(seed, result.digest, result.steps, result.counts, sorted(result.sizes.items()))",
        ]
    )
    told_by = [
        subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for hash_seed in ("1", "2024")
    ]
    assert told_by[0] == told_by[1]
    assert len(told_by[0].splitlines()) == 20


def test_keeping_the_transcript_changes_nothing() -> None:
    for seed in range(1, 6):
        kept, plain = run_seed(seed, keep=True), run_seed(seed)
        assert kept.digest == plain.digest and kept.steps == plain.steps
        assert kept.lines and not plain.lines


def test_different_seeds_differ() -> None:
    assert len({run_seed(seed).digest for seed in range(1, 11)}) == 10


def test_options_are_drawn_from_the_seed_alone_and_describe_themselves() -> None:
    for seed in range(200):
        options = SimOptions.draw(seed)
        assert options == SimOptions.draw(seed)
        assert options.describe().startswith(f"seed {seed}: ")
        assert options.line().startswith(f"seed {seed}: ") and "\n" not in options.line()


def test_the_swarm_leaves_out_and_puts_in() -> None:
    drawn = [SimOptions.draw(seed) for seed in range(300)]
    for kind in FAULT_KINDS:
        share = sum(bool(getattr(options.faults, kind)) for options in drawn) / len(drawn)
        assert 0.1 < share < 0.5, kind
    assert any(options.faults == FaultOptions(length_max=options.faults.length_max) for options in drawn) or any(
        not any(getattr(options.faults, kind) for kind in FAULT_KINDS) for options in drawn
    )
    for tiny in ("queue_length_max", "markers_per_peer_max", "tombstones_max"):
        values = {getattr(options.world.replica_limits, tiny) for options in drawn}
        assert min(values) == 1 and max(values) >= 10_000
    assert {options.world.replicas for options in drawn} == {1, 2, 3, 4, 5}


def test_every_kind_of_fault_strikes_and_calls_are_answered_all_the_same() -> None:
    struck: set[str] = set()
    answered = calls = 0
    for seed in range(1, 61):
        result = run_seed(seed)
        struck.update(result.faults)
        answered += result.counts.answered
        calls += result.counts.calls
    assert struck == set(FAULT_KINDS)
    assert answered > 0.6 * calls


class Deaf(ReplicaCore):
    """Hears no start of a partner."""

    def _peer_started(self, event: PeerStarted, now: float) -> None:
        pass


class Stuck(CallCore):
    """Never wakes."""

    @property
    def wake_at(self) -> float:
        return float("inf")


class Raising(ReplicaCore):
    """Can't drain."""

    def _drain_requested(self, event: object, now: float) -> None:
        raise KeyError("drain")


def first_failure(**cores: object) -> RunResult:
    for seed in range(1, 60):
        result = run_seed(seed, **cores)  # type: ignore[arg-type]
        if not result.ok:
            return result
    raise AssertionError("60 seeds, and nothing noticed")


class Asleep(ReplicaCore):
    """Never asks to be woken: its markers stay."""

    @property
    def wake_at(self) -> None:
        return None


def test_broken_cores_are_noticed() -> None:
    assert first_failure(replica_core=Deaf).violations[0].invariant in ("S6", "S11")
    assert first_failure(call_core=Stuck).violations[0].invariant in ("L1", "6.3")
    raising = first_failure(replica_core=Raising).violations[0]
    assert raising.invariant == "raised" and "KeyError: 'drain'" in raising.reason


def test_what_never_drains_is_told() -> None:
    violation = first_failure(replica_core=Asleep).violations[0]
    assert violation.invariant == "L1"
    assert re.search(r"does not drain: r\d: \d+ (cancel_)?markers", violation.reason)
