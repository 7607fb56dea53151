"""Zones over real links, in virtual time: replicas say where they are, clients stay near, latencies follow."""

from __future__ import annotations

import pytest
import trio
from click.testing import CliRunner
from trio.testing import MockClock

import tiedreq
from cluster.config import UpConfig
from cluster.upoptions import read_options
from tests.net.bench import Journal, bench_service, until
from tiedreq import BadOption, Plain, Tied
from tiedreq.cli import command
from tiedreq.testing import LocalCluster
from tiedreq.units import parse_latency


async def test_calls_stay_in_the_clients_zone_and_ties_go_to_the_next(autojump_clock: MockClock) -> None:
    spec = parse_latency("1ms;a-b=5ms;a-c=60ms;b-c=60ms")
    cluster = LocalCluster(bench_service(Journal()), replicas=6, zones=("a", "b", "c"), mesh_latency=spec)
    async with cluster, cluster.client(name="near", zone="b") as client:
        known = client.stats()["replicas"]
        assert [known[name]["zone"] for name in sorted(known)] == ["a", "b", "c", "a", "b", "c"]
        assert [handle.status()["zone"] for handle in cluster.handles.values()] == ["a", "b", "c", "a", "b", "c"]
        await until(lambda: all(len(one["notice_latencies"]) == 5 for one in client.stats()["replicas"].values()))
        plain = [await client.request("work", {"seconds": 0.01}, policy=Plain()) for _ in range(20)]
        assert {reply.replica for reply in plain} == {"r1", "r4"}
        tied = [
            await client.request("work", {"seconds": 0.01}, policy=Tied(stagger=0.0, backup=None)) for _ in range(20)
        ]
        second = {attempt.replica for reply in tied for attempt in reply.attempts} - {"r1", "r4"}
        assert second == {"r0", "r3"}, "zone a is 5 ms away, which 10 ms of work can bear; c is 60"


async def test_links_have_the_latency_of_their_zones_whoever_dials(autojump_clock: MockClock) -> None:
    spec = parse_latency("1ms;a-b=5ms;a-c=60ms;b-c=60ms")
    cluster = LocalCluster(bench_service(Journal()), replicas=4, zones=("a", "b", "c"), mesh_latency=spec)
    async with cluster:

        def latencies(name: str) -> dict[str, float]:
            links = cluster.handles[name].status()["links"]
            return {other: link["notice_latency_ms"] for other, link in links.items()}

        await trio.sleep(10.0)
        assert latencies("r0") == pytest.approx({"r1": 5.0, "r2": 60.0, "r3": 1.0}, rel=0.05)
        assert latencies("r3") == pytest.approx({"r0": 1.0, "r1": 5.0, "r2": 60.0}, rel=0.05)
        cluster.handles["r2"].set_mesh_latency(parse_latency("1ms"))
        await trio.sleep(10.0)
        assert latencies("r2")["r0"] == pytest.approx((60 + 1) / 2, rel=0.1)


async def test_a_zone_must_be_a_word() -> None:
    with pytest.raises(BadOption, match=r"^zone: 'a b' is not a word"):
        await tiedreq.serve(tiedreq.Service("s"), name="a", zone="a b")
    with pytest.raises(BadOption, match=r"^zone: 'a,b' is not a word"):
        async with tiedreq.connect(["ws://127.0.0.1:1"], zone="a,b"):
            pass
    with pytest.raises(BadOption, match=r"^zone: 3 is not a word"):
        tiedreq.blocking.connect(["ws://127.0.0.1:1"], zone=3)  # type: ignore[arg-type]


def test_the_launcher_hands_out_zones_in_turn() -> None:
    config = read_options("--replicas 5 --zones a,b,c --mesh-latency 1ms;a-b=5ms;r0-r4=9ms".split())
    assert [config.zone(index) for index in range(6)] == ["a", "b", "c", "a", "b", "c"]
    assert UpConfig().zone(3) == ""


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"mesh_latency": parse_latency("1ms;a-b=5ms")}, "no replica is named a, b; names are r0 to r3"),
        ({"zones": ("a", "b"), "mesh_latency": parse_latency("a-c=5ms")}, "named c; names are r0 to r3, zones a, b"),
        ({"zones": ("a", "r7")}, "zones: 'r7' is the name of a replica"),
        ({"zones": ("a b",)}, "zones: 'a b' is not a word"),
    ],
)
def test_names_that_nobody_has_are_refused(options: dict[str, object], why: str) -> None:
    with pytest.raises(BadOption, match=why):
        UpConfig(**options)  # type: ignore[arg-type]


def test_serve_takes_a_zone_from_the_command_line() -> None:
    shown = CliRunner().invoke(command, ["serve", "--help"])
    assert "--zone NAME" in shown.output
    refused = CliRunner().invoke(command, ["serve", "tests.zones.no:app", "--name", "a", "--zone"])
    assert refused.exit_code == 2 and "--zone" in refused.output
