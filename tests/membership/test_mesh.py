"""Replicas that find each other while they run: joins, moves, addresses without names, links that open on first use."""

from __future__ import annotations

import pytest
import trio

import tiedreq
from tests.membership.moving import Place, place, url
from tests.net.bench import bench_service, until
from tiedreq.core.limits import ReplicaLimits
from tiedreq.net.mesh import LEAVE_SECONDS
from tiedreq.testing import LocalCluster

AT_ONCE = tiedreq.Tied(backup=None, stagger=0.0)


async def one_at_a_time(found: Place, client: tiedreq.Client, pair: set[str]) -> bool:
    """Whether a tie of two busy replicas runs once: the notice of the one that starts reaches the other."""
    mark = len(found.journal)
    async with trio.open_nursery() as nursery:
        for _ in range(24):
            nursery.start_soon(lambda: client.call("work", 0.5, policy=AT_ONCE, timeout=10))
            await trio.sleep(0.01)
    runs = found.journal.runs[mark:]
    assert {run.replica for run in runs} <= pair
    doubled = len(runs) - len({run.call for run in runs})
    return doubled <= 16  # of those that found both replicas idle


async def test_joins_and_leaves(autojump_clock) -> None:
    async with place("b", "c") as found:
        await until(lambda: found.meshed("b", "c"))
        for host in ("a", "d"):  # one that dials, and one that is dialed
            await found.start(host, host)
            found.tell()
            await until(lambda: found.meshed("a", "b", "c") if "a" in found.lives else False)
        await until(lambda: found.meshed("a", "b", "c", "d"))
        found.tell(["a", "b", "c"])
        await trio.sleep(1)
        assert found.meshed("a", "b", "c", "d"), "what both still have is told for a while"
        await trio.sleep(LEAVE_SECONDS)
        assert all("d" not in found.links(host) for host in "abc") and found.meshed("a", "b", "c")
        assert "d" not in found.lives["a"].handle.status()["links"]


@pytest.mark.parametrize("name", ["a", "z"])
@pytest.mark.parametrize("old", ["killed", "alive", "silent"])
async def test_the_notices_reach_the_one_that_moved(autojump_clock, name: str, old: str) -> None:
    async with place("m") as found:
        await found.start(name, "old")
        found.tell()
        await until(lambda: found.meshed("m", "old"))
        before = found.lives["old"].handle.identity
        if old == "killed":
            found.kill("old")
        elif old == "silent":
            found.network.partition(["old"], ["m", "client"])
        life = await found.start(name, "new")
        found.tell(["m", "new"])
        await until(lambda: found.meshed("m", "new"), patience=1.5)
        server = found.lives["m"].handle._server
        assert server.links[server.mesh[name].id].peer.incarnation == life.handle.identity.incarnation
        assert [peer for peer in server.core._links if peer.name == name] == [life.handle.identity] != [before]
        async with found.client() as client:
            assert await one_at_a_time(found, client, {"m", name})


async def test_old_news_change_nothing(autojump_clock) -> None:
    """The old incarnation's link ends after the new one's is up: nothing is forgotten of the new one."""
    async with place("m") as found:
        old = await found.start("z", "old")
        found.tell()
        await until(lambda: found.meshed("m", "old"))
        new = await found.start("z", "new")
        found.tell(["m", "new"])
        await until(lambda: found.meshed("m", "new"))
        server = found.lives["m"].handle._server
        link = server.mesh["z"]
        old.scope.cancel()
        await trio.sleep(3)
        assert server.mesh["z"] is link and link.up
        assert server.core._links == {new.handle.identity: link.id}


async def test_addresses_without_names(autojump_clock) -> None:
    """As DNS has them, the own one among them, and one at which nobody answers."""
    async with place("a", "b", "c") as found:
        found.named = found.complete = False
        found.tell(["a", "b", "c", "nobody"])
        await until(lambda: found.meshed("a", "b", "c"))
        links = found.lives["b"].handle.status()["links"]
        assert set(links) == {"a", "c", url("nobody")} and "nobody" in links[url("nobody")]["reason"]
        await trio.sleep(6)
        assert found.meshed("a", "b", "c")
        opened = found.lives["b"].handle.status()["mesh"]["opened"]
        await trio.sleep(6)
        assert found.lives["b"].handle.status()["mesh"]["opened"] == opened, "nobody is dialed in vain again and again"
        found.kill("a")
        await trio.sleep(1)
        await found.start("z", "a")  # another replica at an address that was known
        await until(lambda: {"b", "c"} <= found.links("a"), patience=15)


async def test_two_addresses_of_one_replica(autojump_clock) -> None:
    async with place("a", "b") as found, trio.open_nursery() as nursery:
        found.named = False
        server = found.lives["b"].handle._server
        await nursery.start(found.network.serve, "b-too", server.accepted)
        found.tell(["a", "b", "b-too"])
        await until(lambda: found.meshed("a", "b"))
        await trio.sleep(10)  # both may come up at once, and each end may then keep another one: that is settled by now
        mesh = found.lives["a"].handle._server.peers
        link, times = mesh.links["b"], mesh.links["b"].statistics.times_up
        await trio.sleep(30)
        assert mesh.links["b"] is link and link.statistics.times_up == times, "the addresses take it from each other"
        assert mesh.view()["up"] == 1
        nursery.cancel_scope.cancel()


async def test_another_one_of_the_same_name(autojump_clock, caplog: pytest.LogCaptureFixture) -> None:
    async with place("a", "b") as found:
        found.named = False
        await found.start("a", "a-too")
        found.tell()
        await until(lambda: "too" in found.lives["a"].handle._server.peers.troubles.get(url("a-too"), ""))
        await trio.sleep(20)
    told = [record.getMessage() for record in caplog.records if "named 'a' too" in record.getMessage()]
    assert sum(url("a-too") in text and text.startswith("another replica") for text in told) == 1, (
        "and not again and again"
    )


async def test_a_source_of_peers_and_peers(autojump_clock) -> None:
    async with place("a") as found:
        with pytest.raises(tiedreq.BadOption, match="discover"):
            found.lives["a"].handle.set_peers({})
    for bad in ("", 7, "srv://x:1"):
        with pytest.raises(tiedreq.BadOption):
            await tiedreq.serve(tiedreq.Service("s"), name="a", discover=bad)  # type: ignore[arg-type]
    with pytest.raises(tiedreq.BadOption, match="one of them"):
        await tiedreq.serve(tiedreq.Service("s"), name="a", peers={"b": "ws://h:1"}, discover="members.txt")


LARGE = ReplicaLimits(mesh_full_max=3, mesh_idle=1.0)


@pytest.mark.parametrize("named", [True, False])
async def test_a_large_mesh_opens_links_on_first_use(autojump_clock, named: bool) -> None:
    hosts = ["a", "b", "c", "d"]
    async with place(*hosts, limits=LARGE) as found:
        found.named = named
        found.tell()
        await trio.sleep(2)
        assert not any(found.links(host) for host in hosts)
        status = found.lives["a"].handle.status()
        assert status["mesh"]["links"] == "opens on first use" and status["mesh"]["members"] == 4
        assert not status["links"], "what is not to be there is not shown as missing"
        async with found.client(limits=tiedreq.ClientLimits()) as client:
            for _ in range(60):
                answer = await client.call("work", 0.02, policy=AT_ONCE, timeout=1)
                assert answer in hosts
            await trio.sleep(0.5)
            assert found.meshed(*hosts), "each pair was used"
            mark = len(found.journal)
            for _ in range(20):
                await client.call("work", 0.05, policy=AT_ONCE, timeout=1)
            runs = found.journal.runs[mark:]
            spent = sum(run.ended - run.began for run in runs if run.end != "returned")
            assert sum(run.end == "returned" for run in runs) == 20 and spent < 20 * 0.005, (
                "the others are told at once"
            )
        await trio.sleep(3)
        assert not any(found.links(host) for host in hosts), "idle links are closed"
        assert sum(found.lives[host].handle.status()["mesh"]["closed_idle"] for host in hosts) == 6


async def test_what_starts_while_the_link_opens_is_told_once_it_is_up(autojump_clock) -> None:
    """Both copies of the first tie start; the higher rank hears of it as soon as there is a link, and yields."""
    async with place("a", "b", limits=ReplicaLimits(mesh_full_max=1)) as found, found.client() as client:
        assert await client.call("work", 1.0, policy=AT_ONCE, timeout=5)
        assert found.meshed("a", "b")
        ends = {run.rank: (run.end, run.ended - run.began) for run in found.journal.runs}  # type: ignore[operator]
        assert ends[0][0] == "returned" and ends[1][0] == "cancelled" and ends[1][1] < 0.1
        assert sum(found.lives[host].handle._server.core.stats.notices_unsent for host in "ab") == 2


async def test_a_mesh_that_grows_and_shrinks(autojump_clock) -> None:
    async with place("a", "b", "c", limits=LARGE) as found:
        await until(lambda: found.meshed("a", "b", "c"))
        await found.start("d", "d")
        found.tell()
        await trio.sleep(0.4)
        assert found.meshed("a", "b", "c") and not found.links("d"), "what is up may be in use"
        await trio.sleep(2)
        assert not any(found.links(host) for host in "abcd")
        found.tell(["a", "b", "c"])
        await until(lambda: found.meshed("a", "b", "c"))


async def test_exclusive_ties_in_a_large_mesh(autojump_clock) -> None:
    """The first of a pair may find no link and is refused there; the call is answered all the same, and runs once."""
    async with place("a", "b", "c", limits=ReplicaLimits(mesh_full_max=1)) as found, found.client() as client:
        policy = tiedreq.Tied(backup=None, stagger=0.0, exclusive=True)
        for _ in range(30):
            await client.call("work", 0.01, policy=policy, timeout=5)
        assert len(found.journal) == 30


async def test_a_large_cluster_in_memory_does_not_wait_for_links_that_open_on_use(autojump_clock) -> None:
    async with LocalCluster(bench_service(), replicas=17) as client:
        assert trio.current_time() < 1
        assert await client.tied_call("work", 0.01) in {f"r{index}" for index in range(17)}


@pytest.mark.parametrize("where", ["first", "last"])
async def test_addresses_at_which_nobody_answers_keep_no_place_from_others(
    autojump_clock, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    """So many links may be dialed at once; dead addresses are more than that."""
    monkeypatch.setattr("tiedreq.net.mesh.LINKS_MAX", 4)
    dead, alive = [f"dead{number}" for number in range(9)], ["a", "b", "c"]
    async with place(*alive, limits=ReplicaLimits(mesh_full_max=2)) as found:
        found.named = found.complete = False
        found.tell([*dead, *alive] if where == "first" else [*alive, *dead])
        mesh = found.lives["a"].handle._server.peers
        await until(lambda: {"b", "c"} <= set(mesh._addresses), patience=60)
        assert len(mesh.dialed) <= 4


async def test_who_has_drained_dials_nobody_any_more(autojump_clock) -> None:
    """Also while a connection is slow to close."""
    async with place("a", "b") as found:
        await until(lambda: found.meshed("a", "b"))
        life = found.lives["a"]
        server = life.handle._server
        server._connections += 1
        life.handle.drain()
        await life.ended.wait()
        assert server.peers.opened == 1 and not found.links("b")
