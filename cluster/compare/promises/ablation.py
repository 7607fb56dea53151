"""The ablation ladder: plain, hedged, backup alone, tie alone, tie and yield, tie with yield and backup, and auto.

Of ``pauses``, ``rare-stalls``, ``uncancellable`` and ``intrinsic`` at three loads, and of ``long-tail`` at its rates
and 380/s, at four latencies between replicas: what each part of the policy is worth where, and what it costs.
"""

from __future__ import annotations

from collections.abc import Sequence

from cluster.compare.cell import Cell
from cluster.compare.grid import Results, curve_of, rows_of
from cluster.compare.promises.cells import cell_of
from cluster.compare.rows import Row

__all__ = ["LADDER", "cells_of", "document_of"]

LADDER = ("plain", "hedged", "backup", "tied-classic", "tied-nobackup", "tied", "auto")
LATENCIES = (0.0002, 0.001, 0.005, 0.020)
LOADS: dict[str, tuple[float, ...]] = {
    "pauses": (0.30, 0.60, 0.85),
    "rare-stalls": (0.30, 0.60, 0.89),
    "uncancellable": (0.30, 0.60, 0.89),
    "intrinsic": (0.30, 0.60, 0.89),
}
LONG_TAIL_RATES = (100.0, 250.0, 380.0, 400.0)


def cells_of(scale: float, only: str = "", latencies: Sequence[float] = LATENCIES) -> list[Cell]:
    """The cells of the ladder whose scenario has ``only`` in its name. Latencies in seconds."""
    traffic: list[tuple[str, dict[str, float]]] = [
        (name, {"load": load}) for name, loads in LOADS.items() for load in loads
    ]
    traffic += [("long-tail", {"rate": rate}) for rate in LONG_TAIL_RATES]
    return [
        cell_of(name, policy, latency=latency, scale=scale, **arrivals)
        for name, arrivals in traffic
        if only in name
        for latency in latencies
        for policy in LADDER
    ]


def document_of(
    cells: Sequence[Cell], seeds: Sequence[int], results: Results
) -> tuple[list[tuple[Cell, Row]], list[list[list[float]]]]:
    """The rows that are finished, and the curve of each one's tail."""
    rows = rows_of(cells, seeds, results)
    return rows, [curve_of(cell, seeds, results) for cell, _ in rows]
