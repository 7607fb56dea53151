"""The four means, each as a function from a mutant and the name of a run to what was noticed, or None.

Every mean has named runs, so that a broken core and the right one pass the very same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

import pytest

from tests.exhaustive import parts
from tests.exhaustive.search import Search
from tests.mutants.call_rules import ruled_call
from tests.mutants.cases import CARELESS, CASES, SECONDS_MAX
from tests.mutants.guard import guarded, guarded_call
from tests.mutants.link_world import search
from tests.mutants.machines import MACHINES, OTHERS, run_machine
from tests.mutants.mutants import UNBROKEN, Mutant
from tests.mutants.plays import PLAYS, play
from tests.mutants.replica_rules import ruled
from tests.mutants.storms import STORMS, blow
from tests.mutants.worlds import SEEDS, WORLDS
from tiedreq.sim.run import run

STORM_SEEDS, BROKEN_STORM_SEEDS = 2, 10
LINKS = "links"


@dataclass(frozen=True)
class Mean:
    """One way to notice. ``look(mutant, run)`` says what was noticed."""

    name: str
    runs: tuple[str, ...]
    look: Callable[[Mutant, str], str | None]


def _first(found: Iterable[str | None]) -> str | None:
    return next((told for told in found if told is not None), None)


def exhaustive(mutant: Mutant, name: str) -> str | None:
    """Every interleaving of a small case, or of two ends of a link."""
    if name == LINKS:
        with mutant.put_in():
            return search(mutant.link_core)
    case = CASES[name]
    with pytest.MonkeyPatch.context() as patch, mutant.put_in():
        patch.setattr("tests.exhaustive.parts.ReplicaCore", ruled(mutant.replica_core))
        patch.setattr("tests.exhaustive.parts.CallCore", ruled_call(mutant.call_core))
        if name in CARELESS:
            right = parts.method_of
            patch.setattr(parts, "method_of", lambda case: right(replace(case, idempotent=False)))
        try:
            report = Search(case, seconds_max=SECONDS_MAX).run()
        except Exception as error:
            return f"raised: {error!r}"
    return str(report.violations[0]) if report.violations else None


def stateful(mutant: Mutant, name: str) -> str | None:
    """A bounded number of Hypothesis's histories."""
    with mutant.put_in():
        broken = mutant.name != UNBROKEN.name
        return run_machine(name, mutant.replica_core, mutant.call_core, mutant.link_core, broken=broken)


def simulation(mutant: Mutant, name: str) -> str | None:
    """A few seeds of a simulated world."""
    return _first(simulate(mutant, name, seed) for seed in range(SEEDS))


def simulate(mutant: Mutant, name: str, seed: int) -> str | None:
    """One seed of a simulated world."""
    with mutant.put_in():
        if name in PLAYS:
            return play(name, seed)
        cores = {"replica_core": guarded(mutant.replica_core), "call_core": guarded_call(mutant.call_core)}
        result = run(replace(WORLDS[name], seed=seed), **cores)  # type: ignore[arg-type]  # a core for each name
        return str(result.violations[0]) if result.violations else None


def drivers(mutant: Mutant, name: str) -> str | None:
    """A storm over the real drivers. Trio draws the order of tasks anew in each run: a broken core has more tries."""
    seeds = STORM_SEEDS if mutant.name == UNBROKEN.name else BROKEN_STORM_SEEDS
    return _first(drive(mutant, name, seed) for seed in range(seeds))


def drive(mutant: Mutant, name: str, seed: int) -> str | None:
    """One seed of a storm."""
    with mutant.put_in():
        problems = blow(STORMS[name], seed, mutant.replica_core, mutant.call_core, mutant.link_core)
    return problems[0] if problems else None


MEANS: dict[str, Mean] = {
    mean.name: mean
    for mean in (
        Mean("exhaustive", (*CASES, LINKS), exhaustive),
        Mean("stateful", (*MACHINES, *OTHERS), stateful),
        Mean("simulation", (*WORLDS, *PLAYS), simulation),
        Mean("drivers", tuple(STORMS), drivers),
    )
}
