"""``python -m cluster.compare``: policies compared on the same replicas, simulated or live.

The table is on standard output, unless JSON is (``--json -``); then it is on standard error, where also everything else
that people read is.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import signal
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from cluster.compare.cell import Cell
from cluster.compare.display import WIDTH_WITHOUT_TERMINAL, make_table, progress
from cluster.compare.document import make_document, write_csv, write_json
from cluster.compare.expect import Failure, check_expectations
from cluster.compare.grid import Task, curve_of, groups_of, rows_of, tasks_of
from cluster.compare.interrupted import INTERRUPTED, lone_interrupt
from cluster.compare.options import CompareOptions, read_options
from cluster.compare.rows import Row
from cluster.compare.runner import RunFailed, cores, run_tasks
from cluster.compare.tally import Tally
from cluster.compare.verdict import verdict
from tiedreq.core.errors import BadOption

FAILED, BAD_USAGE = 1, 2


def main(arguments: Sequence[str] | None = None) -> int:
    """Read the command line and run; the exit code."""
    try:
        options = read_options(sys.argv[1:] if arguments is None else arguments)
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except click.exceptions.Exit as ending:  # --help
        return ending.exit_code
    return Comparison(options).run()


class Comparison:
    """One run of the program."""

    def __init__(self, options: CompareOptions) -> None:
        self._options = options
        self._plan = options.plan
        self._results: dict[Task, Tally] = {}
        self._people = _console(stderr=True)

    def run(self) -> int:
        """Run everything and write what was asked for; the exit code."""
        if self._options.out is not None and importlib.util.find_spec("matplotlib") is None:
            self._note("report: matplotlib is missing, so only rows will be written; pip install 'tiedreq[report]'")
        code = self._run_all()
        rows = rows_of(self._plan.cells, self._plan.seeds, self._results)
        if not rows:
            self._note("no row was finished")
            return code or FAILED
        written = self._write(rows)
        self._notes(rows)
        expected = self._expect(rows)
        return code or written or expected

    def _run_all(self) -> int:
        tasks = tasks_of(self._plan.cells, self._plan.seeds)
        # Who stops this program by SIGTERM wants the finished rows as well.
        before = signal.signal(signal.SIGTERM, signal.default_int_handler)
        try:
            with lone_interrupt(), progress(self._people, len(tasks)) as bar:
                for task, tally in self._tallies(tasks):
                    self._results[task] = tally
                    bar.advance()
        except KeyboardInterrupt:
            self._note("interrupted: these are the rows that were finished")
            return INTERRUPTED
        except BadOption as error:
            self._note(str(error))
            return BAD_USAGE
        except RunFailed as error:
            self._note(str(error))
            return BAD_USAGE if error.bad_usage else FAILED
        finally:
            signal.signal(signal.SIGTERM, before)
        return 0

    def _tallies(self, tasks: Sequence[Task]) -> Iterator[tuple[Task, Tally]]:
        options = self._options
        if options.engine == "local":
            return run_tasks(tasks, options.jobs or cores())
        from cluster.engines.on_ray.sweep import run_on_ray

        return run_on_ray(tasks, options.address, options.jobs)

    # ---- what is written --------------------------------------------------------------------------------------

    def _write(self, rows: Sequence[tuple[Cell, Row]]) -> int:
        document = make_document(self._plan.options, rows)
        to_stdout = self._options.json == "-"
        console = self._people if to_stdout else _console(stderr=False)
        console.print(make_table(rows, self._title(rows[0][0]), console.width))
        try:
            if to_stdout:
                sys.stdout.write(json.dumps(document, allow_nan=False) + "\n")
                sys.stdout.flush()
            elif self._options.json is not None:
                write_json(document, Path(self._options.json))
            if self._options.out is not None:
                curves = [curve_of(cell, self._plan.seeds, self._results) for cell, _ in rows]
                return self._report(self._options.out, {**document, "curves": curves})
        except OSError as error:
            self._note(f"{error.filename or 'standard output'}: {error.strerror}")
            return FAILED
        return 0

    def _report(self, out: Path, document: dict[str, Any]) -> int:
        out.mkdir(parents=True, exist_ok=True)
        write_json(document, out / "rows.json")
        write_csv(document["rows"], out / "rows.csv")
        try:
            importlib.import_module("cluster.compare.report").write(out, document)
        except ImportError as error:
            self._note(f"report: {error.name or error} is missing; pip install 'tiedreq[report]' (rows are in {out})")
            return FAILED
        self._note(f"report in {out / 'report.html'}")
        return 0

    def _title(self, cell: Cell) -> str:
        overrides = self._plan.options["overrides"]
        changed = f", changed: {', '.join(sorted(overrides))}" if overrides else ""
        return (
            f"{cell.world}: {self._name(cell)}{changed} – {cell.replicas} replicas x {cell.slots},"
            f" {cell.app or cell.service}, seeds {self._plan.seeds[0]} to {self._plan.seeds[-1]}; times in ms"
        )

    def _name(self, cell: Cell) -> str:
        return cell.scenario or ("your calls" if cell.recording is not None else "as the options say")

    # ---- what is said -----------------------------------------------------------------------------------------

    def _notes(self, rows: Sequence[tuple[Cell, Row]]) -> None:
        for note in dict.fromkeys(note for tally in self._results.values() for note in tally.notes):
            self._note(note)
        if self._plan.cells[0].recording is not None:
            self._verdicts(rows)
        if not all(row["stable"] for _, row in rows):
            self._note("unstable: queues grew to the end, and percentiles depend on how long the run was")

    def _verdicts(self, rows: Sequence[tuple[Cell, Row]]) -> None:
        for group in groups_of(rows):
            if "plain" in group:
                where = f" at {group['plain']['mesh_latency_ms']:g} ms between replicas"
                self._note(f"your calls{where}: {verdict(group)}")
        if not self._plan.cells[0].intrinsic:
            self._note("this supposes that slowness belongs to replicas, not to calls; --intrinsic supposes the latter")

    def _expect(self, rows: Sequence[tuple[Cell, Row]]) -> int:
        if not self._options.expectations:
            return 0
        failures, checks = check_expectations(self._options.expectations, groups_of(rows))
        for failure in failures:
            self._tell(failure)
        self._note(f"expectations: {checks - len(failures)} of {checks} met")
        return FAILED if failures or not checks else 0

    def _tell(self, failure: Failure) -> None:
        self._note(f"not as expected: {failure.expectation.text}: {failure.why}")
        for row in failure.rows:
            self._note(f"  {json.dumps(row)}")

    def _note(self, text: str) -> None:
        print(f"compare: {text}", file=sys.stderr, flush=True)


def _console(*, stderr: bool) -> Console:
    console = Console(stderr=stderr)
    return console if console.is_terminal else Console(stderr=stderr, width=WIDTH_WITHOUT_TERMINAL)


if __name__ == "__main__":
    sys.exit(main())
