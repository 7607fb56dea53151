"""``python -m cluster.compare.agreement theory|articles|live``: the laboratory next to what is known from elsewhere.

The table is on standard output, progress on standard error. The exit code is 1 where something does not agree.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import click
from rich.console import Console

from cluster.compare.agreement import articles, theory, worlds
from cluster.compare.agreement.judge import Line, as_json, as_markdown, make_table
from cluster.compare.display import WIDTH_WITHOUT_TERMINAL
from cluster.compare.document import environment, json_target, write_json
from cluster.compare.grid import Task
from cluster.compare.interrupted import interruptible
from cluster.compare.live_cluster import ReplicaLost, StartFailed
from cluster.compare.runner import cores, run_tasks
from cluster.compare.tally import Tally

SCALE_MIN, SCALE_MAX = 0.01, 100.0
NOTES_EVERY = 10


class Subject(NamedTuple):
    """What can be compared."""

    title: str
    expected: str
    chance: str
    select: Callable[[str], Sequence[str]]
    lines: Callable[[str, float, int], list[Line]]
    notes: Callable[[str], Sequence[str]]


def _cases(only: str) -> list[theory.Case]:
    return [case for case in theory.CASES if only in case.name]


def _tables(only: str) -> list[articles.Published]:
    return [row for row in articles.PUBLISHED if only in row.name]


def _theory(only: str, scale: float, jobs: int) -> list[Line]:
    cases = _cases(only)
    return theory.lines_of(cases, _run(theory.tasks_of(cases, scale), jobs), scale)


def _articles(only: str, scale: float, jobs: int) -> list[Line]:
    tables = _tables(only)
    return articles.lines_of(tables, _run(articles.tasks_of(tables, scale), jobs), scale)


def _live(only: str, scale: float, jobs: int) -> list[Line]:
    return [line for name in worlds.names(only) for line in worlds.lines_of(name, scale, worlds.rates_of(name))]


SUBJECTS = {
    "theory": Subject(
        "against theory; times in mean service times",
        "theory",
        "± 3 standard errors",
        lambda only: [case.name for case in _cases(only)],
        _theory,
        lambda only: (),
    ),
    "articles": Subject(
        "against published figures; times in ms, shares in %",
        "published",
        "runs of that length",
        lambda only: [row.name for row in _tables(only)],
        _articles,
        lambda only: [f"{row.name}: {row.rule}" for row in _tables(only) if row.rule],
    ),
    "live": Subject(
        "live replicas against simulated ones",
        "simulated",
        "allowed",
        worlds.names,
        _live,
        lambda only: (),
    ),
}


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("subject", type=click.Choice(list(SUBJECTS)))
@click.option("--scale", type=click.FloatRange(SCALE_MIN, SCALE_MAX), default=1.0, help="Times as many calls.")
@click.option("--only", default="", metavar="TEXT", help="Experiments whose names have this in them.")
@click.option("--jobs", type=click.IntRange(1, 256), default=None, help="Processes (default: one per core).")
@click.option("--json", "path", metavar="FILE", callback=json_target, help="The lines as JSON; - is standard output.")
@click.option("--markdown", is_flag=True, help="The table as Markdown.")
def main(subject: str, scale: float, only: str, jobs: int | None, path: str | None, markdown: bool) -> None:
    """Put the laboratory next to exact theory, to figures that others published, or live runs next to simulated."""
    chosen = SUBJECTS[subject]
    if not chosen.select(only):
        raise click.UsageError(f"only: no experiment has {only!r} in its name")
    try:
        with interruptible(lambda: "before the end"):
            lines = chosen.lines(only, scale, cores() if jobs is None else jobs)
    except (StartFailed, ReplicaLost) as error:
        raise click.ClickException(str(error)) from None
    except worlds.TooSlow as error:
        raise click.ClickException(f"this machine does not keep up with live calls: {error}") from None
    _show(chosen, lines, markdown=markdown, to_stderr=path == "-")
    for note in chosen.notes(only):
        print(note, file=sys.stderr)
    _write(lines, {"subject": subject, "scale": scale, "only": only}, path)
    sys.exit(0 if all(line.agrees for line in lines) else 1)


def _run(tasks: list[Task], jobs: int) -> dict[Task, Tally]:
    wanted = list(dict.fromkeys(tasks))
    results: dict[Task, Tally] = {}
    for task, tally in run_tasks(wanted, jobs):
        results[task] = tally
        if len(results) % NOTES_EVERY == 0 or len(results) == len(wanted):
            print(f"{len(results)} of {len(wanted)} runs", file=sys.stderr, flush=True)
    return results


def _show(subject: Subject, lines: Sequence[Line], *, markdown: bool, to_stderr: bool) -> None:
    console = Console(stderr=to_stderr)
    if not console.is_terminal:
        console = Console(stderr=to_stderr, width=WIDTH_WITHOUT_TERMINAL)
    if markdown:
        print(as_markdown(lines, subject.expected, subject.chance), file=sys.stderr if to_stderr else sys.stdout)
    else:
        console.print(make_table(lines, subject.title, subject.expected, subject.chance))
    console.print(f"{sum(line.agrees for line in lines)} of {len(lines)} numbers agree")


def _write(lines: Sequence[Line], options: dict[str, object], path: str | None) -> None:
    document = {"schema": 1, "environment": environment(), "options": options, "lines": as_json(lines)}
    if path == "-":
        sys.stdout.write(json.dumps(document, allow_nan=False) + "\n")
    elif path is not None:
        write_json(document, Path(path))


if __name__ == "__main__":
    main()
