"""Policies and limits are values: a copy of one, and one that went through a pickle, is the same."""

from __future__ import annotations

import copy
import pickle

import pytest

import tiedreq
from tiedreq.core.learning import LearningOptions
from tiedreq.core.link_options import LinkTiming
from tiedreq.sim.links import NetworkOptions
from tiedreq.sim.world import WorldOptions

OPTIONS = [
    tiedreq.Plain(observe_only=True),
    tiedreq.Hedged(backup=tiedreq.Backup(after=0.5, since="send")),
    tiedreq.Tied(copies=3, stagger=0.0),
    tiedreq.Auto(),
    tiedreq.Backup(after="p95", budget=0.1),
    tiedreq.ClientLimits(calls_in_flight_max=7),
    tiedreq.ReplicaLimits(tombstones_max=7),
    LearningOptions(backups=2),
    LinkTiming(heartbeat_interval=0.5),
    NetworkOptions(silence=2.0),
    WorldOptions(replicas=3),
]


@pytest.mark.parametrize("one", OPTIONS, ids=lambda one: type(one).__name__)
def test_copies_and_pickles(one: object) -> None:
    for made in (copy.copy(one), copy.deepcopy(one), *(pickle.loads(pickle.dumps(one, n)) for n in range(2, 6))):
        assert made == one and type(made) is type(one) and repr(made) == repr(one)
