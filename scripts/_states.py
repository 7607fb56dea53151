"""Write docs/states.md from the transition tables; with `--check` only say whether it is current.

Called by scripts/check, inside the project's environment. The tables are what the cores run on, so the page can't say
anything else than they do.
"""

from __future__ import annotations

import argparse
import difflib
import sys
from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from typing import Any

from tiedreq.core.call_table import CALL_TABLE
from tiedreq.core.copy_table import COPY_TABLE
from tiedreq.core.link_table import ACCEPTOR_TABLE, DIALER_TABLE
from tiedreq.core.transitions import Table

PAGE = Path(__file__).resolve().parent.parent / "docs" / "states.md"
AnyTable = Table[Any, Any]

HEAD = """# States

Every transition of a copy, a call and a link. This page is made from the tables in `tiedreq/core` that the cores run on
(`scripts/check --fix` writes it). A pair of state and trigger that is not listed here is an error and changes nothing.
What decides when two of these machines meet is told under [races](races.md).
"""
SECTIONS: tuple[tuple[str, str, AnyTable], ...] = (
    ("A copy, at its replica", "`tiedreq/core/copy_table.py`", COPY_TABLE),
    ("A call, at its client", "`tiedreq/core/call_table.py`", CALL_TABLE),
    ("A link, on the side that dials", "`tiedreq/core/link_table.py`", DIALER_TABLE),
    ("A link, on the side that accepts", "`tiedreq/core/link_table.py`", ACCEPTOR_TABLE),
)


def spoken(member: Enum) -> str:
    """A trigger's name in words."""
    return member.name.lower().replace("_", " ")


def in_order(members: Iterator[Enum] | set[Enum]) -> list[Enum]:
    """Members of one Enum, in the order of their definition."""
    found = set(members)
    kinds = {type(member) for member in found}
    return [member for kind in kinds for member in kind if member in found]


def arrows(table: AnyTable) -> list[tuple[Enum, Enum, list[Enum]]]:
    """From, to, and all triggers that lead there, in the order of the states."""
    pairs: dict[tuple[Enum, Enum], set[Enum]] = {}
    for (state, trigger), target in table.rows.items():
        pairs.setdefault((state, target), set()).add(trigger)
    states = in_order({state for pair in pairs for state in pair})
    return [
        (state, target, in_order(pairs[state, target]))
        for state in states
        for target in states
        if (state, target) in pairs
    ]


def ends(table: AnyTable) -> list[Enum]:
    """The states that nothing leads out of."""
    found = arrows(table)
    left = {state for state, target, _ in found if state != target}
    return in_order({target for _, target, _ in found if target not in left})


def diagram(table: AnyTable) -> Iterator[str]:
    yield "```mermaid"
    yield "stateDiagram-v2"
    yield f"    [*] --> {table.initial.name}"
    for state, target, triggers in arrows(table):
        yield f"    {state.name} --> {target.name} : {', '.join(map(spoken, triggers))}"
    for state in ends(table):
        yield f"    {state.name} --> [*]"
    yield "```"


def rows(table: AnyTable) -> Iterator[str]:
    yield "| in | on | becomes |"
    yield "|---|---|---|"
    for state, target, triggers in arrows(table):
        yield f"| {state.name} | {', '.join(map(spoken, triggers))} | {target.name} |"


def notes(table: AnyTable) -> Iterator[str]:
    yield "| trigger | what it says |"
    yield "|---|---|"
    for trigger in in_order({trigger for _, trigger in table.rows}):
        yield f"| {spoken(trigger)} | {table.notes[trigger].rstrip('.')} |"


def page() -> str:
    """The whole page."""
    parts = [HEAD]
    for title, source, table in SECTIONS:
        parts += [f"## {title}\n", f"From {source}.\n"]
        parts += ["\n".join(make(table)) + "\n" for make in (diagram, rows, notes)]
    return "\n".join(parts)


def main() -> int:
    parser = argparse.ArgumentParser(prog="scripts/_states.py", description="Write docs/states.md.")
    parser.add_argument(
        "--check", action="store_true", help="write nothing; exit 1 and show a diff if it is not current"
    )
    check = parser.parse_args().check
    made, stands = page(), PAGE.read_text() if PAGE.exists() else ""
    if not check:
        PAGE.write_text(made)
        return 0
    if made != stands:
        lines = difflib.unified_diff(
            stands.splitlines(), made.splitlines(), "docs/states.md", "the tables", lineterm=""
        )
        print("\n".join(lines))
        print("docs/states.md is not what the tables say: scripts/check --fix writes it")
    return int(made != stands)


if __name__ == "__main__":
    sys.exit(main())
