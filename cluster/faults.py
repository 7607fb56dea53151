"""What an operator has done to the mesh and to replicas, as the launcher remembers it over restarts.

A partition, a latency or a slowness belongs to the place, not to the process: a replica that is started again finds it
as it was. Pure bookkeeping; who tells the replicas is ``cluster.control``. Not for frozen processes: that ends with the
process (``cluster.keeper``).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from cluster.engines.base import ReplicaSpec
from tiedreq.units import LatencySpec


class Faults:
    """``latency`` is that of the mesh, ``latency_before`` that of its start; None: its links can't be shaped."""

    def __init__(self, latency: LatencySpec | None) -> None:
        self.latency = latency
        self.latency_before = latency
        self.slow: dict[str, float] = {}
        self._cut: set[tuple[str, str]] = set()

    def cut(self, source: str, target: str) -> None:
        """Nothing from ``source`` reaches ``target`` any more."""
        self._cut.add((source, target))

    def mend(self, pairs: Iterable[tuple[str, str]] | None = None) -> None:
        """Everything passes again between these pairs, in this direction; None: between all."""
        self._cut = set() if pairs is None else self._cut.difference(pairs)

    def cut_from(self, source: str) -> tuple[str, ...]:
        """Whom ``source`` does not reach."""
        return tuple(sorted(target for cut, target in self._cut if cut == source))

    def present(self, spec: ReplicaSpec) -> ReplicaSpec:
        """``spec`` as it is to be now."""
        return replace(
            spec,
            mesh_latency=None if self.latency is None else str(self.latency),
            blocked=self.cut_from(spec.name),
            slow=self.slow.get(spec.name, 1.0),
        )

    def view(self) -> dict[str, Any]:
        """As plain values: ``latency``, ``partitions`` as pairs (from, to), ``slow`` as factors by name."""
        return {
            "latency": None if self.latency is None else str(self.latency),
            "partitions": [list(pair) for pair in sorted(self._cut)],
            "slow": dict(sorted(self.slow.items())),
        }
