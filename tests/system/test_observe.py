"""What a running cluster shows, asked as a monitor and as a person would: real processes, real HTTP."""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cluster._launcher import Child, Up, eventually, write_app

pytestmark = pytest.mark.system

Start = Callable[..., Up]


def get(target: str, path: str, token: str | None = None) -> tuple[int, str]:
    host, _, port = target.partition(":")
    connection = http.client.HTTPConnection(host, int(port), timeout=30)
    try:
        connection.request("GET", path, headers={} if token is None else {"Authorization": f"Bearer {token}"})
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


def targets(file: Path) -> dict[str, str]:
    """The targets of a file for Prometheus' discovery, by their one label."""
    return {next(iter(group["labels"].values())): group["targets"][0] for group in json.loads(file.read_text())}


@pytest.fixture
def tiedreq(tmp_path: Path) -> Iterator[Callable[..., Child]]:
    """Run `tiedreq` with these arguments in the test's folder."""
    started: list[Child] = []

    def run(*arguments: str) -> Child:
        started.append(Child(["-m", "tiedreq", *arguments], tmp_path))
        return started[-1]

    yield run
    for child in started:
        child.end()


def test_a_cluster_is_seen_from_outside_and_a_call_is_explained(
    up: Start, tiedreq: Callable[..., Child], tmp_path: Path
) -> None:
    launcher = up("--replicas", "3", "--rate", "40", "--service", "exp(5ms)", "--json")
    launcher.event("ready")
    token = launcher.cluster()["token"]
    replicas = targets(launcher.state / "prometheus.json")
    assert set(replicas) == {"r0", "r1", "r2"}
    for name, target in replicas.items():
        assert get(target, "/healthz") == (200, "ok\n") and get(target, "/readyz") == (200, "ready\n")
        status, page = get(target, "/metrics")
        assert status == 200 and f'tiedreq_replica_slots{{replica="{name}"}} 8.0' in page and token not in page
        assert get(target, "/snapshot")[0] == 401
        picture = json.loads(get(target, "/snapshot", token)[1])
        assert picture["name"] == name and picture["cluster"] == launcher.cluster()["cluster"]
        assert set(picture["links"]) == set(replicas) - {name}

    clients = launcher.state / "clients"
    assert eventually(lambda: clients.is_dir() and list(clients.glob("*.json")))
    (client,) = [targets(file) for file in clients.glob("*.json")]
    (target,) = client.values()
    assert eventually(lambda: "tiedreq_client_calls_total{" in get(target, "/metrics")[1])

    listing = tiedreq("explain")
    assert listing.wait() == 0 and listing.out, listing.stderr
    call_id = listing.out[0].split()[0]
    explained = tiedreq("explain", call_id, "--perfetto", "call.json")
    assert explained.wait() == 0, explained.stderr
    text = "\n".join(explained.out)
    assert f"call {call_id} of 'work' under Tied: answered by" in text and "sends the first copy" in text
    assert any(f"  {name}  " in text for name in replicas), "what a replica remembers"
    trace = json.loads((tmp_path / "call.json").read_text())
    assert {"runs", "work"} <= {event["name"] for event in trace["traceEvents"] if event["ph"] == "X"}

    os.kill(launcher.replica_pids()["r1"], signal.SIGKILL)
    launcher.event("replica_restarted")
    assert get(targets(launcher.state / "prometheus.json")["r1"], "/readyz")[0] == 200
    assert launcher.stop(signal.SIGINT) == 0
    assert not (launcher.state / "prometheus.json").exists() and not list(clients.glob("*"))


def test_a_replica_of_ones_own_shows_itself_and_logs_as_json(tiedreq: Callable[..., Child], tmp_path: Path) -> None:
    write_app(tmp_path)
    arguments = ["serve", "app:service", "--name", "a", "--log-format", "json", "--metrics"]
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        failed = tiedreq(*arguments, address)
        assert failed.wait() == 1
        assert failed.error == [f"tiedreq: can't listen at {address}: address already in use"]
    replica = tiedreq(*arguments, address, "--listen", "127.0.0.1:0", "--log-level", "debug")
    assert replica.line().startswith("ready a ")
    assert get(address, "/readyz") == (200, "ready\n")
    assert get(address, "/nothing")[0] == 404
    nobody = tiedreq("explain", f"{1:016x}-1", "--replicas", replica.out[0].split()[2])
    assert nobody.wait() == 1 and nobody.error[0].startswith("tiedreq: nobody remembers call ")
    replica.signal(signal.SIGTERM)
    assert replica.wait() == 0
    lines: list[dict[str, Any]] = [json.loads(line) for line in replica.error]
    assert all({"time", "level", "logger", "message"} <= set(line) for line in lines)
