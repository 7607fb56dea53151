"""Search for histories that break an invariant, or replay one: see `scripts/simulate --help`.

Called by scripts/simulate, inside the project's environment, in the checkout.
"""

from __future__ import annotations

import argparse
import itertools
import random
import signal
import sys
import time
import traceback
from collections import Counter
from collections.abc import Iterator
from functools import partial
from types import FrameType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from tiedreq.core.policy import Backup, Plain, Policy, Tied
from tiedreq.laws import Exponential
from tiedreq.sim.garbage import uncollected
from tiedreq.sim.links import NetworkOptions
from tiedreq.sim.options import SimOptions
from tiedreq.sim.run import RunResult, run
from tiedreq.sim.workload import OpenLoop, Workload
from tiedreq.sim.world import World, WorldOptions, stream
from tiedreq.units import LatencyLaw, LatencySpec

SEEDS_DEFAULT = 100
SPEED_CALLS = 20_000
SPEED_POLICIES: dict[str, Policy] = {
    "plain": Plain(),
    "tied": Tied(),
    "tied and backup": Tied(backup=Backup(after=0.03)),
}
REPLAY = "scripts/simulate --seed {} --trace"


def whole(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number")
    return int(text)


def minutes(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of minutes above 0")
    return value


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="scripts/simulate",
        description="Run whole clusters in virtual time, with faults, and check every invariant at every step. "
        "A seed draws everything; the same seed is the same history, anywhere.",
        epilog="Exit codes: 0 nothing found, 1 an invariant was broken, 2 bad usage, 130 interrupted.",
    )
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--seeds", type=whole, metavar="N", help=f"run N seeds (default: {SEEDS_DEFAULT})")
    what.add_argument("--minutes", type=minutes, metavar="M", help="run seeds for M minutes")
    what.add_argument("--seed", type=whole, metavar="S", help="run one seed and show its options")
    what.add_argument("--speed", action="store_true", help="measure how many calls a second are simulated here")
    parser.add_argument(
        "--first", type=whole, metavar="S", help="the first of the seeds (default: 1, or any for minutes)"
    )
    parser.add_argument("--keep-going", action="store_true", help="go on after a failure")
    parser.add_argument("--trace", action="store_true", help="with --seed: show every step of every core")
    options = parser.parse_args()
    if options.trace and options.seed is None:
        parser.error("--trace needs --seed")
    if (options.seed is not None or options.speed) and (options.first is not None or options.keep_going):
        parser.error("--first and --keep-going are for several seeds")
    return options


class Interrupts:
    """Ctrl-C: the first is heard between two steps, so that no step is torn and the result so far is told; the second
    ends the program at once, wherever it is.
    """

    def __init__(self) -> None:
        self.heard = False
        # Where it is ignored, as in the background of a script, it stays so.
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            signal.signal(signal.SIGINT, self._first)

    def _first(self, number: int, frame: FrameType | None) -> None:
        self.heard = True
        signal.signal(signal.SIGINT, signal.default_int_handler)

    def ask(self) -> bool:
        return self.heard


def failure(result: RunResult) -> str:
    seed = result.options.seed
    told = "\n".join(f"  {violation}" for violation in result.violations)
    return f"FAILED at {result.seconds * 1e3:.4f} ms:\n{told}\nreplay: {REPLAY.format(seed)}"


def one(seed: int, *, trace: bool) -> int:
    options = SimOptions.draw(seed)
    print(options.describe(), flush=True)
    result = run(options, keep=trace, interrupted=Interrupts().ask)
    for line in result.lines:
        print(line)
    print(f"{result.summary()}, {result.lost_messages} messages lost")
    if not result.ok:
        print(failure(result))
    return 0 if result.ok else 1


class Search:
    """Many seeds, one after the other. On a terminal with a bar, elsewhere with two lines for each: all its options,
    and what happened.
    """

    def __init__(self, options: argparse.Namespace) -> None:
        self.interrupts = Interrupts()
        self.minutes: float | None = options.minutes
        self.count: int | None = None
        if self.minutes is None:
            self.count = SEEDS_DEFAULT if options.seeds is None else options.seeds
        self.first: int = options.first if options.first is not None else self._first()
        self.keep_going: bool = options.keep_going
        self.failed: list[int] = []
        self.totals: Counter[str] = Counter()
        self.summary = ""
        self.began = time.monotonic()

    def _first(self) -> int:
        return 1 if self.count is not None else random.SystemRandom().randrange(1_000_000, 1_000_000_000)

    def seeds(self) -> Iterator[int]:
        for done, seed in enumerate(itertools.count(self.first)):
            if self.count is not None and done >= self.count:
                return
            if self.minutes is not None and time.monotonic() - self.began >= 60 * self.minutes:
                return
            if self.failed and not self.keep_going:
                return
            if self.interrupts.heard:
                raise KeyboardInterrupt
            yield seed

    def run(self, options: SimOptions) -> str | None:
        """Run a seed, and count it. None where nothing broke, else what did and how to replay it."""
        try:
            result = run(options, interrupted=self.interrupts.ask)
        except Exception:
            # Not a core, whose errors are violations: the world or a checker can't go on.
            self.failed.append(options.seed)
            self.totals.update(seeds=1)
            return f"{options.describe()}\nFAILED:\n{traceback.format_exc()}replay: {REPLAY.format(options.seed)}"
        self._take(result)
        self.summary = result.summary()
        return None if result.ok else f"{options.describe()}\n{failure(result)}"

    def _take(self, result: RunResult) -> None:
        if not result.ok:
            self.failed.append(result.options.seed)
        self.totals.update(
            seeds=1,
            calls=result.counts.calls,
            executions=result.counts.executions,
            faults=sum(result.faults.values()),
            steps=result.steps,
        )

    def with_lines(self) -> None:
        for seed in self.seeds():
            options = SimOptions.draw(seed)
            print(options.line(), flush=True)
            broken = self.run(options)
            print(broken if broken is not None else f"  {self.summary}", flush=True)

    def with_bar(self, console: Console) -> None:
        columns = (
            TextColumn("seed {task.fields[seed]}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[steps]:,} steps"),
            TimeElapsedColumn(),
        )
        with Progress(*columns, console=console) as progress:
            total = self.count if self.count is not None else None
            bar = progress.add_task("", total=total, seed=self.first, steps=0)
            for seed in self.seeds():
                progress.update(bar, seed=seed)
                broken = self.run(SimOptions.draw(seed))
                progress.update(bar, advance=1, steps=self.totals["steps"])
                if broken is not None:
                    progress.console.print(broken, markup=False)

    def conclude(self) -> None:
        seconds = time.monotonic() - self.began
        told = ", ".join(
            f"{self.totals[name]:,} {name}" for name in ("seeds", "calls", "executions", "faults", "steps")
        )
        print(f"{told} in {seconds:.1f} s: {len(self.failed)} failed")
        for seed in self.failed:
            print(f"replay: {REPLAY.format(seed)}")


def speed() -> int:
    """Simulated calls per second of wall time: 10 replicas of 8 slots at 60 % load, nobody watching."""
    print(f"{SPEED_CALLS:,} calls each, exp(10ms), 0.5 ms between nodes; calls per second of wall time:", flush=True)
    for name, policy in SPEED_POLICIES.items():
        load = Workload(Exponential(0.01), stream(1, "law"))
        latency = LatencySpec(LatencyLaw(0.0005))
        network = NetworkOptions(mesh=latency, client=latency)
        world = World(WorldOptions(replicas=10, slots=8, network=network), load, seed=1)
        world.start()
        make = partial(load.make, policy=policy, timeout=10.0)
        OpenLoop(world, make, world.random("arrivals"), rate=0.6 * 80 / 0.01, calls=SPEED_CALLS).start()
        began = time.perf_counter()
        with uncollected():
            while load.counts.answered + load.counts.failed < SPEED_CALLS:
                world.clock.run(world.clock.now + 0.5)
        seconds = time.perf_counter() - began
        counts = load.counts
        print(
            f"  {name:<16} {SPEED_CALLS / seconds:>8,.0f}   {counts.executions / counts.calls:.3f} executions",
            flush=True,
        )
    return 0


def many(options: argparse.Namespace) -> int:
    search = Search(options)
    span = f"{search.count} seeds" if search.count is not None else f"{search.minutes:g} minutes of seeds"
    print(f"{span} from {search.first} on; one to look at: scripts/simulate --seed {search.first} --trace", flush=True)
    console = Console()
    try:
        if console.is_terminal:
            search.with_bar(console)
        else:
            search.with_lines()
    except KeyboardInterrupt:
        print()
        search.conclude()
        raise
    search.conclude()
    return 1 if search.failed else 0


def main() -> int:
    options = arguments()
    if options.speed:
        return speed()
    return one(options.seed, trace=options.trace) if options.seed is not None else many(options)


def start() -> None:
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    start()
