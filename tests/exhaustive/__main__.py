"""Search cases by hand: see ``python -m tests.exhaustive --help``."""

from __future__ import annotations

import argparse
import random
import sys
import time

from tests.exhaustive.case import Case
from tests.exhaustive.cases import EVERY_RUN, WHEN_THERE_IS_TIME
from tests.exhaustive.nightly import PROGRESS_SECONDS, Nightly
from tests.exhaustive.search import Report, Search
from tests.exhaustive.walks import Walker

KNOWN = (*EVERY_RUN, *WHEN_THERE_IS_TIME)


class Progress:
    """How far it is: on a terminal in the last line, elsewhere a line now and then."""

    def __init__(self) -> None:
        self._terminal = sys.stderr.isatty()
        self._next = time.monotonic() + PROGRESS_SECONDS

    def __call__(self, line: str) -> None:
        if time.monotonic() < self._next:
            return
        self._next = time.monotonic() + (0.2 if self._terminal else PROGRESS_SECONDS)
        print(f"\r{line[:100]:<100}" if self._terminal else line, end="" if self._terminal else "\n", file=sys.stderr)
        sys.stderr.flush()


def above_zero(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of minutes above 0")
    return value


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.exhaustive",
        description="Search small worlds completely, over the production cores. Without options: list the cases.",
        epilog="Exit codes: 0 nothing found, 1 an invariant was broken, 2 bad usage, 130 interrupted.",
    )
    parser.add_argument("names", nargs="*", help="cases whose name contains one of these")
    parser.add_argument("--all", action="store_true", help="all cases of every run")
    parser.add_argument(
        "--nightly",
        action="store_true",
        help="larger cases, then random walks, for --minutes (default 60); names choose among the cases",
    )
    parser.add_argument("--minutes", type=above_zero, help="how long: the night, or else each search, complete or not")
    parser.add_argument("--seed", type=int, help="the first of the walks (default: any)")
    parser.add_argument("--walk", type=int, metavar="SEED", help="make one walk again, and tell its moves")
    return parser.parse_args()


def main() -> int:
    options = arguments()
    if options.walk is not None:
        return one_walk(options.walk)
    named = [case for case in KNOWN if any(name in case.name for name in options.names)]
    if options.names and not named:
        print(f"no case has a name with {' or '.join(map(repr, options.names))} in it", file=sys.stderr)
        return 2
    if options.nightly:
        seed = options.seed if options.seed is not None else random.SystemRandom().randrange(10**9)
        night = Nightly(named or WHEN_THERE_IS_TIME, 60 * (options.minutes or 60.0), seed, say=say, progress=Progress())
        try:
            night.run()
        finally:
            say(f"\n{night.night}")
        return 1 if night.night.broken else 0
    cases = EVERY_RUN if options.all else named
    if not cases:
        print("\n".join(case.describe() for case in KNOWN))
        return 0
    return search(cases, 60 * options.minutes if options.minutes is not None else None)


def say(line: str) -> None:
    print(line, flush=True)


def search(cases: list[Case] | tuple[Case, ...], seconds: float | None) -> int:
    broken, progress = 0, Progress()

    def tell(report: Report) -> None:
        progress(f"{report.case.name}: {report.states:,} states, up to {report.depth} moves")

    for case in cases:
        report = Search(case, seconds_max=seconds, progress=tell).run()
        say(str(report))
        if report.violations:
            broken += 1
            say(report.story())
    return 1 if broken else 0


def one_walk(seed: int) -> int:
    walk = Walker().walk(seed, keep=True)
    say(walk.story())
    return 1 if walk.violations else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        print()
        sys.exit(130)
