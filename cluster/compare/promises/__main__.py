"""``python -m cluster.compare.promises reach|harm|together|ablation``: what is promised next to what is measured.

The table is on standard output, progress on standard error. The exit code is 1 where a promise does not hold, 130 after
Ctrl-C. The full grid of ``harm`` takes hours on two cores: it is for the night; ``--scenarios``, ``--loads``,
``--latencies`` and ``--scale`` make it smaller, and with ``--keep`` a night that was interrupted goes on.
"""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from cluster.compare.cell import Cell
from cluster.compare.display import WIDTH_WITHOUT_TERMINAL, make_table, progress
from cluster.compare.document import environment, json_target, make_directory, make_document, write_csv, write_json
from cluster.compare.grid import Task, tasks_of
from cluster.compare.interrupted import interruptible
from cluster.compare.kept import Kept
from cluster.compare.policies import check_policy_names
from cluster.compare.promises import ablation, harm, reach
from cluster.compare.promises.lasting import SUBJECTS as LASTING
from cluster.compare.promises.together import as_table, together
from cluster.compare.runner import cores, run_tasks
from cluster.compare.tally import Tally
from tiedreq.core.errors import BadOption
from tiedreq.units import format_duration, parse_duration, parse_number

SEEDS_DEFAULT = 5
SCALE_MIN, SCALE_MAX = 0.01, 100.0
FAILED = 1


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def main() -> None:
    """Put what the library promises next to what is measured, in virtual time."""


def _common(function: Any) -> Any:
    for option in reversed(
        (
            click.option("--seeds", type=click.IntRange(1, 1000), default=SEEDS_DEFAULT, show_default=True),
            click.option(
                "--scale", type=click.FloatRange(SCALE_MIN, SCALE_MAX), default=1.0, help="Times as long a run."
            ),
            click.option(
                "--jobs", type=click.IntRange(1, 256), default=None, help="Processes (default: one per core)."
            ),
            click.option(
                "--json",
                "path",
                metavar="FILE",
                default=None,
                callback=json_target,
                help="As JSON; - is standard output.",
            ),
            click.option(
                "--keep",
                type=click.Path(dir_okay=False, path_type=Path),
                metavar="FILE",
                default=None,
                help="Keep finished runs there, and don't run again what is there.",
            ),
        )
    ):
        function = option(function)
    return function


@main.command("reach")
@_common
@click.option("--only", default="", metavar="TEXT", help="What has this in it: 'pauses', or 'pauses, 60 %, 5 ms'.")
def reach_command(seeds: int, scale: float, jobs: int | None, path: str | None, keep: Path | None, only: str) -> None:
    """What tied and auto are to reach: limits on percentiles, executions per call and busy time, and what lasts."""
    numbers = range(1, seeds + 1)
    tasks = reach.tasks_of(scale, numbers, only)
    lasting = {name: lines_of for name, lines_of in LASTING.items() if only in name}
    if not tasks and not lasting:
        raise click.UsageError(f"only: nothing has {only!r} in its name")
    lines = reach.lines_of(scale, numbers, _run(tasks, jobs, keep), only)
    for name, lasting_lines_of in lasting.items():
        with interruptible(partial("in the run {!r}".format, name)):
            lines += lasting_lines_of(scale, numbers)
    console = _console(path)
    console.print(_reach_table(lines))
    console.print(f"{sum(line.holds for line in lines)} of {len(lines)} limits hold")
    shown = [
        {**_names(line.cell), "quantity": line.quantity, "limit": line.limit, "value": line.value}
        | {"low": line.low, "high": line.high, "holds": line.holds}
        for line in lines
    ]
    _write({"subject": "reach", "seeds": seeds, "scale": scale, "only": only}, {"lines": shown}, path)
    sys.exit(0 if all(line.holds for line in lines) else 1)


def _list(text: str, parse: Any) -> tuple[Any, ...]:
    try:
        return tuple(parse(part) for part in text.split(","))
    except BadOption as error:
        raise click.UsageError(str(error)) from None


@main.command("harm")
@_common
@click.option("--scenarios", default=",".join(harm.SCENARIOS), show_default=True, metavar="NAME[,…]")
@click.option("--loads", default=",".join(map(str, harm.LOADS)), show_default=True, metavar="F[,…]")
@click.option("--latencies", default=",".join(map(format_duration, harm.LATENCIES)), show_default=True, metavar="L[,…]")
@click.option("--rivals", default=",".join(harm.RIVALS), show_default=True, metavar="NAME[,…]")
def harm_command(
    seeds: int,
    scale: float,
    jobs: int | None,
    path: str | None,
    keep: Path | None,
    scenarios: str,
    loads: str,
    latencies: str,
    rivals: str,
) -> None:
    """Whether auto is ever worse than plain, and how much of the best policy's gain it has, over a grid of cells."""
    chosen = {"scenarios": scenarios, "loads": loads, "latencies": latencies, "rivals": rivals}
    numbers = range(1, seeds + 1)
    try:
        others = check_policy_names(rivals.split(","))
        cells = harm.cells_of(
            scenarios.split(","),
            _list(loads, lambda text: parse_number(text, field="loads", low=0.01, high=1.0)),
            _list(latencies, parse_duration),
            scale,
        )
    except BadOption as error:
        raise click.UsageError(str(error)) from None
    results = _run(harm.plain_tasks_of(cells, numbers), jobs, keep)
    stable, _ = harm.split(cells, numbers, results)
    left = [task for task in harm.tasks_of(stable, numbers, others) if task not in results]
    found = harm.report(cells, numbers, {**results, **_run(left, jobs, keep)}, others)
    document = _harm_as_json(found)
    console = _console(path)
    _print_harm(console, found)
    console.print(as_table(together([document])))
    _write({"subject": "harm", "seeds": seeds, "scale": scale, **chosen}, document, path)
    sys.exit(0 if found.holds else 1)


@main.command("together")
@click.argument("files", nargs=-1, required=True, type=click.Path(exists=True, dir_okay=False, path_type=Path))
def together_command(files: tuple[Path, ...]) -> None:
    """Several documents of harm --json as one grid, with one correction for all of their comparisons."""
    documents = []
    for path in files:
        try:
            documents.append(json.loads(path.read_text(encoding="utf-8")))
        except ValueError as error:
            raise click.UsageError(f"{path}: {error}") from None
    try:
        lines = together(documents)
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    _console(None).print(as_table(lines))
    proven = [one for line in lines for one in line.proven]
    for one in proven:
        print(f"proven: {json.dumps(one)}")
    collapsed = [cell for line in lines for cell in line.collapsed]
    for cell in collapsed:
        print(f"auto's queues grow and plain's don't: {json.dumps(cell)}")
    cells, reached = sum(line.cells for line in lines), sum(line.reached for line in lines)
    print(
        f"{cells} cells, {sum(line.comparisons for line in lines)} comparisons, {len(proven)} proven harm,"
        f" {len(collapsed)} collapsed; enough of the best gain in {reached} cells"
    )
    sys.exit(0 if not proven and not collapsed and reached >= 0.8 * cells else 1)


@main.command("ablation")
@_common
@click.option("--only", default="", metavar="TEXT", help="Scenarios whose names have this in them.")
@click.option("--latencies", default=None, metavar="L[,…]", help="Between replicas. [default: 200us,1ms,5ms,20ms]")
@click.option("--out", type=click.Path(file_okay=False, path_type=Path), default=None, help="Write a report.")
def ablation_command(
    seeds: int,
    scale: float,
    jobs: int | None,
    path: str | None,
    keep: Path | None,
    only: str,
    latencies: str | None,
    out: Path | None,
) -> None:
    """What each part of the policy is worth where: plain, hedged, backup, tie, yield, all of it, and auto."""
    numbers = range(1, seeds + 1)
    chosen = ablation.LATENCIES if latencies is None else _list(latencies, parse_duration)
    cells = ablation.cells_of(scale, only, chosen)
    if not cells:
        raise click.UsageError(f"only: no scenario has {only!r} in its name")
    if out is not None:
        try:
            make_directory(out, "out")
        except BadOption as error:
            raise click.UsageError(str(error)) from None
    rows, curves = ablation.document_of(cells, numbers, _run(tasks_of(cells, list(numbers)), jobs, keep))
    console = _console(path)
    for name in dict.fromkeys(cell.scenario for cell, _ in rows):
        console.print(make_table([row for row in rows if row[0].scenario == name], str(name), console.width))
    options: dict[str, Any] = {
        "subject": "ablation",
        "scenario": None,
        "overrides": {},
        "seeds": list(numbers),
        "scale": scale,
    }
    document = make_document({**options, "policies": list(ablation.LADDER), "cell": cells[0].describe()}, rows)
    if path == "-":
        sys.stdout.write(json.dumps(document, allow_nan=False) + "\n")
    elif path is not None:
        write_json(document, Path(path))
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        write_json({**document, "curves": curves}, out / "rows.json")
        write_csv(document["rows"], out / "rows.csv")
        try:
            importlib.import_module("cluster.compare.report").write(out, {**document, "curves": curves})
        except ImportError as error:
            print(f"{error} (rows are in {out})", file=sys.stderr)
            sys.exit(FAILED)


# ---- running --------------------------------------------------------------------------------------------------


def _run(tasks: Sequence[Task], jobs: int | None, keep: Path | None) -> dict[Task, Tally]:
    wanted = list(dict.fromkeys(tasks))
    results: dict[Task, Tally] = {}

    def story() -> str:
        there = "" if keep is None else f"; the same command goes on from there, with what is in {keep}"
        return f"after {len(results)} of {len(wanted)} runs{there}"

    try:
        with interruptible(story), nullcontext() if keep is None else Kept(keep) as kept:
            if kept is not None:
                results.update(kept.of(wanted))
            left = [task for task in wanted if task not in results]
            with progress(Console(stderr=True), len(left)) as bar:
                for task, tally in run_tasks(left, cores() if jobs is None else jobs):
                    if kept is not None:
                        kept.add(task, tally)
                    results[task] = tally
                    bar.advance()
    except BadOption as error:
        raise click.UsageError(str(error)) from None
    except OSError as error:
        print(f"{error.filename or keep}: {error.strerror}", file=sys.stderr)
        sys.exit(FAILED)
    return results


def _console(path: str | None) -> Console:
    console = Console(stderr=path == "-")
    return console if console.is_terminal else Console(stderr=path == "-", width=WIDTH_WITHOUT_TERMINAL)


def _write(options: dict[str, Any], content: dict[str, Any], path: str | None) -> None:
    document = {"schema": 1, "environment": environment(), "options": options, **content}
    if path == "-":
        sys.stdout.write(json.dumps(document, allow_nan=False) + "\n")
    elif path is not None:
        write_json(document, Path(path))


# ---- showing --------------------------------------------------------------------------------------------------


def _names(cell: Cell) -> dict[str, Any]:
    return {
        "scenario": cell.scenario,
        "policy": cell.policy,
        "rate": cell.rate,
        "load": cell.load,
        "mesh_latency_ms": cell.mesh_latency.default.mean * 1000,
    }


def _where(cell: Cell) -> tuple[str, str, str]:
    load = "–" if cell.load is None else f"{cell.load:.0%}"
    return str(cell.scenario), load, f"{cell.mesh_latency.default.mean * 1000:g}"


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title, title_justify="left")
    for column in columns:
        table.add_column(column, no_wrap=True)
    return table


def _reach_table(lines: Sequence[reach.Reached]) -> Table:
    table = _table(
        "what tied and auto are to reach",
        *("scenario", "load", "mesh ms", "policy", "quantity", "limit", "measured", "95 % interval", "holds"),
    )
    for line in lines:
        interval = "" if line.low is None or line.high is None else f"{line.low:.3f} – {line.high:.3f}"
        unsure = "within chance" if line.by_chance else "yes, not surely"
        holds = "NO" if not line.holds else "yes" if line.surely else unsure
        numbers = (f"{line.limit:g}", f"{line.value:.3f}", interval)
        table.add_row(*_where(line.cell), line.cell.policy, line.quantity, *numbers, holds)
    return table


def _print_harm(console: Console, found: harm.Report) -> None:
    beyond = [one for one in found.harms if one.beyond]
    table = _table(
        "means beyond the limit", "scenario", "load", "mesh ms", "quantity", "auto / plain", "limit", "p", "proven"
    )
    for one in sorted(beyond, key=lambda one: -one.ratio):
        chance = "" if one.chance is None else f"{one.chance:.4f}"
        proven = "YES" if one in found.proven else "no"
        table.add_row(*_where(one.cell), one.quantity, f"{one.ratio:.3f}", f"{one.limit:g}", chance, proven)
    console.print(table)
    short = _table("less than the gain", "scenario", "load", "mesh ms", "best", "its p99.9 / plain", "auto's")
    for cell, best, theirs, ours in found.gains:
        if not harm.has_the_gain(theirs, ours):
            short.add_row(*_where(cell), best, f"{theirs:.3f}", f"{ours:.3f}")
    console.print(short)
    for cell in found.collapsed:
        console.print(f"auto's queues grow and plain's don't: {', '.join(_where(cell))} ms")
    ratios = {name: [one.ratio for one in found.harms if one.quantity == name] for name in harm.QUANTITIES}
    console.print(
        f"{len(found.gains)} cells in which plain is stable, {len(found.unstable)} in which it is not; "
        f"{len(found.harms)} comparisons, {len(beyond)} means beyond the limit, {len(found.proven)} proven harm; "
        f"enough of the best gain in {found.reached} of {len(found.gains)} cells"
    )
    worst = ", ".join(f"{name} {max(found):.3f}" for name, found in ratios.items() if found)
    console.print(f"worst auto / plain: {worst or 'nothing was compared'}")


def _harm_as_json(found: harm.Report) -> dict[str, Any]:
    return {
        "holds": found.holds,
        "comparisons": [
            {**_names(one.cell), "quantity": one.quantity, "ratio": one.ratio, "limit": one.limit}
            | {"chance": one.chance, "proven": one in found.proven}
            for one in found.harms
        ],
        "gains": [
            {**_names(cell), "best": best, "best_ratio": theirs, "auto_ratio": ours}
            | {"reached": harm.has_the_gain(theirs, ours)}
            for cell, best, theirs, ours in found.gains
        ],
        "unstable": [_names(cell) for cell in found.unstable],
        "collapsed": [_names(cell) for cell in found.collapsed],
    }


if __name__ == "__main__":
    main()
