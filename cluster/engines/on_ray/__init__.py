"""The Ray engine: replicas are named actors on the nodes of a Ray cluster (extra ``ray``; docs/ray.md).

``engine`` is the launcher's side and never imports Ray: it talks over pipes to ``driver``, a child program that is
Ray's driver. Ray ends the process of a driver that has lost its cluster, and has its own idea of signals; in a child
that is an event like any other. ``actor`` is the replica, ``placement`` says on which node, ``session`` opens Ray,
``sweep`` runs the tasks of ``cluster.compare``, ``discovery`` finds a cluster from within Ray.
"""

from __future__ import annotations

import importlib.util

NAMESPACE = "tiedreq"
"""Ray's namespace of the actors; an actor's name is ``CLUSTER/REPLICA``."""

MISSING = "engine: ray is not installed here; pip install 'tiedreq[ray]' (from a checkout: requirements/ray.txt)"


def is_installed() -> bool:
    """Whether Ray can be imported."""
    return importlib.util.find_spec("ray") is not None
