"""Run every check, print one line for each, and the output of those that fail: `_check.py [--fix]`.

Called by scripts/check, inside the project's environment, in the checkout. All are run even when one fails.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

BIN = Path(sys.executable).parent
PYTHON = sys.executable


@dataclass(frozen=True)
class Check:
    name: str
    command: Sequence[str]
    fix: Sequence[str] = ()
    """What `--fix` runs before the check."""

    needs: str = ""
    """A file without which there is nothing to check yet."""


def tool(name: str, *arguments: str) -> tuple[str, ...]:
    return (str(BIN / name), *arguments)


STATES = (PYTHON, "scripts/_states.py")
SHELL = ("scripts/up", "scripts/test", "scripts/check", "scripts/_pin", "scripts/_setup.sh", ".ci/run")

# Autofixes before the formatter: what they write may need it.
CHECKS = (
    Check("lint", tool("ruff", "check", "--quiet", "."), fix=tool("ruff", "check", "--quiet", "--fix", ".")),
    Check("format", tool("ruff", "format", "--quiet", "--diff", "."), fix=tool("ruff", "format", "--quiet", ".")),
    Check("shell", ("bash", "-c", 'for file; do bash -n "$file" || failed=1; done; exit ${failed:-0}', "bash", *SHELL)),
    Check("types", tool("mypy", "--no-error-summary")),
    Check("imports", tool("lint-imports")),
    Check("states", (*STATES, "--check"), fix=STATES, needs="scripts/_states.py"),
)


def run(check: Check, *, fix: bool) -> bool:
    if check.needs and not Path(check.needs).exists():
        print(f"none  {check.name:<8}  no {check.needs}", flush=True)
        return True
    began = time.monotonic()
    if fix and check.fix:
        subprocess.run(check.fix, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    done = subprocess.run(check.command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    ok = done.returncode == 0
    print(f"{'ok  ' if ok else 'FAIL'}  {check.name:<8} {time.monotonic() - began:5.1f} s", flush=True)
    if not ok:
        print(done.stdout.rstrip() or f"exit code {done.returncode}", flush=True)
    return ok


def main() -> int:
    parser = argparse.ArgumentParser(prog="scripts/check", description="Run all checks of the source.")
    parser.add_argument("--fix", action="store_true", help="apply the formatter, autofixes and generated docs first")
    options = parser.parse_args()
    results = [run(check, fix=options.fix) for check in CHECKS]
    return 0 if all(results) else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
