"""The dashboard of a real launcher: who may control it from where, and what clients that don't read cost."""

from __future__ import annotations

import http.client
import json
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psutil
import pytest

from cluster.dashboard import missing
from tests.cluster._launcher import Child, Up, eventually, write_app

pytestmark = [
    pytest.mark.system,
    pytest.mark.skipif(bool(missing()), reason="the extra dashboard is not installed"),
]

Start = Callable[..., Up]
STALLED = 12
GROWTH_BYTES_MAX = 25_000_000


class Dashboard:
    """Requests to one dashboard, over an address of one's choice."""

    def __init__(self, url: str, address: str | None = None) -> None:
        parts = urlsplit(url)
        assert parts.hostname is not None and parts.port is not None
        self.address, self.port = address or parts.hostname, parts.port

    def ask(self, method: str, path: str, body: Any = None, **headers: str) -> tuple[int, bytes]:
        connection = http.client.HTTPConnection(self.address, self.port, timeout=30)
        try:
            sent = None if body is None else json.dumps(body)
            headers = {"connection": "close"} | {name.replace("_", "-"): value for name, value in headers.items()}
            connection.request(method, path, sent, headers)
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()

    def now(self) -> dict[str, Any]:
        status, body = self.ask("GET", "/api/live")
        assert status == 200
        found: dict[str, Any] = json.loads(body)["now"]
        return found

    def control(self, token: str, **request: Any) -> int:
        headers = {"authorization": f"Bearer {token}", "content_type": "application/json"}
        return self.ask("POST", "/api/control", request, **headers)[0]


def token_of(launcher: Up) -> str:
    return str(json.loads((launcher.state / "control.json").read_text())["token"])


def other_address() -> str | None:
    """An address of this host that is not loopback."""
    for addresses in psutil.net_if_addrs().values():
        for address in addresses:
            if address.family == socket.AF_INET and not address.address.startswith("127."):
                return str(address.address)
    return None


@contextmanager
def client_that_does_not_read(dashboard: Dashboard) -> Iterator[socket.socket]:
    """Asks for far more than fits the buffers between here and there, and takes nothing."""
    with socket.create_connection((dashboard.address, dashboard.port)) as client:
        client.setblocking(False)
        request = f"GET /static/vendor/uPlot.iife.min.js HTTP/1.1\r\nhost: 127.0.0.1:{dashboard.port}\r\n\r\n".encode()
        for _ in range(400):
            try:
                client.send(request)
            except (BlockingIOError, BrokenPipeError, ConnectionResetError):
                break
        yield client


def test_clients_that_stop_reading_cost_little(up: Start) -> None:
    launcher = up("--replicas", "2", "--rate", "20", "--json")
    dashboard = Dashboard(launcher.event("ready")["dashboard"])
    assert eventually(lambda: dashboard.now()["methods"])
    process = psutil.Process(launcher.pid)
    before, open_before = process.memory_info().rss, process.num_fds()
    with ExitStack() as stack:
        for _ in range(STALLED):
            stack.enter_context(client_that_does_not_read(dashboard))
        for _ in range(10):
            assert dashboard.now()["replicas"][0]["state"] == "up"
            time.sleep(0.3)
        assert process.memory_info().rss - before < GROWTH_BYTES_MAX
        assert eventually(lambda: process.num_fds() < open_before + STALLED), "they lose their connections"
        assert launcher.stop() == 0
    assert launcher.event("summary")["errors"] == 0


@pytest.mark.skipif(other_address() is None, reason="this host has no address but loopback")
@pytest.mark.parametrize("remote_control", [False, True])
def test_beyond_loopback_it_is_read_only_unless_asked_for(up: Start, remote_control: bool) -> None:
    more = ["--dashboard-remote-control"] if remote_control else []
    launcher = up("--replicas", "1", "--host", "0.0.0.0", "--json", *more)
    url = launcher.event("ready")["dashboard"]
    assert url.startswith("http://127.0.0.1:"), url
    near, far = Dashboard(url), Dashboard(url, other_address())
    assert far.now()["replicas"][0]["name"] == "r0"
    token = token_of(launcher)
    assert far.control(token, do="latency", spec="3ms") == (200 if remote_control else 403)
    assert far.control("wrong", do="latency", spec="5ms") == (401 if remote_control else 403)
    assert near.control(token, do="latency", spec="4ms") == 200
    assert eventually(lambda: near.now()["faults"]["latency"] == "4ms")
    assert launcher.stop() == 0


def test_another_service_on_ipv6(up: Start, tmp_path: Path) -> None:
    write_app(tmp_path)
    launcher = up("--replicas", "1", "--host", "::1", "--app", "app:service", "--json")
    url = launcher.event("ready")["dashboard"]
    assert url.startswith("http://[::1]:")
    dashboard = Dashboard(url)
    now = dashboard.now()
    assert (now["title"], now["traffic"], now["work"]) == ("app:service", None, None)
    assert dashboard.control(token_of(launcher), do="traffic", rate=5) == 409
    assert launcher.stop() == 0


def test_none_is_started_when_none_is_wanted(up: Start) -> None:
    launcher = up("--replicas", "1", "--no-dashboard")
    assert launcher.ready()[2] is None
    assert launcher.cluster()["dashboard"] is None
    done = subprocess.run(
        [sys.executable, "-m", "cluster.ctl", "dashboard"], cwd=launcher.cwd, capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stderr) == (1, "cluster.ctl: this cluster has no dashboard\n")
    assert launcher.stop() == 0


BUSY = """
    import pathlib
    import trio
    import tiedreq

    service = tiedreq.Service("app")


    @service.method(idempotent=True)
    async def lookup(ctx, args):
        pathlib.Path("running").touch()
        await trio.sleep(5)
"""


def test_ctl_that_is_interrupted(up: Start, tmp_path: Path) -> None:
    """What it asked for goes on: the replica is restarted all the same."""
    write_app(tmp_path, BUSY)
    launcher = up("--replicas", "1", "--app", "app:service", "--json")
    launcher.event("ready")
    pid = launcher.replica_pids()["r0"]
    busy = Child(["-m", "tiedreq", "call", "lookup"], tmp_path)
    try:
        assert eventually((tmp_path / "running").exists)
        asking = Child(["-m", "cluster.ctl", "restart"], tmp_path)
    except BaseException:
        busy.end()
        raise
    try:
        assert eventually(lambda: json.loads(_status(launcher))["replicas"]["r0"]["state"] == "draining")
        asking.signal(signal.SIGINT)
        assert asking.wait() == 130
        assert launcher.event("replica_restarted")["pid"] != pid
        assert busy.wait() == 0
    finally:
        asking.end()
        busy.end()
    assert launcher.stop() == 0


def _status(launcher: Up) -> str:
    command = [sys.executable, "-m", "cluster.ctl", "status", "--json"]
    return subprocess.run(command, cwd=launcher.cwd, capture_output=True, text=True, timeout=60, check=True).stdout
