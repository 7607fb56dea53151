"""A comparison's document as pictures need it: rows by experiment and workload, each with the curve of its tail."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

from cluster.compare.document import SCHEMA
from cluster.compare.policies import POLICIES
from cluster.compare.rows import COLUMNS

__all__ = ["Entry", "Experiment", "View", "Workload", "file_name", "interval_of", "read_document", "some_of"]

ItemT = TypeVar("ItemT")


class Experiment(NamedTuple):
    """What is the same in all loads of one experiment."""

    world: str
    scenario: str | None
    fan_out: int

    def __str__(self) -> str:
        name = self.scenario or "as the options say"
        fan_out = f", {self.fan_out:,} calls per root call" if self.fan_out > 1 else ""
        return f"{name}{fan_out}{'' if self.world == 'sim' else ' (live)'}"


class Workload(NamedTuple):
    """What is the same for all policies and latencies of one picture. ``rate`` in calls/s; None in a closed loop."""

    experiment: Experiment
    rate: float | None
    load: float | None

    @property
    def traffic(self) -> str:
        """How many calls there are, in words."""
        if self.rate is None:
            return "closed loop"
        load = "" if self.load is None else f", load {self.load * 100:.3g} %"
        rate = f"{self.rate:,.0f}" if self.rate >= 100 else f"{self.rate:.3g}"
        return f"{rate} calls/s{load}"

    def __str__(self) -> str:
        return f"{self.experiment}, {self.traffic}"


class Entry(NamedTuple):
    """A row and the curve of its tail: points (milliseconds, share of calls that took longer), or none."""

    row: dict[str, Any]
    curve: Sequence[Sequence[float]]

    @property
    def policy(self) -> str:
        """The name of its policy."""
        return str(self.row["policy"])

    @property
    def latency(self) -> float:
        """Between replicas, one way, in milliseconds."""
        return float(self.row["mesh_latency_ms"])

    @property
    def stable(self) -> bool:
        """Whether no run's queues grew to the end."""
        return bool(self.row["stable"])


@dataclass(frozen=True, slots=True)
class View:
    """A document that was read."""

    document: dict[str, Any]
    workloads: dict[Workload, list[Entry]]

    @property
    def rows(self) -> list[dict[str, Any]]:
        """All rows, in the order of the document."""
        rows: list[dict[str, Any]] = self.document["rows"]
        return rows

    @property
    def experiments(self) -> dict[Experiment, list[Workload]]:
        """The workloads of each experiment, by rising load."""
        found: dict[Experiment, list[Workload]] = {}
        for workload in self.workloads:
            found.setdefault(workload.experiment, []).append(workload)
        return {experiment: sorted(all_, key=lambda one: one.rate or 0.0) for experiment, all_ in found.items()}

    def policies(self, entries: Iterable[Entry]) -> list[str]:
        """The policies of some rows, in the order in which the laboratory lists them."""
        there = dict.fromkeys(entry.policy for entry in entries)
        return [name for name in POLICIES if name in there] + [name for name in there if name not in POLICIES]

    def latencies(self, entries: Iterable[Entry]) -> list[float]:
        """The latencies between replicas of some rows in milliseconds, rising."""
        return sorted({entry.latency for entry in entries})


def read_document(document: dict[str, Any]) -> View:
    """The document of a comparison, grouped. Raises ``ValueError`` for what is none, or has no rows."""
    if not isinstance(document, dict) or document.get("schema") != SCHEMA or "rows" not in document:
        raise ValueError(f"not the document of a comparison: it has no rows, or its schema is not {SCHEMA}")
    rows = document["rows"]
    curves = document.get("curves") or [[] for _ in rows]
    if not rows:
        raise ValueError("the document has no rows")
    for number, row in enumerate(rows, 1):
        missing = [name for name in COLUMNS if not isinstance(row, dict) or name not in row]
        if missing:
            raise ValueError(f"row {number} has no {missing[0]!r}")
    if len(curves) != len(rows):
        raise ValueError(f"the document has {len(rows)} rows and {len(curves)} curves")
    workloads: dict[Workload, list[Entry]] = {}
    for row, curve in zip(rows, curves, strict=True):
        experiment = Experiment(row["world"], row["scenario"], row.get("fan_out") or 1)
        workloads.setdefault(Workload(experiment, row["rate"], row["load"]), []).append(Entry(row, curve))
    return View(document, workloads)


def interval_of(row: dict[str, Any], column: str) -> tuple[float, float] | None:
    """The confidence interval of a column, where there is one."""
    limits = row.get(f"{column}_ci")
    return None if limits is None else (limits[0], limits[1])


def some_of(items: Sequence[ItemT], most: int) -> list[ItemT]:
    """At most so many of the items, evenly chosen, the first and the last among them."""
    if len(items) <= most:
        return list(items)
    return [items[round(index * (len(items) - 1) / (most - 1))] for index in range(most)]


def file_name(kind: str, about: Workload | Experiment) -> str:
    """A name for a picture's file."""
    experiment = about.experiment if isinstance(about, Workload) else about
    parts = [kind, experiment.scenario or "custom"]
    if experiment.fan_out > 1:
        parts.append(f"{experiment.fan_out}-per-root")
    if isinstance(about, Workload) and about.rate is not None:
        parts.append(f"{about.rate:.6g}-per-s")
    return "-".join([*parts, *(["live"] if experiment.world == "live" else [])])
