"""A client whose replicas join, leave and move under traffic: no call fails, and each has one outcome."""

from __future__ import annotations

from contextlib import asynccontextmanager

import pytest
import trio

import tiedreq
from tests.membership.moving import Board, Place, Traffic, place, url
from tests.net.bench import until
from tiedreq.discovery import Members


@asynccontextmanager
async def traffic(found: Place, **options):
    """A client, and calls for as long as the block runs; none of them may fail."""
    async with found.client() as client, trio.open_nursery() as nursery:
        load = Traffic(client, **options)
        nursery.start_soon(load.run)
        await trio.sleep(0.3)
        yield load
        await trio.sleep(0.3)
        load.stopped = True
    assert not load.errors
    assert len(load.answers) > 30


def states(client: tiedreq.Client) -> dict[str, str]:
    return {row["url"]: row["state"] for row in client.stats()["members"]}


@pytest.mark.parametrize("method", ["work", "once"])
async def test_joins_and_leaves_under_traffic(autojump_clock, method: str) -> None:
    async with place("a", "b") as found, traffic(found, method=method) as load:
        await found.start("c", "c")
        found.tell()
        await trio.sleep(0.2)
        mark = len(load.answers)
        await trio.sleep(1)
        assert load.since(mark) == {"a", "b", "c"}
        mark = len(load.answers)
        found.tell(["b", "c"])
        await trio.sleep(1)
        assert load.since(mark + 10) == {"b", "c"}
        assert states(load.client) == {url("b"): "up", url("c"): "up"}, "the link to a is closed"
        assert not found.lives["a"].handle.status()["callers"]


async def test_a_call_that_runs_where_a_member_left_is_finished_there(autojump_clock) -> None:
    async with place("a", "b") as found, found.client() as client, trio.open_nursery() as nursery:
        answers: list[str] = []

        async def call() -> None:
            answers.append(await client.call("once", {"a": 3.0}, timeout=10))

        while not any(run.replica == "a" for run in found.journal.running):
            nursery.start_soon(call)
            await trio.sleep(0.01)
        found.tell(["b"])
        await trio.sleep(1)
        assert states(client) == {url("a"): "leaving", url("b"): "up"}
        assert {await client.call("once") for _ in range(50)} == {"b"}
        await trio.sleep(3)
        assert "a" in answers and states(client) == {url("b"): "up"}


@pytest.mark.parametrize("old", ["killed", "alive", "frozen"])
async def test_a_replica_that_moves(autojump_clock, old: str) -> None:
    """``r`` appears at a new address while the old one is gone, still answers, or is silent: the new one is used."""
    async with place("a", "b") as found:
        await found.start("r", "old")
        found.tell()
        async with traffic(found) as load:
            if old == "killed":
                found.kill("old")
            elif old == "frozen":
                found.network.partition(["old"], ["a", "b", "client"])
            life = await found.start("r", "new")
            found.tell(["a", "b", "new"])
            await trio.sleep(1.5)
            view = load.client.stats()["replicas"]["r"]
            assert view["incarnation"] == life.handle.identity.incarnation
            mark = len(load.answers)
            await trio.sleep(1)
            assert load.since(mark) == {"a", "b", "r"}
            assert states(load.client) == {url("a"): "up", url("b"): "up", url("new"): "up"}


async def test_a_set_of_members_none_of_which_answers_takes_nothing_away(autojump_clock) -> None:
    async with place("a", "b") as found, traffic(found) as load:
        found.board.put(Members.named([("x", url("nowhere")), ("y", url("nobody"))]))
        await trio.sleep(0.5)
        mark = len(load.answers)
        found.board.put(Members(()))
        await trio.sleep(0.5)
        assert load.since(mark) == {"a", "b"}
        await found.start("c", "c")
        found.tell(["c"])
        await trio.sleep(0.5)
        mark = len(load.answers)
        await trio.sleep(0.5)
        assert load.since(mark) == {"c"}


async def test_addresses_without_names_that_flap(autojump_clock) -> None:
    """As DNS has them: half of them, then all, then none, then one too many that is dead."""
    async with place("a", "b") as found:
        found.named = found.complete = False
        found.tell()
        async with traffic(found) as load:
            for hosts in (["a"], ["a", "b"], ["b"], ["b"], ["b"], ["b"], ["b"], ["a", "b", "nobody"]):
                found.tell(hosts)
                await trio.sleep(0.1)
            mark = len(load.answers)
            found.kill("a")
            await trio.sleep(1)
            for _ in range(4):
                found.tell(["b"])
                await trio.sleep(0.1)
            assert states(load.client) == {url("b"): "up"}
            assert load.since(mark + 10) == {"b"}


async def test_no_member_is_known_at_first(autojump_clock) -> None:
    async with place("a") as found:
        found.board = Board()
        async with trio.open_nursery() as nursery:

            async def later() -> None:
                await trio.sleep(3)
                found.tell(["a"])

            nursery.start_soon(later)
            async with found.client() as client:
                assert trio.current_time() >= 3 and await client.call("work") == "a"
        found.board = Board()
        with pytest.raises(tiedreq.ConnectError, match="none is known"):
            async with found.client(timeout=1):
                pass


async def test_more_members_than_a_client_takes(autojump_clock, caplog) -> None:
    async with place("a", "b", "c") as found:
        limits = tiedreq.ClientLimits(replicas_max=2)
        async with found.client(limits=limits) as client:
            assert states(client) == {url("a"): "up", url("b"): "up"}
            assert "replicas_max is 2" in caplog.text
            found.tell(["b", "c"])
            await until(lambda: states(client) == {url("b"): "up", url("c"): "up"})


async def test_a_source_that_fails_is_asked_anew(autojump_clock, caplog) -> None:
    class Moody:
        def __init__(self) -> None:
            self.asked = 0

        async def __aiter__(self):
            self.asked += 1
            if self.asked == 2:
                raise RuntimeError("not today")
            yield Members.named([(None, url("a" if self.asked == 1 else "b"))])
            if self.asked == 1:
                raise RuntimeError("not any more")
            await trio.sleep_forever()

    async with place("a", "b") as found:
        source = found.board = Moody()  # type: ignore[assignment]
        async with found.client() as client:
            assert await client.call("work") == "a"
            await until(lambda: states(client) == {url("b"): "up"})
            assert source.asked == 3
    assert caplog.text.count("not today") and caplog.text.count("not any more")


async def test_a_replica_that_is_away_when_it_leaves_is_kept_while_no_member_answers(autojump_clock) -> None:
    """A set of addresses at which nobody answers takes nothing away, whenever it comes."""
    async with place("a") as found, found.client() as client:
        found.network.partition(["a"], ["client"])
        await until(lambda: states(client)[url("a")] == "down", patience=5)
        found.board.put(Members.named([("x", url("nowhere"))]))
        await trio.sleep(0.5)
        found.network.heal()
        assert await client.call("once", timeout=10) == "a"
        await found.start("c", "c")
        found.tell(["c"])
        await until(lambda: states(client) == {url("c"): "up"}, patience=5)
        assert await client.call("once", timeout=10) == "c"


async def test_addresses_that_come_and_go_leave_nothing(autojump_clock) -> None:
    async with place("a") as found, found.client() as client:
        members = client.members.__self__
        for number in range(20):
            found.board.put(Members.named([("a", url("a")), ("x", url(f"x{number}"))]))
            await trio.sleep(0.2)
        sizes = {name: len(value) for name, value in vars(members).items() if isinstance(value, dict)}
        assert max(sizes.values()) == 2, sizes
