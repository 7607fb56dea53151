"""Engines: what runs the replicas of a cluster. ``local`` starts a process for each on this host.

``base`` says what an engine must do, so that others (Ray) fit in later.
"""

from __future__ import annotations

from cluster.engines.base import Engine, ReplicaProcess, ReplicaSpec
from cluster.engines.local import LocalEngine
from tiedreq.errors import BadOption

__all__ = ["Engine", "ReplicaProcess", "ReplicaSpec", "engine_by_name"]


def engine_by_name(name: str) -> Engine:
    """The engine called ``name``. Raises ``BadOption`` when this version does not have it."""
    if name != "local":
        raise BadOption(f"engine: {name} is not available in this version; available is local")
    return LocalEngine()
