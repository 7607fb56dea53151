"""The command line of ``python -m cluster.compare``: what is compared, and where the results go."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import click

from cluster.compare.cell import FAN_OUT_MAX, HANDLERS, PICKERS, WORLDS
from cluster.compare.document import check_target, make_directory
from cluster.compare.expect import Expectation, parse_expectation
from cluster.compare.plan import Plan, make_plan
from cluster.compare.policies import POLICIES
from cluster.compare.scenarios import SCENARIOS
from cluster.config import ENGINES, RAY_ADDRESS, ray_address
from cluster.engines.on_ray import MISSING, is_installed
from tiedreq.core.errors import BadOption
from tiedreq.laws import parse_law
from tiedreq.params import DURATION, Parsed
from tiedreq.slowness import parse_pause, parse_slow
from tiedreq.units import parse_duration, parse_latency, parse_number, parse_zones

__all__ = ["CompareOptions", "command", "read_options"]

SEEDS_MAX = 10_000
JOBS_MAX = 1_024
ItemT = TypeVar("ItemT")


class NotInstalled(click.ClickException):
    """What is asked for takes what is not installed here. How options are used is of no help then."""

    exit_code = 2


@dataclass(frozen=True, slots=True)
class CompareOptions:
    """What is to be done: the plan, and how and where. ``json`` is a path, ``"-"`` for standard output, or None.

    ``jobs`` None: as many as there are cores, with Ray in the whole cluster. ``address`` as in ``UpConfig``.
    """

    plan: Plan
    jobs: int | None
    out: Path | None
    json: str | None
    expectations: tuple[Expectation, ...]
    engine: str = "local"
    address: str | None = None


def _list_of(parse: Callable[[str], ItemT]) -> Callable[[str], tuple[ItemT, ...]]:
    def read(text: str) -> tuple[ItemT, ...]:
        items = tuple(parse(part) for part in text.split(","))
        if len(set(items)) < len(items):
            raise BadOption(f"{text!r} has the same value twice")
        return items

    return read


def _number(field: str, high: float) -> Callable[[str], float]:
    def read(text: str) -> float:
        value = parse_number(text, field=field, low=0, high=high)
        if value == 0:
            raise BadOption(f"{field}: 0 is not above 0")
        return value

    return read


def _auto_or_duration(text: str) -> float | str:
    return "auto" if text.strip() == "auto" else parse_duration(text)


def _fan_out(text: str) -> int:
    text = text.strip()
    if not (text.isascii() and text.isdecimal() and len(text) < 20):
        raise BadOption(f"fan-out: {text[:60]!r} is not a whole number")
    if not 1 <= int(text) <= FAN_OUT_MAX:
        raise BadOption(f"fan-out: {text} is outside 1 to {FAN_OUT_MAX}")
    return int(text)


def _policies(text: str) -> tuple[str, ...]:
    return tuple(POLICIES) if text.strip() == "all" else tuple(part.strip() for part in text.split(","))


@click.command(
    "cluster.compare",
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
    epilog="Durations carry a unit: 500us, 12ms, 2s. Exit codes: 0 done, 1 failed or not as expected, 2 bad usage,"
    " 130 interrupted.",
)
@click.option("--world", type=click.Choice(WORLDS), default="sim", show_default=True, help="Virtual time, or for real.")
@click.option("--scenario", metavar="NAME", help=f"Fixes all of the below: {', '.join(SCENARIOS)}.")
@click.option("--replicas", type=int, metavar="N", help="How many replicas.")
@click.option("--slots", type=int, metavar="K", help="Handlers at once in each.")
@click.option(
    "--service", type=Parsed("law", parse_law), help="Time of one execution: exp(10ms), const(5ms)*10@0.05, …"
)
@click.option("--slow", type=Parsed("slow", parse_slow), multiple=True, metavar="I:FACTOR", help="Slow down replica I.")
@click.option(
    "--pause", type=Parsed("pause", parse_pause), multiple=True, metavar="[I:]D@EVERY", help="Stop replicas for D."
)
@click.option("--intrinsic", is_flag=True, default=None, help="Slowness belongs to the call: every copy has it.")
@click.option("--handlers", type=click.Choice(HANDLERS), help="Whether running work can be stopped.")
@click.option("--load", type=Parsed("loads", _list_of(_number("load", 10))), metavar="F[,F…]", help="Utilisation.")
@click.option("--rate", type=Parsed("rates", _list_of(_number("rate", 1e6))), metavar="R[,R…]", help="Calls a second.")
@click.option(
    "--mesh-latency",
    type=Parsed("latencies", _list_of(parse_latency)),
    metavar="L[,L…]",
    help="Between replicas: 1ms, 1ms~0.3ms, 1ms;r0-r1=20ms; zones: 1ms;a-b=5ms.",
)
@click.option("--client-latency", type=Parsed("latency", parse_latency), metavar="L", help="Clients to replicas.")
@click.option(
    "--zones", type=Parsed("zones", parse_zones), metavar="A,B,…", help="Replicas and clients stand in, in turn."
)
@click.option("--zone-blind", is_flag=True, default=None, help="They don't say in which; only latencies know.")
@click.option(
    "--zone-pause", type=Parsed("pause", parse_pause), multiple=True, metavar="D@EVERY", help="Stop whole zones for D."
)
@click.option("--callers", type=int, metavar="N", help="How many clients share the calls.")
@click.option("--policies", type=Parsed("policies", _policies), metavar="NAME[,…]|all", help=f"{', '.join(POLICIES)}.")
@click.option("--copies", type=int, metavar="D", help="Copies of a tie.")
@click.option("--stagger", type=Parsed("stagger", _auto_or_duration), metavar="auto|D", help="Between tied copies.")
@click.option("--backup-after", type=Parsed("delay", _auto_or_duration), metavar="auto|D", help="When backups go.")
@click.option("--backup-budget", type=float, metavar="F", help="Extra work allowed, as a share of useful work.")
@click.option("--backups", type=int, metavar="N", help="Backups of one call, at most.")
@click.option("--picker", type=click.Choice(PICKERS), help="How replicas are chosen.")
@click.option("--duration", type=DURATION, help="How long is measured, in virtual or real time.")
@click.option("--calls", type=int, metavar="N", help="How many calls are measured, instead of a duration.")
@click.option("--warmup", type=DURATION, help="What is run first and not measured.")
@click.option("--seed", type=int, metavar="S", help="The first seed. [default: 1]")
@click.option("--seeds", type=int, metavar="N", help="So many seeds, one after the other. [default: 1]")
@click.option("--jobs", type=int, metavar="N", help="Processes at once. [default: one per core]")
@click.option(
    "--engine", type=click.Choice(ENGINES), default="local", show_default=True, help="This host, or a Ray cluster."
)
@click.option(
    "--address",
    metavar="auto|HOST:PORT",
    help=f"Of a running Ray cluster. [default: ${RAY_ADDRESS}, else a Ray of this host alone]",
)
@click.option(
    "--fan-out", type=Parsed("fan-outs", _list_of(_fan_out)), metavar="N[,N…]", help="Calls that a root call needs."
)
@click.option(
    "--trace",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE.csv",
    help="Your own calls: arrival,duration[,replica] in seconds.",
)
@click.option("--processes", type=int, metavar="N", help="Replicas share so many (live). [default: one each]")
@click.option("--app", metavar="MODULE:SERVICE", help="Your own service (live, with --rate).")
@click.option("--method", metavar="NAME", help="What is called of it. [default: its first idempotent method]")
@click.option("--args", "arguments", metavar="JSON", help="The arguments of each call. [default: null]")
@click.option("--out", type=click.Path(path_type=Path, file_okay=False), metavar="DIR", help="Write a report there.")
@click.option("--json", "json_target", metavar="FILE|-", help="Write the rows as JSON.")
@click.option("--expect", multiple=True, metavar="EXPR", help="'tied.p999_ms < 0.7 * hedged.p999_ms'; exit 1 if not.")
@click.pass_context
def command(context: click.Context, /, **options: Any) -> CompareOptions:
    """Compare policies on the same replicas: duplicate executions, wasted work, and the tail.

    Without options: simulated, replicas that pause, 60 % load, delayed hedging against tied requests as the latency
    between replicas grows.
    """
    try:
        return _options(options)
    except BadOption as error:
        raise click.UsageError(str(error), context) from None


def read_options(arguments: Sequence[str]) -> CompareOptions:
    """What the command line asks for.

    Raises ``click.ClickException`` with exit code 2 for what can't be understood, and ``click.exceptions.Exit`` after
    ``--help``.
    """
    with command.make_context("cluster.compare", list(arguments)) as context:
        result: CompareOptions = command.invoke(context)
        return result


def _options(options: dict[str, Any]) -> CompareOptions:
    engine, address = options["engine"], ray_address(options["address"], options["engine"])
    if engine == "ray" and not is_installed():
        raise NotInstalled(MISSING)
    jobs, seeds = options["jobs"], options["seeds"]
    if jobs is not None and not 1 <= jobs <= JOBS_MAX:
        raise BadOption(f"jobs: {jobs} is outside 1 to {JOBS_MAX}")
    if seeds is not None and not 1 <= seeds <= SEEDS_MAX:
        raise BadOption(f"seeds: {seeds} is outside 1 to {SEEDS_MAX}")
    if options["json_target"] not in (None, "-"):
        check_target(Path(options["json_target"]), "json")
    given = {
        name: value
        for name, value in options.items()
        if value not in (None, ()) and name not in ("engine", "address", "jobs", "out", "json_target", "expect")
    }
    plan = make_plan(given)
    expectations = tuple(parse_expectation(text) for text in options["expect"])
    for expectation in expectations:
        for policy in expectation.policies:
            if policy not in plan.policies:
                raise BadOption(f"expect: {policy!r} is not compared here, only {', '.join(plan.policies)}")
    if options["out"] is not None:
        make_directory(options["out"], "out")
    return CompareOptions(plan, jobs, options["out"], options["json_target"], expectations, engine, address)
