"""Search cases by hand: ``python -m tests.exhaustive [NAME …] [--all] [--minutes N]``; without a name, list them."""

from __future__ import annotations

import argparse
import sys

from tests.exhaustive.cases import EVERY_RUN, WHEN_THERE_IS_TIME
from tests.exhaustive.search import Search


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.exhaustive", description="Search small worlds completely.")
    parser.add_argument("names", nargs="*", help="cases whose name contains one of these")
    parser.add_argument("--all", action="store_true", help="all cases of every run")
    parser.add_argument("--nightly", action="store_true", help="all that take longer, too")
    parser.add_argument("--minutes", type=float, help="stop each search after so long, complete or not")
    options = parser.parse_args()
    cases = [*(EVERY_RUN if options.all or options.nightly else ()), *(WHEN_THERE_IS_TIME if options.nightly else ())]
    known = (*EVERY_RUN, *WHEN_THERE_IS_TIME)
    cases += [case for case in known if case not in cases and any(name in case.name for name in options.names)]
    if not cases:
        print("\n".join(case.describe() for case in known))
        return 0
    seconds = 60 * options.minutes if options.minutes is not None else None
    broken = 0
    for case in cases:
        report = Search(case, seconds_max=seconds).run()
        print(report, flush=True)
        if report.violations:
            broken += 1
            print(report.story(), flush=True)
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
