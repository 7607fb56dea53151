"""Which node a replica runs on: one per node where that can be had, by a placement group.

Invariants: with as many nodes as replicas or more, no two replicas are started on one node while each has its bundle.
A replica that lost its node gets the node that Ray finds for its bundle; where Ray finds none (too few nodes are left
for one each), the node with the fewest replicas.
"""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable
from typing import Any

from cluster.engines.on_ray.session import RayUnavailable

STRICT_SECONDS = 5.0
READY_SECONDS = 30.0
"""How long a cluster that is full may take to find room, or to grow, for all replicas."""
AGAIN_SECONDS = 1.0
"""How long Ray may look for a new place for the bundle of a replica that lost its node."""
POLL_SECONDS = 0.1


class Placement:
    """The places of ``replicas`` replicas of ``cpus`` CPUs each. Methods may be called from any thread.

    ``replica_nodes`` says which nodes the replicas of this moment run on, by their ids.
    """

    def __init__(self, ray: Any, replicas: int, cpus: float, replica_nodes: Callable[[], list[str]]) -> None:
        self._ray = ray
        self._util = importlib.import_module("ray.util")
        self._strategies = importlib.import_module("ray.util.scheduling_strategies")
        self._replicas = replicas
        self._cpus = cpus
        self._replica_nodes = replica_nodes
        self._group: Any = None
        self.strategy = ""
        """``STRICT_SPREAD``: one per node, or ``SPREAD``."""

    def reserve(self, note: Callable[[str], None]) -> None:
        """Reserve the places. Raises ``RayUnavailable`` when the cluster has no room for them."""
        if self._nodes_with_room() >= self._replicas and self._try("STRICT_SPREAD", STRICT_SECONDS):
            return
        if not self._try("SPREAD", STRICT_SECONDS, keep=True):
            note(f"waiting for room in the Ray cluster for {self._wanted()}; free are {self._free()}")
            if not self._group.wait(READY_SECONDS):
                raise RayUnavailable(
                    f"the Ray cluster has no room after {READY_SECONDS:g} s for {self._wanted()}; free are "
                    f"{self._free()}: add nodes, or lower --replica-cpus"
                )

    def place(self, index: int | None) -> Any:
        """The scheduling strategy for the replica with this index; None for one that has joined later."""
        if index is not None and self._settled(index):
            return self._strategies.PlacementGroupSchedulingStrategy(self._group, placement_group_bundle_index=index)
        return self._strategies.NodeAffinitySchedulingStrategy(self._emptiest(), soft=True)

    def at(self, node: str) -> Any:
        """The scheduling strategy for what has to run on the node with this id."""
        return self._strategies.NodeAffinitySchedulingStrategy(node, soft=False)

    def is_alive(self, node: str) -> bool:
        """Whether the node with this id is up, as far as Ray knows."""
        return any(found["NodeID"] == node for found in self._alive())

    def _try(self, strategy: str, seconds: float, *, keep: bool = False) -> bool:
        bundles = [{"CPU": self._cpus}] * self._replicas
        group = self._util.placement_group(bundles, strategy=strategy)
        if group.wait(seconds):
            self._group, self.strategy = group, strategy
            return True
        if keep:
            self._group, self.strategy = group, strategy
        else:
            self._util.remove_placement_group(group)
        return False

    def _settled(self, index: int) -> bool:
        """Wait a little until the replica's bundle has a node that is up; False when it has not."""
        until = time.monotonic() + AGAIN_SECONDS
        while True:
            table = self._util.placement_group_table(self._group)
            node = table.get("bundles_to_node_id", {}).get(index)
            if node and self.is_alive(node) and table.get("state") == "CREATED":
                return True
            if time.monotonic() > until:
                return False
            time.sleep(POLL_SECONDS)

    def _emptiest(self) -> str:
        """The node with the fewest replicas; of equal ones the first by its id."""
        taken = self._replica_nodes()
        return min(self._node_ids(), key=lambda node: (taken.count(node), node))

    def _node_ids(self) -> list[str]:
        return [node["NodeID"] for node in self._alive()]

    def _alive(self) -> list[dict[str, Any]]:
        return [node for node in self._ray.nodes() if node["Alive"]]

    def _nodes_with_room(self) -> int:
        return sum(node["Resources"].get("CPU", 0.0) >= self._cpus for node in self._alive())

    def _free(self) -> str:
        return f"{self._ray.available_resources().get('CPU', 0.0):g} CPUs"

    def _wanted(self) -> str:
        return f"{self._replicas} replicas of {self._cpus:g} CPUs each"
