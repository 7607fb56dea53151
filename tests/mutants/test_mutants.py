"""Every broken core is noticed by the means that the record names, and the right core passes the very same runs.

The quick suite looks by one means per broken core, and at the right one with one seed; the long kinds do all.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.mutants.means import MEANS, drive, simulate
from tests.mutants.mutants import MUTANTS, UNBROKEN
from tests.mutants.sentences import RULES
from tests.mutants.table import PAGE, load, page

RECORD = load()
CAUGHT = [(name, mean, run) for name, cells in RECORD.items() for mean, run in cells.items()]
ACCIDENTS = ("KeyError", "AttributeError", "TypeError", "IndexError", "UnknownTransition")
RUNS = sorted({(mean, run) for _, mean, run in CAUGHT})
FIRST = {(name, *next(iter(cells.items()))) for name, cells in RECORD.items() if cells}
FIRST_RUNS = {(mean, run) for _, mean, run in FIRST}


@pytest.mark.parametrize(
    ("name", "mean", "run"),
    [
        pytest.param(*catch, id=f"{catch[0]}-{catch[1]}", marks=[] if catch in FIRST else [pytest.mark.soak])
        for catch in CAUGHT
    ],
)
def test_a_broken_core_is_noticed(name: str, mean: str, run: str) -> None:
    told = MEANS[mean].look(MUTANTS[name], run)
    assert told is not None
    assert not any(kind in told for kind in ACCIDENTS), "a core that just falls over shows nothing"


@pytest.mark.parametrize(
    ("mean", "run"),
    [pytest.param(*run, id="-".join(run), marks=pytest.mark.soak) for run in RUNS],
)
def test_the_right_core_passes_the_same_run(mean: str, run: str) -> None:
    assert MEANS[mean].look(UNBROKEN, run) is None


@pytest.mark.parametrize(("mean", "run"), [pytest.param(*run, id="-".join(run)) for run in sorted(FIRST_RUNS)])
def test_the_right_core_passes_with_the_first_seed(mean: str, run: str) -> None:
    first = {"simulation": simulate, "drivers": drive}.get(mean)
    assert (MEANS[mean].look(UNBROKEN, run) if first is None else first(UNBROKEN, run, 0)) is None


@pytest.mark.parametrize("name", MUTANTS)
def test_two_means_at_least(name: str) -> None:
    assert len(RECORD.get(name, {})) >= 2


def test_the_record_knows_no_other() -> None:
    assert set(RECORD) <= set(MUTANTS)
    assert all(run in MEANS[mean].runs for _, mean, run in CAUGHT)


def test_each_says_what_it_breaks() -> None:
    for mutant in MUTANTS.values():
        assert mutant.rule[:1] in "4567" and len(mutant.broken) > 20, mutant.name


def test_each_rule_is_broken_by_somebody_or_names_its_tests() -> None:
    named = [name for rule in RULES for name in rule.mutants]
    assert sorted(named) == sorted(MUTANTS), "each mutant breaks one sentence"
    for rule in RULES:
        assert bool(rule.mutants) != bool(rule.tests), rule
        for test in rule.tests:
            path, _, name = test.partition("::")
            assert Path(path).exists() and name in Path(path).read_text(), test


def test_the_page_is_current() -> None:
    assert PAGE.read_text() == page(RECORD), "python -m tests.mutants.table --write"
