"""Engines: what runs the replicas of a cluster.

``local`` starts a process for each on this host, ``on_ray`` an actor for each on the nodes of a Ray cluster. ``base``
says what an engine must do.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cluster.engines.base import Engine, EngineUnavailable, ReplicaProcess, ReplicaSpec
from cluster.engines.local import LocalEngine

if TYPE_CHECKING:
    from cluster.config import UpConfig

__all__ = ["Engine", "EngineUnavailable", "LocalEngine", "ReplicaProcess", "ReplicaSpec", "engine_of"]


def engine_of(config: UpConfig) -> Engine:
    """The engine that the configuration asks for."""
    if config.engine == "local":
        return LocalEngine()
    from cluster.engines.on_ray.engine import RayEngine, RayOptions

    options = RayOptions(address=config.address, names=config.names, cpus=config.replica_cpus, steady=bool(config.port))
    return RayEngine(options)
