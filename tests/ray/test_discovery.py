"""What a source of members in Ray does when Ray has too little, or too much, to say. Ray's answers are made up here."""

from __future__ import annotations

from contextlib import aclosing
from dataclasses import replace
from types import SimpleNamespace

import pytest

from cluster.engines.on_ray import NAMESPACE, discovery
from tiedreq.clusterfile import ClusterAddress, ReplicaAddress
from tiedreq.errors import ConnectError

ADDRESS = ClusterAddress((ReplicaAddress("ws://10.0.0.1:7000", "r0"),), "one", "token", "Ray")


def test_several_clusters_have_to_be_told_apart() -> None:
    named = [{"name": f"{cluster}/r0", "namespace": NAMESPACE} for cluster in ("two", "one")]
    util = SimpleNamespace(list_named_actors=lambda all_namespaces: named)
    with pytest.raises(discovery.Ambiguous, match="there are 2 clusters in this Ray cluster, name one: one, two"):
        discovery._actors(util, None)


async def test_members_wait_for_an_answer_but_not_for_a_choice(monkeypatch, autojump_clock) -> None:
    answers = iter([ConnectError("nobody answers"), discovery.Ambiguous("name one")])

    def find(cluster: str | None) -> ClusterAddress:
        raise next(answers)

    monkeypatch.setattr(discovery, "find", find)
    with pytest.raises(discovery.Ambiguous):
        await anext(aiter(discovery.RayMembers()))


async def test_a_cluster_that_comes_up_later_changes_nothing(monkeypatch, autojump_clock) -> None:
    """A client that found the only one stays with it; it must not end because there is a choice now."""
    moved = replace(ADDRESS, replicas=(ReplicaAddress("ws://10.0.0.2:7000", "r0"),))
    answers = iter([ADDRESS, moved])

    def find(cluster: str | None) -> ClusterAddress:
        if cluster is None and asked:
            raise discovery.Ambiguous("name one")
        asked.append(cluster)
        return next(answers)

    asked: list[str | None] = []
    monkeypatch.setattr(discovery, "find", find)
    async with aclosing(aiter(discovery.RayMembers())) as sets:
        urls = [(await anext(sets)).replicas[0].url for _ in range(2)]
    assert urls == ["ws://10.0.0.1:7000", "ws://10.0.0.2:7000"] and asked == [None, "one"]
