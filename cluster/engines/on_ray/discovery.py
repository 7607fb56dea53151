"""Finds a cluster from within Ray: a task or an actor anywhere in the Ray cluster, or a driver, needs no cluster file.

``find()`` is for threads; ``RayMembers`` is a source of members for a client that stays: it hears of replicas that have
moved. Ray has to be initialized (``ray.init()``; within tasks and actors it always is).
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import AsyncIterator
from typing import Any

import trio

from cluster.engines.on_ray import MISSING, NAMESPACE, is_installed
from tiedreq.clusterfile import ClusterAddress, ReplicaAddress
from tiedreq.core.checks import check_number
from tiedreq.discovery import Members
from tiedreq.errors import BadOption, ConnectError

ANSWER_SECONDS = 2.0
INTERVAL_SECONDS = 1.0
INTERVAL_MIN, INTERVAL_MAX = 0.1, 3600.0


class Ambiguous(ConnectError):
    """There are several clusters, and none was named."""


def find(cluster: str | None = None) -> ClusterAddress:
    """The cluster with this name, or the only one: URLs by name, and its token.

    ``tiedreq.connect([replica.url for replica in found.replicas], token=found.token, cluster=found.cluster)``. Raises
    ``ConnectError`` when there is none, ``Ambiguous`` when there are several and none was named; ``BadOption`` without
    Ray.
    """
    if not is_installed():
        raise BadOption(MISSING)
    ray, util = importlib.import_module("ray"), importlib.import_module("ray.util")
    if not ray.is_initialized():
        raise BadOption("ray: it is not initialized here; call ray.init(address=…) first")
    actors = _actors(util, cluster)
    answers = [actor.where.remote() for actor in actors]
    ready, _ = ray.wait(answers, num_returns=len(answers), timeout=ANSWER_SECONDS) if answers else ([], [])
    told = [answer for answer in (_get(ray, one) for one in ready) if answer is not None]
    if not told:
        raise ConnectError(f"no replica of {cluster or 'a cluster'} answers in this Ray cluster")
    return _merged(told)


def _actors(util: Any, cluster: str | None) -> list[Any]:
    names = [found["name"] for found in util.list_named_actors(all_namespaces=True) if found["namespace"] == NAMESPACE]
    clusters = sorted({name.rpartition("/")[0] for name in names})
    if cluster is None and len(clusters) > 1:
        raise Ambiguous(f"there are {len(clusters)} clusters in this Ray cluster, name one: {', '.join(clusters)}")
    wanted = [name for name in names if name.rpartition("/")[0] == (cluster or next(iter(clusters), ""))]
    actors = []
    for name in sorted(wanted):
        try:
            actors.append(importlib.import_module("ray").get_actor(name, namespace=NAMESPACE))
        except ValueError:  # it has gone meanwhile
            continue
    return actors


def _get(ray: Any, answer: Any) -> dict[str, Any] | None:
    try:
        told: dict[str, Any] = ray.get(answer)
    except ray.exceptions.RayError:  # its node was lost
        return None
    return told


def _merged(told: list[dict[str, Any]]) -> ClusterAddress:
    """What the replicas say together: where one is it knows best itself, and of one that is silent the others tell."""
    urls: dict[str, str] = {}
    for answer in told:
        urls.update({name: url for name, url in answer["replicas"].items() if name not in urls})
    urls.update({answer["name"]: answer["url"] for answer in told if answer["url"]})
    replicas = tuple(ReplicaAddress(url, name) for name, url in sorted(urls.items()))
    if not replicas:
        raise ConnectError("the replicas in this Ray cluster do not serve yet")
    return ClusterAddress(replicas, told[0]["cluster"], told[0]["token"], "Ray")


class RayMembers:
    """The members of a cluster, asked for every ``interval`` seconds. A ``Discovery``.

    While Ray or the replicas don't answer, the members stay as they were. Where no cluster is named it is the only one
    that is there at first; another one that comes up later changes nothing. ``token`` and ``cluster`` for
    ``tiedreq.connect`` are those of ``find()``.
    """

    def __init__(self, cluster: str | None = None, *, interval: float = INTERVAL_SECONDS) -> None:
        self.cluster = cluster
        self.interval = check_number("interval", interval, INTERVAL_MIN, INTERVAL_MAX, "seconds")

    def __repr__(self) -> str:
        return f"RayMembers({self.cluster!r})"

    async def __aiter__(self) -> AsyncIterator[Members]:
        """A set each time that it has changed."""
        known: Members | None = None
        cluster = self.cluster
        while True:
            try:
                address = await trio.to_thread.run_sync(functools.partial(find, cluster), abandon_on_cancel=True)
            except Ambiguous:
                raise  # waiting does not help
            except ConnectError:
                pass  # nobody answers for now
            else:
                cluster = address.cluster
                found = Members(address.replicas, cluster=cluster)
                if found != known:
                    known = found
                    yield found
            await trio.sleep(self.interval)
