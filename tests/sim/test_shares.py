"""The adaptive picker over time: like replicas share the calls alike, a slow one gets few, a mended one its share.

Virtual time. What is counted are the replicas whose answers were taken, in windows of two seconds.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from random import Random

import pytest

from tiedreq.core.policy import Auto, Backup, Plain, Policy, Tied
from tiedreq.laws import parse_law
from tiedreq.sim.caller_node import OpenCall
from tiedreq.sim.workload import OpenLoop, Workload
from tiedreq.sim.world import World, WorldOptions

WINDOW = 2.0
NAMES = ("r0", "r1", "r2", "r3")
RATE = 300.0
GUARDED = Tied(backup=Backup(after=0.05))


class Shares:
    """Four replicas of four slots and one client, and which replica answered how many calls in each window."""

    def __init__(self, law: str, policy: Policy, seed: int = 1) -> None:
        self.factors: dict[str, float] = {}
        self.windows: list[Counter[str]] = []
        load = _Slowed(law, seed, self.factors)
        self.world = World(WorldOptions(4, 4, picker="adaptive", learns=True), load, seed=seed)
        self.world.start()
        self._begin = self.world.clock.now
        load.listeners.append(self._completed)
        OpenLoop(
            self.world,
            lambda caller: load.make(caller, policy, timeout=30.0),
            Random(seed),
            rate=RATE,
            calls=1_000_000,
        ).start()

    def _completed(self, call: OpenCall, latency: float) -> None:
        assert call.outcome is not None
        window = int((self.world.clock.now - self._begin) / WINDOW)
        while len(self.windows) <= window:
            self.windows.append(Counter())
        if call.outcome.copy is not None:
            self.windows[window][call.core.copies[call.outcome.copy].replica] += 1

    def run(self, until: float, then: Callable[[], None] | None = None) -> None:
        """Let time pass until so many seconds after the beginning, then do something."""
        self.world.clock.run(self._begin + until)
        if then is not None:
            then()

    def shares(self, name: str, since: float, until: float) -> list[float]:
        """The replica's share of the answers in each window."""
        windows = self.windows[int(since / WINDOW) : int(until / WINDOW)]
        assert len(windows) == int((until - since) / WINDOW)
        return [window[name] / window.total() for window in windows]


class _Slowed(Workload):
    """Service times of a law, longer by a replica's factor, which may change."""

    def __init__(self, law: str, seed: int, factors: dict[str, float]) -> None:
        super().__init__(parse_law(law), Random(f"{seed} service"))
        self._slow = factors


@pytest.mark.parametrize(
    ("law", "policy"),
    [("exp(5ms)", GUARDED), ("bimodal(5ms,150ms,0.02)", Auto()), ("lognormal(mean=5ms,sd=2ms)*10@0.05", Plain())],
    ids=["tied", "auto", "plain"],
)
def test_like_replicas_have_like_shares_in_every_window(law: str, policy: Policy) -> None:
    """About 150 of 600 calls each: by chance alone they would be 11 more or less, and queues move some too."""
    shares = Shares(law, policy)
    shares.run(8)
    for name in NAMES:
        assert all(0.15 < share < 0.36 for share in shares.shares(name, 0, 8)), (name, shares.windows)


def test_restarted_and_thawed_replicas_have_their_share_again() -> None:
    """One after the other is killed, and one stands still for five seconds."""
    shares = Shares("exp(5ms)", GUARDED)
    world = shares.world
    shares.run(0.5, lambda: world.crash("r0"))
    shares.run(1.0, lambda: world.restart("r0"))
    shares.run(1.5, lambda: world.crash("r1"))
    shares.run(2.0, lambda: world.restart("r1"))
    shares.run(2.5, lambda: world.freeze("r2", 5.0))
    shares.run(14)
    for name in NAMES:
        assert all(0.15 < share < 0.36 for share in shares.shares(name, 10, 14)), (name, shares.windows)


@pytest.mark.parametrize(
    ("factor", "policy", "most"), [(10.0, GUARDED, 0.03), (3.0, Plain(), 0.09)], ids=["on probation", "passed over"]
)
def test_a_slow_replica_gets_few_calls_and_a_mended_one_its_share(factor: float, policy: Policy, most: float) -> None:
    shares = Shares("exp(5ms)", policy)
    shares.factors["r0"] = factor
    shares.run(8)
    assert all(share < most for share in shares.shares("r0", 2, 8)), shares.windows
    shares.factors.clear()
    shares.run(22)
    assert all(0.15 < share < 0.36 for share in shares.shares("r0", 18, 22)), shares.windows
