"""The roster against a plain account of its rules, over any histories of answers."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tiedreq.clusterfile import ReplicaAddress
from tiedreq.discovery import Members, Roster
from tiedreq.discovery.roster import MISSES_MAX

NAMES = ["a", "b", "c", None]
addresses = st.builds(
    ReplicaAddress, st.sampled_from([f"ws://h:{port}" for port in range(1, 6)]), st.sampled_from(NAMES)
)


def consistent(replicas: list[ReplicaAddress]) -> bool:
    names = [replica.name for replica in replicas if replica.name is not None]
    return len({replica.url for replica in replicas}) == len(replicas) and len(set(names)) == len(names)


sets = st.builds(Members, st.lists(addresses, max_size=5).filter(consistent).map(tuple), st.booleans())
working = st.frozensets(st.sampled_from([f"ws://h:{port}" for port in range(1, 6)]))
histories = st.lists(st.tuples(sets, working), max_size=12)


def one(url: int, name: str | None = None) -> ReplicaAddress:
    return ReplicaAddress(f"ws://h:{url}", name)


@given(histories, st.integers(1, 6))
def test_every_history_keeps_the_rules(history: list[tuple[Members, frozenset[str]]], size_max: int) -> None:
    roster = Roster(size_max)
    before: set[ReplicaAddress] = set()
    absent: dict[ReplicaAddress, int] = {}
    for members, works in history:
        change = roster.update(members, lambda replica, works=works: replica.url in works)
        now, named = set(roster.members), set(members.replicas)
        assert now == (before - set(change.left)) | set(change.joined) and len(now) <= size_max
        assert not set(change.joined) & before and set(change.left) <= before
        if not named:
            assert now == before and not any(change)
            continue
        assert named <= now | set(change.refused) and not now & set(change.refused)
        assert not change.refused or len(now) == size_max
        for replica in before:
            absent[replica] = 0 if replica in named else absent.get(replica, 0) + 1
            moved = any(other.url == replica.url or other.name == replica.name is not None for other in named)
            must = replica not in named and (members.complete or moved)
            may = must or (absent[replica] >= MISSES_MAX and replica.url not in works)
            assert (replica in change.left) == may
        absent = {replica: count for replica, count in absent.items() if replica in now}
        before = now


def test_who_moved_leaves_and_joins() -> None:
    roster = Roster(10)
    roster.update(Members((one(1, "a"), one(2, "b"))), lambda _: True)
    change = roster.update(Members((one(1, "a"), one(3, "b")), complete=False), lambda _: True)
    assert change.left == (one(2, "b"),) and change.joined == (one(3, "b"),)


def test_a_source_that_flaps_takes_down_nobody_who_works() -> None:
    roster, both = Roster(10), Members((one(1), one(2)), complete=False)
    half = Members((one(1),), complete=False)
    roster.update(both, lambda _: True)
    for _ in range(3 * MISSES_MAX):
        assert not any(roster.update(half, lambda _: True))
    assert roster.update(half, lambda _: False).left == (one(2),)
    roster.update(both, lambda _: True)
    for _ in range(MISSES_MAX - 1):
        assert not roster.update(half, lambda _: False).left
    assert not any(roster.update(both, lambda _: False)), "named again: counted from the start"
    assert not roster.update(half, lambda _: False).left


def test_one_too_many_is_refused_and_comes_in_when_there_is_room() -> None:
    roster = Roster(2)
    assert roster.update(Members((one(1), one(2), one(3))), lambda _: True).refused == (one(3),)
    assert roster.update(Members((one(3), one(1))), lambda _: True).joined == (one(3),)
