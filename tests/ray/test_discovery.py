"""What a source of members in Ray does when Ray has too little, or too much, to say. Ray's answers are made up here."""

from __future__ import annotations

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
    answers = iter([ConnectError("nobody answers"), ADDRESS, discovery.Ambiguous("name one")])

    def find(cluster: str | None) -> ClusterAddress:
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(discovery, "find", find)
    sets = aiter(discovery.RayMembers())
    assert [member.name for member in (await anext(sets)).replicas] == ["r0"]
    with pytest.raises(discovery.Ambiguous):
        await anext(sets)
