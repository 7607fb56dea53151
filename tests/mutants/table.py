"""Which mean catches which broken core: the record in ``caught.json``, and the page that is made from it.

python -m tests.mutants.table --write      docs/mutants.md from the record
python -m tests.mutants.table --measure    the record anew (minutes); names of mutants or means measure only those
"""

from __future__ import annotations

import contextlib
import io
import json
import logging
import signal
import sys
import time
from pathlib import Path
from types import FrameType

from tests.mutants.means import MEANS, Mean, drive, simulate
from tests.mutants.mutants import MUTANTS, Mutant
from tests.mutants.sentences import RULES, of_mutant

RECORD = Path(__file__).with_name("caught.json")
PAGE = Path(__file__).parents[2] / "docs" / "mutants.md"
SECONDS_PER_RUN = 25
SURE = 3
"""Seeds of which all must catch for a run to be taken without trying the others."""
PLACES = [name for rule in RULES for name in rule.mutants]
"""Mutants in the order of the rules that they break."""
Record = dict[str, dict[str, str]]

HEAD = """\
# Broken on purpose

A checker that can't fail is a defect. Each row is production code with one rule of the design broken, a few lines of
code in `tests/mutants`; each column is one of the four means that search for races. A cell names the run of that mean
that notices, and `tests/mutants/test_mutants.py` makes every one of these runs again: with the broken code, which must
be noticed, and with the right one, which must not. A dash means that no run of that mean that was tried noticed.

* **exhaustive**: every interleaving of a small case (`cases.py`); of the two ends of a link (`link_world.py`)
* **stateful**: a few hundred of Hypothesis's histories over cores and network, over the two ends of a link, and of the
  brake and the governor against their models (`machines.py`)
* **simulation**: a few seeds of a simulated world (`worlds.py`), and of calls against what a client learns (`plays.py`)
* **drivers**: the real Trio drivers in virtual time, over an in-memory network (`storms.py`)

In all of them the invariants of the simulator look on (`tiedreq/sim`), and the rules that one step can break alone
(`replica_rules.py`, `call_rules.py`, `link_rules.py`). The simulator has a network of its own, without `LinkCore`: the
rules of links are for the other three.

This page is generated: `python -m tests.mutants.table --write`. The runs in it are found anew, which takes minutes, by
`python -m tests.mutants.table --measure`. The sentences are in `sentences.py`.
"""

BEYOND = """\
## Out of reach

Rules whose breach shows in no run of the four means: figures and costs that have their own tests, what only a driver
keeps, and what no honest network brings about. The right column names the tests.

| rule | tests |
|---|---|
"""


def load() -> Record:
    """The record: for each mutant the means that catch it, and the run with which they do."""
    record: Record = json.loads(RECORD.read_text()) if RECORD.exists() else {}
    return record


def page(record: Record) -> str:
    """The page as text."""
    means = list(MEANS)
    lines = [HEAD, f"| broken | rule | what is wrong | {' | '.join(means)} | means |"]
    lines.append("|---" * (4 + len(means)) + "|")
    for name, mutant in sorted(MUTANTS.items(), key=lambda item: PLACES.index(item[0])):
        cells = [record.get(name, {}).get(mean, "–") for mean in means]
        count = sum(mean in record.get(name, {}) for mean in means)
        told = mutant.broken.replace("|", "\\|")
        rule = of_mutant(name)
        words = f"{rule.place}: {rule.sentence}" if rule is not None else mutant.rule
        lines.append(f"| {name} | {words} | {told} | {' | '.join(cells)} | {count} |")
    few = [name for name in MUTANTS if len(record.get(name, {})) < 2]
    total = {mean: sum(mean in cells for cells in record.values()) for mean in means}
    counted = ", ".join(f"{mean} {count}" for mean, count in total.items())
    told = f"Caught by fewer than two means: {', '.join(few)}." if few else "Each is caught by two means at least."
    lines += ["", f"{len(MUTANTS)} broken in all. Caught by: {counted}. {told}", "", BEYOND.rstrip()]
    for rule in RULES:
        if rule.tests:
            lines.append(f"| {rule.place}: {rule.sentence} | {', '.join(f'`{test}`' for test in rule.tests)} |")
    lines.append("")
    return "\n".join(lines)


class _TooLong(BaseException):
    """A run took too long."""


def _give_up(signum: int, frame: FrameType | None) -> None:
    raise _TooLong


def _noticed(mean: Mean, mutant: Mutant, run: str) -> int:
    """In how many of the first seeds a run notices a mutant; a run without seeds has as many as it needs."""
    if mean.name in ("simulation", "drivers"):
        look, seeds = (simulate, SURE) if mean.name == "simulation" else (drive, 2)
        return sum(look(mutant, run, seed) is not None for seed in range(seeds)) * SURE // seeds
    return SURE if mean.look(mutant, run) is not None else 0


def find(mean: Mean, mutant: Mutant, hint: str | None = None) -> str | None:
    """The run that notices a mutant most surely, or None."""
    best, best_count = None, 0
    for run in sorted(mean.runs, key=lambda run: run != hint):
        signal.alarm(SECONDS_PER_RUN)
        try:
            with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
                count = _noticed(mean, mutant, run)
        except _TooLong:
            count = 0
        finally:
            signal.alarm(0)
        if count > best_count:
            best, best_count = run, count
        if best_count >= SURE:
            break
    return best


def measure(only: list[str]) -> None:
    """Find the runs anew, and write the record after each mutant."""
    signal.signal(signal.SIGALRM, _give_up)
    logging.disable(logging.CRITICAL)
    record = {name: cells for name, cells in load().items() if name in MUTANTS}
    means = [mean for mean in MEANS.values() if mean.name in only] or list(MEANS.values())
    names = [name for name in MUTANTS if name in only] or list(MUTANTS)
    for name in names:
        cells = record.setdefault(name, {})
        for mean in means:
            began = time.monotonic()
            found = find(mean, MUTANTS[name], cells.pop(mean.name, None))
            if found is not None:
                cells[mean.name] = found
            print(f"{name:<32} {mean.name:<12} {found or '–':<28} {time.monotonic() - began:6.1f} s", flush=True)
        record = {known: record[known] for known in MUTANTS if known in record}
        RECORD.write_text(json.dumps(record, indent=1, ensure_ascii=False) + "\n")


def main(arguments: list[str]) -> None:
    """The command."""
    if arguments[:1] == ["--measure"]:
        measure(arguments[1:])
    elif arguments == ["--write"]:
        PAGE.write_text(page(load()))
    else:
        sys.exit(__doc__)


if __name__ == "__main__":
    main(sys.argv[1:])
