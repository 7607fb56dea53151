"""What a launcher is asked for: read from the command line, refused before anything starts."""

from __future__ import annotations

from pathlib import Path

import click
import pytest

from cluster.config import DEMO_APP, POLICIES, UpConfig, policy_by_name
from cluster.upoptions import read_options
from tiedreq import Backup, Hedged, Plain, Tied
from tiedreq.laws import Exponential
from tiedreq.slowness import PauseSpec, SlowSpec


def config(*arguments: str) -> UpConfig:
    return read_options(arguments)


def test_without_options() -> None:
    assert config() == UpConfig()
    assert (config().replicas, config().slots, config().app, config().port) == (4, 8, DEMO_APP, 0)
    assert config().names == ("r0", "r1", "r2", "r3")
    assert config().is_demo and config().traffic is None and not config().demo.is_set


def test_whom_a_launcher_starts_beside_those_that_are_there() -> None:
    """r3 could not be started and left a gap: nobody gets the name of one that is there."""
    five = config("--replicas", "5")
    assert five.missing(["r0", "r1", "r2"]) == [(3, "r3"), (4, "r4")]
    assert five.missing(["r0", "r1", "r2", "r4"]) == [(3, "r3")]
    assert config("--replicas", "2").missing(["r0", "r4"]) == []


def test_every_option() -> None:
    read = config(
        *"--replicas 3 --slots 2 --host ::1 --port 7000 --no-dashboard --mesh-latency 1ms~0.3ms;r0-r1=20ms".split(),
        *"--state-dir x/y --engine local --drain-timeout 3s --rate 100 --policy hedged --backup-after 20ms".split(),
        *"--limit tombstones_max=50 --limit marker_age_max=2s".split(),
        *"--duration 5s --service exp(5ms) --slow 0:3 --slow 1:2 --pause 200ms@5s --seed 7 --json".split(),
    )
    assert (read.replicas, read.slots, read.host, read.port, read.seed) == (3, 2, "::1", 7000, 7)
    assert [read.listen_port(index) for index in range(3)] == [7000, 7001, 7002]
    assert read.mesh_latency is not None and read.mesh_latency.law("r1", "r0").mean == 0.020
    assert (read.state_dir, read.drain_timeout, read.json_events) == (Path("x/y"), 3.0, True)
    assert read.traffic is not None
    assert (read.traffic.rate, read.traffic.policy, read.traffic.duration) == (100, "hedged", 5.0)
    assert (read.limits.tombstones_max, read.limits.marker_age_max, read.limits.mesh_idle) == (50, 2.0, 60.0)
    assert read.demo.service == Exponential(0.005)
    assert read.demo.slow == (SlowSpec(0, 3), SlowSpec(1, 2)) and read.demo.pause == (PauseSpec(0.2, 5),)


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ("--replicas 0", "replicas"),
        ("--replicas 257", "256"),
        ("--replicas four", "four"),
        ("--slots 0", "slots"),
        ("--limit tombstones_max", "NAME=VALUE"),
        ("--limit tombs=1", "'tombs' is none of queue_length_max"),
        ("--limit tombstones_max=0", "tombstones_max"),
        ("--limit tombstones_max=1e3", "tombstones_max: '1e3' is not a whole number"),
        ("--limit marker_age_max=5", "unit"),
        ("--limit marker_age_max=0s", "marker_age_max"),
        ("--port 65534", "beyond 65535"),
        ("--port -1", "port"),
        ("--app demo", "MODULE:SERVICE"),
        ("--app a-b:c", "MODULE:SERVICE"),
        ("--host http://x", "host"),
        ("--engine k8s", "engine: 'k8s' is unknown; available are local, ray"),
        ("--address auto", "address: it is that of a Ray cluster, and --engine is local"),
        ("--engine ray --address ray://host:1", "is of Ray's client"),
        ("--engine ray --address host", "neither auto nor HOST:PORT"),
        ("--engine ray --address host:65536", "neither auto nor HOST:PORT"),
        ("--engine ray --replica-cpus 0", "replica-cpus: 0.0 is outside 0.001 to 1024"),
        ("--mesh-latency 1", "no unit"),
        ("--mesh-latency r0-r9=1ms", "no replica is named r9"),
        ("--drain-timeout 5", "no unit"),
        ("--policy tied", "--rate is not given"),
        ("--duration 5s", "--rate is not given"),
        ("--rate 0", "rate"),
        ("--rate 1 --duration 5", "no unit"),
        ("--rate 1 --duration 0", "duration"),
        ("--rate 1 --policy best", "policy: 'best' is unknown"),
        ("--rate 1 --app app:service", "demo"),
        ("--service exp(5)", "no unit"),
        ("--service exp(5ms) --app app:service", "demo"),
        ("--slow 4:3", "beyond r3"),
        ("--slow 0:3 --slow 0:2", "same replica"),
        ("--pause 200ms@5s --pause 1:1s@9s", "same replica"),
        ("--pause 200ms", "DURATION@INTERVAL"),
        ("--state-dir a\tb", "space"),
        ("--nonsense", "--nonsense"),
        ("extra", "extra"),
    ],
)
def test_refusals(arguments: str, why: str) -> None:
    with pytest.raises(click.ClickException, match=why) as refusal:
        config(*arguments.split(" "))
    assert refusal.value.exit_code == 2


def test_a_folder_with_a_space_above_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "my projects"
    folder.mkdir()
    monkeypatch.chdir(folder)
    assert config().state_shown == ".tiedreq"
    monkeypatch.chdir(tmp_path)
    assert config().state_shown == str(tmp_path / ".tiedreq")


def test_dashboard() -> None:
    assert (config().dashboard, config().dashboard_port, config().dashboard_remote_control) == (True, None, False)
    assert config("--dashboard-port", "8000", "--dashboard-remote-control").dashboard_port == 8000
    assert not config("--no-dashboard").dashboard


def test_where_ray_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    alone = config("--engine", "ray")
    assert (alone.engine, alone.address, alone.replica_cpus, alone.replica_host) == ("ray", None, 1.0, "")
    assert config("--engine", "ray", "--host", "0.0.0.0").replica_host == "0.0.0.0"
    assert config().replica_host == "127.0.0.1"
    for address in ("auto", "head:6379", "10.0.0.1:6379", "[::1]:6379"):
        assert config("--engine", "ray", "--address", address).address == address
    monkeypatch.setenv("RAY_ADDRESS", "head:6379")
    assert config("--engine", "ray").address == "head:6379"
    assert config("--engine", "ray", "--address", "auto").address == "auto"
    assert config().address is None
    monkeypatch.setenv("RAY_ADDRESS", "local")
    assert config("--engine", "ray").address is None


def test_help_names_every_option(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(click.exceptions.Exit) as ending:
        read_options(["--help"])
    assert ending.value.exit_code == 0
    told = capsys.readouterr().out
    for option in (
        "--replicas --slots --app --host --port --dashboard-port --no-dashboard --mesh-latency --state-dir --engine "
        "--address --replica-cpus "
        "--rate --policy --duration --json --service --slow --pause --seed"
    ).split():
        assert option in told


def test_policies() -> None:
    assert policy_by_name("plain") == Plain()
    assert policy_by_name("hedged", backup_after=0.02) == Hedged(Backup(after=0.02, since="send"))
    assert policy_by_name("tied", backup_after=0.02) == Tied(backup=Backup(after=0.02, since="start"))
    assert policy_by_name("tied-classic") == Tied(backup=None, yield_=False)
    assert len({policy_by_name(name) for name in POLICIES}) == len(POLICIES)
