"""Control requests to a launcher whose replicas have not been started: what is refused and remembered, who may ask."""

from __future__ import annotations

import json
import os
import socket
import stat
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio

from cluster.config import DemoOptions, UpConfig
from cluster.control import Operator
from cluster.control_file import (
    CONTROL_FILE,
    ControlAddress,
    NoControl,
    SocketPlace,
    read_control_file,
    write_control_file,
)
from cluster.control_socket import REQUEST_BYTES_MAX, ask, serve_control
from cluster.ctl import main
from cluster.ctl_status import render
from cluster.demo_state import DemoState
from cluster.drive import TrafficDriver
from cluster.engines import LocalEngine
from cluster.load import Load, TrafficSpec
from cluster.output import Output
from cluster.refusal import ControlRefused
from cluster.slowing import Slowness
from cluster.state import StateDirectory
from cluster.supervisor import Cluster
from tests.net.bench import bench_service
from tiedreq import BadOption
from tiedreq.slowness import SlowSpec
from tiedreq.testing import LocalCluster
from tiedreq.units import parse_latency

TOKEN = "a token of this test"


class Quiet(Output):
    """Says nothing anywhere."""

    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []

    def event(self, event: dict[str, Any], *, try_line: str = "") -> None:
        self.events.append(event)


def operator(folder: Path, app: str | None = None) -> tuple[Operator, Cluster]:
    demo_options = DemoOptions(slow=(SlowSpec(1, 2.0),)) if app is None else DemoOptions()
    more: dict[str, Any] = {} if app is None else {"app": app}
    config = UpConfig(replicas=3, mesh_latency=parse_latency("1ms"), demo=demo_options, **more)
    output = Quiet()
    cluster = Cluster(config, StateDirectory(folder), output, LocalEngine(), lambda name: {})
    if app is not None:
        return Operator(cluster, None, None), cluster
    spec = TrafficSpec("cluster.json", Load(policy="hedged"), None, 0)
    driver = TrafficDriver(spec, output, cluster.executions, begin=False)
    return Operator(cluster, DemoState(config, folder / "index"), driver), cluster


REFUSED = [
    ({}, "do: 'None' is none of status, pause"),
    ({"do": "explode"}, "do: 'explode' is none of"),
    ({"do": "kill"}, "replica: no replica is named 'None'; there is r0 to r2"),
    ({"do": "kill", "replica": 1}, "replica: no replica is named '1'"),
    ({"do": "restart", "replica": "r9"}, "replica: no replica is named 'r9'"),
    ({"do": "scale"}, "replicas: 'None' is not a whole number"),
    ({"do": "scale", "replicas": True}, "replicas: 'True' is not a whole number"),
    ({"do": "scale", "replicas": -1}, "replicas: -1 is not a whole number from 1 to"),
    ({"do": "scale", "replicas": 1}, "slow: '1:2' names a replica beyond r0"),
    ({"do": "slow", "replica": "r0"}, "factor: 'None' is not a number"),
    ({"do": "slow", "replica": "r0", "factor": True}, "factor: 'True' is not a number"),
    ({"do": "slow", "replica": "r0", "factor": float("nan")}, "factor: nan is outside 0 to"),
    ({"do": "slow", "replica": "r0", "factor": -1}, "factor: -1.0 is outside 0 to"),
    ({"do": "latency"}, "spec: is missing"),
    ({"do": "latency", "spec": "5"}, "has no unit"),
    ({"do": "latency", "spec": "r0-r7=5ms"}, "spec: no replica is named r7"),
    ({"do": "partition", "to": "r0"}, "from: no replica is named 'None'"),
    ({"do": "partition", "from": "r0", "to": "r0"}, "r0 can't be cut off from itself"),
    ({"do": "heal", "from": "r0"}, "heal takes two replicas"),
    ({"do": "work", "service": "fast"}, "service: "),
    ({"do": "work", "pause": "7:200ms@5s", "service": "exp(1ms)"}, "pause: '7:200ms@5s' names a replica beyond r2"),
    ({"do": "work", "pause": 7}, "pause: '7' is not a text"),
    ({"do": "traffic", "rate": -1}, "rate: -1.0 is outside"),
    ({"do": "traffic", "rate": 10, "policy": "best"}, "policy: 'best' is unknown"),
    ({"do": "traffic", "work": "yes"}, "work: 'yes' is not true or false"),
    ({"do": "traffic", "backup_after": "5"}, "has no unit"),
]


@pytest.mark.parametrize(("request_", "why"), REFUSED)
async def test_what_is_refused_changes_nothing(tmp_path: Path, request_: dict[str, Any], why: str) -> None:
    carried, _ = operator(tmp_path)
    before = carried.status()
    with pytest.raises(BadOption) as refusal:
        await carried.carry_out(request_)
    assert why in str(refusal.value) and "\n" not in str(refusal.value)
    assert carried.status() == before


@pytest.mark.parametrize("verb", ["pause", "resume", "restart", "drain"])
async def test_what_a_replica_that_starts_can_not_do_yet(tmp_path: Path, verb: str) -> None:
    carried, _ = operator(tmp_path)
    with pytest.raises(ControlRefused, match="r0"):
        await carried.carry_out({"do": verb, "replica": "r0"})


async def test_another_service_has_neither_work_nor_traffic(tmp_path: Path) -> None:
    carried, _ = operator(tmp_path, "app:service")
    for request in ({"do": "work", "service": "exp(1ms)"}, {"do": "traffic", "rate": 5}):
        with pytest.raises(ControlRefused, match="another service"):
            await carried.carry_out(request)
    assert carried.status()["work"] is None and carried.status()["traffic"] is None
    with pytest.raises(BadOption, match="factor: 1 or more"):
        await carried.carry_out({"do": "slow", "replica": "r0", "factor": 0.5})


async def test_a_replica_that_is_started_again_finds_what_was_done(tmp_path: Path) -> None:
    carried, cluster = operator(tmp_path)
    spec = cluster._spec(0, "r0")
    assert cluster.present(spec).blocked == () and cluster.present(spec).mesh_latency == "1ms"
    await carried.carry_out({"do": "partition", "from": "r0", "to": "r1", "one_way": True})
    await carried.carry_out({"do": "partition", "from": "r2"})
    await carried.carry_out({"do": "latency", "spec": "3ms;r0>r1=9ms"})
    await carried.carry_out({"do": "slow", "replica": "r0", "factor": 4})
    assert cluster.present(spec).blocked == ("r1", "r2")
    assert cluster.faults.cut_from("r1") == ("r2",) and cluster.faults.cut_from("r2") == ("r0", "r1")
    assert cluster.present(spec).mesh_latency == "3ms;r0>r1=9ms" and cluster.present(spec).slow == 4
    assert carried.faults()["slow"] == {"r0": 4, "r1": 2}
    await carried.carry_out({"do": "heal", "from": "r1", "to": "r0"})
    assert cluster.present(spec).blocked == ("r2",)
    await carried.carry_out({"do": "heal", "all": True})
    assert carried.faults() == {"latency": "1ms", "partitions": [], "slow": {}}
    assert cluster.present(spec).mesh_latency == "1ms"


async def test_work_and_traffic(tmp_path: Path) -> None:
    carried, _ = operator(tmp_path)
    await carried.carry_out({"do": "work", "service": "const(5ms)", "pause": "1:200ms@5s"})
    assert carried.status()["work"] == {"service": "const(5ms)", "pause": ["1:200ms@5s"]}
    await carried.carry_out({"do": "work", "pause": "none"})
    assert carried.status()["work"] == {"service": "const(5ms)", "pause": []}
    await carried.carry_out({"do": "traffic", "rate": 50, "backup_after": "20ms"})
    told = {name: carried.status()["traffic"][name] for name in ("rate", "policy", "backup_after", "work")}
    assert told == {"rate": 50, "policy": "hedged", "backup_after": 0.02, "work": True}


async def test_status_as_a_table(tmp_path: Path) -> None:
    from rich.console import Console

    carried, _ = operator(tmp_path)
    await carried.carry_out({"do": "partition", "from": "r0", "to": "r1", "one_way": True})
    await carried.carry_out({"do": "partition", "from": "r1", "to": "r2"})
    console = Console(width=140)
    with console.capture() as captured:
        console.print(render(json.loads(json.dumps(carried.status()))))
    shown = captured.get()
    assert shown.count("starting") == 3
    for line in ("cut off: r1 – r2, r0 → r1", "slow: r1 × 2", "latency between replicas: 1ms", "work: exp(10ms)"):
        assert line in shown


# ---- the socket and the file ----------------------------------------------------------------------------------------


@asynccontextmanager
async def serving(folder: Path) -> AsyncIterator[ControlAddress]:
    carried, _ = operator(folder)
    address = ControlAddress(os.getpid(), TOKEN)
    async with trio.open_nursery() as nursery:
        assert await nursery.start(serve_control, folder, TOKEN, carried)
        yield address
        nursery.cancel_scope.cancel()


@pytest.fixture(params=["short", "deep"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A state directory; a deep one has a path that is too long for a socket."""
    path = tmp_path if request.param == "short" else tmp_path / ("d" * 60) / ("e" * 60)
    path.mkdir(parents=True, exist_ok=True)
    return path


async def test_ask_and_answer(folder: Path) -> None:
    async with serving(folder) as address:
        assert stat.S_IMODE(os.stat(folder / "control.sock").st_mode) == 0o600
        found = await ask(folder, address, {"do": "latency", "spec": "7ms"})
        assert found["ok"] and found["said"] == "the latency between replicas is 7ms"
        found = await ask(folder, address, {"do": "status"})
        assert found["status"]["faults"]["latency"] == "7ms"
        found = await ask(folder, address, {"do": "latency", "spec": "7"})
        assert (found["ok"], found["code"]) == (False, 2)
        found = await ask(folder, address, {"do": "drain", "replica": "r0"})
        assert (found["ok"], found["code"], found["error"]) == (False, 1, "r0 is starting, not up")
    assert not (folder / "control.sock").exists()


async def test_a_launcher_that_is_frozen_is_not_waited_for(tmp_path: Path) -> None:
    with SocketPlace(tmp_path) as place, socket.socket(socket.AF_UNIX) as silent:
        silent.bind(str(place.path))
        silent.listen()
        with pytest.raises(TimeoutError, match=r"nothing was heard for 0\.05 s"):
            await ask(tmp_path, ControlAddress(1, TOKEN), {"do": "status"}, 0.05)


async def test_without_the_token_nothing_is_done(tmp_path: Path) -> None:
    async with serving(tmp_path) as address:
        for token in ("", "x", TOKEN + "x", "é"):
            found = await ask(tmp_path, ControlAddress(1, token), {"do": "latency", "spec": "7ms"})
            assert found == {"ok": False, "error": "the control token is not that of this cluster", "code": 1}
        assert (await ask(tmp_path, address, {"do": "status"}))["status"]["faults"]["latency"] == "1ms"


@pytest.mark.parametrize("line", [b"[]\n", b"\xff\n", b"7\n", b"[" * 5000 + b"\n"])
async def test_nonsense_is_answered(tmp_path: Path, line: bytes) -> None:
    async with serving(tmp_path) as address:
        with SocketPlace(tmp_path) as place:
            async with await trio.open_unix_socket(str(place.path)) as stream:
                await stream.send_all(line)
                assert json.loads(await stream.receive_some()) == {
                    "ok": False,
                    "error": "the request is not a JSON object",
                    "code": 2,
                }
            async with await trio.open_unix_socket(str(place.path)) as stream:
                with pytest.raises(trio.BrokenResourceError):
                    await stream.send_all(b"x" * (2 * REQUEST_BYTES_MAX))
                    while await stream.receive_some():
                        pass
                    raise trio.BrokenResourceError
        assert (await ask(tmp_path, address, {"do": "status"}))["ok"]


def test_the_control_file(tmp_path: Path) -> None:
    write_control_file(tmp_path, ControlAddress(os.getpid(), TOKEN, "http://127.0.0.1:80/"))
    assert stat.S_IMODE(os.stat(tmp_path / CONTROL_FILE).st_mode) == 0o600
    read = read_control_file(tmp_path)
    assert read == ControlAddress(os.getpid(), TOKEN, "http://127.0.0.1:80/")
    assert TOKEN not in repr(read)
    (tmp_path / CONTROL_FILE).write_text("{")
    with pytest.raises(NoControl, match="can't be read"):
        read_control_file(tmp_path)


# ---- the command line -----------------------------------------------------------------------------------------------


def ctl(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = main(arguments)
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_no_cluster_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, error = ctl(capsys, "--state-dir", str(tmp_path), "status")
    assert (code, out) == (1, "")
    assert error.startswith(f"cluster.ctl: no cluster is up in {tmp_path}") and error.count("\n") == 1


def test_a_launcher_that_is_gone_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_control_file(tmp_path, ControlAddress(os.getpid(), TOKEN))
    code, _, error = ctl(capsys, "--state-dir", str(tmp_path), "status")
    assert code == 1 and "does not answer" in error and error.count("\n") == 1


def test_help_names_every_verb(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = ctl(capsys, "--help")
    assert code == 0
    for verb in "status pause resume kill restart slow latency partition heal drain work traffic dashboard".split():
        assert f"\n  {verb} " in out
        assert ctl(capsys, verb, "--help")[0] == 0


@pytest.mark.parametrize(
    "arguments",
    ["", "explode", "pause", "slow r0", "slow r0 fast", "heal r0", "heal r0 r1 --all", "traffic", "work", "status x"],
)
def test_bad_usage_is_2(arguments: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, error = ctl(capsys, "--state-dir", str(tmp_path), *arguments.split())
    assert code == 2 and error


# ---- slowness -------------------------------------------------------------------------------------------------------


async def test_a_slow_replica_takes_a_factor_longer(autojump_clock: trio.testing.MockClock) -> None:
    service = bench_service()
    slowness = Slowness(3.0)
    slowness.apply(service, but=["once"])
    cluster = LocalCluster(service, replicas=1, mesh_latency=0.0)
    async with cluster as client:

        async def seconds(method: str) -> float:
            reply = await client.request(method, 0.1)
            return reply.service_time

        assert await seconds("work") == pytest.approx(0.3)
        assert await seconds("once") == pytest.approx(0.1)
        slowness.factor = 1.0
        assert await seconds("work") == pytest.approx(0.1)


async def test_how_long_a_replica_that_left_was_away_is_not_asked_of_its_successor(tmp_path: Path) -> None:
    """r2 is lost and leaves before it is back; whoever has its name later was not away since then."""
    _, cluster = operator(tmp_path, app="somewhere:service")
    for keeper in cluster.keepers:
        keeper.url, keeper.pid = f"ws://127.0.0.1:{7000 + int(keeper.name[1:])}", 1
        keeper.gone.set()  # none of them runs here
    cluster.went_down(cluster.keepers[2], 1, "killed")
    assert await cluster.scale(2) == ["r2"]
    assert [keeper.name for keeper in cluster.keepers] == ["r0", "r1"] and not cluster._lost_at
