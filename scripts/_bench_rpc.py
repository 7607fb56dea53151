"""What a call costs over real sockets, beside grpc.aio, bare WebSockets and bare TCP: see `scripts/bench_rpc --help`.

Every subject is a client and two replicas (for the peers two servers, to which calls go by turns), each in a process of
its own, on this machine, over the loopback device. The method returns what it was given. The subjects take turns, so
what else the machine does at the time hits all of them.

* ``plain``: one copy per call, ``call(…, policy=Plain())``.
* ``tied``: ``tied_call`` as it comes. Between idle replicas the second copy of a tie is held back until the first could
  have said that it started, so most of these calls send one copy.
* ``tied, sent at once``: both copies of every call leave, ``Tied(stagger=0.0)``: the whole protocol.
* ``plain, with NumPy``: plain calls of programs that have imported NumPy, which then masks large frames (only when
  asked for).
* ``grpc.aio``: unary calls of bytes, without protobuf: generic handlers, no serializers.
* ``websocket``, ``tcp``: an echo with nothing round it; as many messages under way as there would be calls.

CPU is the processor time of all three processes. The peers have no deadlines, retries, queues or reports.

``--beside DIR`` takes turns with another build of tiedreq as well: DIR holds the package ``tiedreq``, as an unpacked
wheel does (``python -m zipfile -e tiedreq-….whl DIR``), compiled or of another version.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Iterator
from typing import TYPE_CHECKING

from _bench import Row, as_program, cpu_seconds, installation, parser, positive, row, whole, wholes, write
from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    from _bench_peers import Subject, TurnResult

ROUNDS_DEFAULT, SECONDS_DEFAULT = 7, 1.0
SIZES_DEFAULT, IN_FLIGHT_DEFAULT = "128,65536", "1,16,64,256"
QUICK = {"rounds": 3, "seconds": 0.5, "sizes": [128], "in_flight": [1, 64]}
WHEN_ASKED = ("plain, with NumPy",)
PEER, LATENCY_PEER = "grpc.aio", "websocket"

SUBJECTS = {
    "plain": ("tiedreq", "plain"),
    "tied": ("tiedreq", "tied"),
    "tied, sent at once": ("tiedreq", "tied at once"),
    "plain, with NumPy": ("numpy", "plain"),
    "grpc.aio": ("grpc", ""),
    "websocket": ("websocket", ""),
    "tcp": ("tcp", ""),
}
"""What can be measured: which processes, and how they are called."""
DEFAULT = [name for name in SUBJECTS if name not in WHEN_ASKED]

Cell = tuple[int, int]
"""Bytes and calls in flight."""


class Measurement:
    """What one subject did in one turn."""

    def __init__(self, result: TurnResult, cpu: float) -> None:
        self.rate = result.rate
        self.p50_us = result.p50 * 1e6
        self.p99_us = result.p99 * 1e6
        self.cpu_us = cpu / max(result.calls, 1) * 1e6


def measure(subject: Subject, policy: str, cell: Cell, seconds: float) -> Measurement:
    """One turn. Its warm-up counts for the processor time as well as for the calls that share it."""
    before = cpu_seconds(subject.pids)
    result = subject.turn(policy, *cell, seconds)
    return Measurement(result, cpu_seconds(subject.pids) - before)


def rows_of(cell: Cell, measured: dict[str, list[Measurement]]) -> Iterator[Row]:
    """All rows of one cell, each compared with grpc.aio where that was measured."""
    suffix = f"{cell[0]} B, {cell[1]} in flight"
    for name, turns in measured.items():
        for what, unit, field in (
            ("calls", "calls/s", "rate"),
            ("p50", "µs", "p50_us"),
            ("p99", "µs", "p99_us"),
            ("CPU", "µs per call", "cpu_us"),
        ):
            values = [getattr(turn, field) for turn in turns]
            peers = [LATENCY_PEER] if what == "p50" and cell[1] == 1 and name == "plain" else []
            for peer in [PEER, *peers]:
                known = [getattr(turn, field) for turn in measured[peer]] if peer in measured else None
                yield row(f"{name}, {suffix}: {what}", unit, values, peer=peer, peers=known)


def show_cells(cells: dict[Cell, dict[str, list[Measurement]]]) -> None:
    """The table: a line for each subject in each cell, with ratios to grpc.aio."""
    table = Table(title="A client and two replicas on this machine; medians over rounds, × is the ratio to grpc.aio")
    for column in ("bytes", "in flight", "", "calls/s", "×", "p50 µs", "×", "p99 µs", "CPU µs per call", "×"):
        table.add_column(column, justify="left" if not column else "right")
    for (size, flight), measured in cells.items():
        for name, turns in measured.items():
            line = [f"{size:,}", str(flight), name]
            for field in ("rate", "p50_us", "p99_us", "cpu_us"):
                values = [getattr(turn, field) for turn in turns]
                line.append(f"{statistics.median(values):,.0f}")
                if field != "p99_us":
                    peers = [getattr(turn, field) for turn in measured.get(PEER, [])]
                    ratio = row("", "", values, peer=PEER, peers=peers)["ratio"] if peers else None
                    line.append("" if ratio is None else f"{ratio:.2f}")
            table.add_row(*line)
        table.add_section()
    Console().print(table)


def arguments() -> argparse.Namespace:
    options = parser("bench_rpc", "Measure calls over real sockets beside grpc.aio, bare WebSockets and bare TCP.")
    names = ", ".join(SUBJECTS)
    options.add_argument("--rounds", type=whole, metavar="N", help=f"turns of each ({ROUNDS_DEFAULT})")
    options.add_argument("--seconds", type=positive, metavar="S", help=f"length of a turn ({SECONDS_DEFAULT:g})")
    options.add_argument("--sizes", type=wholes, metavar="N[,N…]", help=f"bytes of a payload ({SIZES_DEFAULT})")
    options.add_argument(
        "--in-flight", type=wholes, metavar="N[,N…]", help=f"calls at the same time ({IN_FLIGHT_DEFAULT})"
    )
    options.add_argument("--only", metavar="NAME[;NAME…]", help=f"measure these alone: {names}")
    options.add_argument(
        "--beside",
        type=installation,
        metavar="DIR",
        help="measure the tiedreq in DIR (an unpacked wheel) too",
    )
    options.add_argument("--quick", action="store_true", help="a minute's worth: small payloads, 1 and 64 in flight")
    chosen = options.parse_args()
    defaults = {
        "rounds": ROUNDS_DEFAULT,
        "seconds": SECONDS_DEFAULT,
        "sizes": wholes(SIZES_DEFAULT),
        "in_flight": wholes(IN_FLIGHT_DEFAULT),
    }
    for name, value in (defaults | (QUICK if chosen.quick else {})).items():
        if getattr(chosen, name) is None:
            setattr(chosen, name, value)
    chosen.subjects = [part.strip() for part in chosen.only.split(";")] if chosen.only else DEFAULT
    for name in chosen.subjects:
        if name not in SUBJECTS:
            options.error(f"argument --only: {name!r} is not one of {names}")
    chosen.turns = {name: SUBJECTS[name] for name in chosen.subjects}
    if chosen.beside is not None:
        ours = [name for name in chosen.subjects if SUBJECTS[name][0] == "tiedreq"]
        chosen.turns |= {f"{name}, beside": ("beside", SUBJECTS[name][1]) for name in ours}
    return chosen


def run(options: argparse.Namespace, subjects: dict[str, Subject]) -> dict[Cell, dict[str, list[Measurement]]]:
    """All cells, one after another; in each the subjects take turns."""
    cells: dict[Cell, dict[str, list[Measurement]]] = {}
    for cell in [(size, flight) for size in options.sizes for flight in options.in_flight]:
        measured: dict[str, list[Measurement]] = {name: [] for name in options.turns}
        for _ in range(options.rounds):
            for name, (kind, policy) in options.turns.items():
                measured[name].append(measure(subjects[kind], policy, cell, options.seconds))
        cells[cell] = measured
    return cells


def main() -> int:
    options = arguments()
    from _bench_peers import Subject  # what it compares with takes a while to import

    kinds = dict.fromkeys(kind for kind, _ in options.turns.values())
    subjects = {kind: Subject("tiedreq", options.beside) if kind == "beside" else Subject(kind) for kind in kinds}
    try:
        cells = run(options, subjects)
    finally:
        for subject in subjects.values():
            subject.end()
    show_cells(cells)
    write(options.json, [each for cell, measured in cells.items() for each in rows_of(cell, measured)])
    return 0


if __name__ == "__main__":
    as_program(main)
