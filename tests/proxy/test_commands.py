"""``tiedreq proxy`` and ``tiedreq front``: the command line, and real processes around a static file server."""

from __future__ import annotations

import http.client
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import click
import pytest
import trustme
from click.testing import CliRunner

from tests.cluster._launcher import PATIENCE, Child
from tests.system.test_console import free_port
from tiedreq import Auto, Backup, Hedged, Plain, Policy, Tied
from tiedreq.cli import main
from tiedreq.proxy.cli import _front_options, front_options

Run = Callable[..., Child]
PROXY = ("proxy", "--upstream", "http://127.0.0.1:1", "--name", "a")
FRONT = ("front", "--replicas", "ws://127.0.0.1:1")


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("proxy", "--name", "a"), "--upstream"),
        (("proxy", "--upstream", "https://a", "--name", "a"), "upstream: 'https://a' is not http://HOST:PORT"),
        ((*PROXY, "--peers", "b"), "peers: 'b' is not NAME=URL"),
        ((*PROXY, "--let-other-win", "200"), "'200' is not a status from 400 to 599"),
        ((*PROXY, "--health", "healthz"), "health: 'healthz' is not a path"),
        ((*PROXY, "--tls-clients", __file__), "--tls-clients goes with"),
        ((*PROXY, "--slots", "0"), "--slots"),
        ((*FRONT, "--tie", "GET:a"), "tie: 'GET:a' is not METHOD, /PATH or METHOD:/PATH"),
        ((*FRONT, "--once", ""), "once: '' is not METHOD"),
        ((*FRONT, "--timeout", "0s"), "--timeout"),
        (("front", "--replicas", "members.txt"), "'members.txt' is no address; a file goes to --cluster"),
        ((*FRONT, "--stagger", "5"), "has no unit; write for example 5ms"),
        ((*FRONT, "--listen", "nowhere"), "must be host:port"),
        (("front", "--replicas", "here"), "is no address"),
    ],
)
def test_what_is_refused(arguments: tuple[str, ...], told: str, capsys) -> None:
    assert main(arguments) == 2
    assert told in " ".join(capsys.readouterr().err.split())


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    """Start Python with these arguments."""
    started: list[Child] = []

    def start(*arguments: str) -> Child:
        started.append(Child(list(arguments), tmp_path))
        return started[-1]

    yield start
    for child in started:
        child.end()


def ask(port: int, method: str, path: str, body: object = None) -> tuple[int, str | None, bytes]:
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)) as connection:
        connection.request(method, path, body=body)
        response = connection.getresponse()
        return response.status, response.headers["Tiedreq-Replica"], response.read()


def answered_by(port: int, wanted: set[str | None]) -> None:
    """Ask until all these replicas, and no other, have answered ten times in turn."""
    limit = time.monotonic() + PATIENCE
    while True:
        answers = [ask(port, "GET", "/large.bin") for _ in range(10)]
        assert {(status, len(body)) for status, _, body in answers} == {(200, 300_000)}
        if {replica for _, replica, _ in answers} <= wanted:
            return
        assert time.monotonic() < limit


@pytest.mark.parametrize(
    ("policy", "meant"),
    [
        ("tied", Tied(stagger=0.009, backup=Backup(budget=0.2))),
        ("auto", Auto(Backup(budget=0.2))),
        ("hedged", Hedged(Backup(since="send", budget=0.2))),
        ("plain", Plain()),
    ],
)
def test_the_budget_is_every_policy_s(policy: str, meant: Policy) -> None:
    @front_options
    def found(**options: Any) -> int:
        assert _front_options(options).policy == meant
        return 0

    told = CliRunner().invoke(click.command()(found), ["--policy", policy, "--budget", "20", "--stagger", "9ms"])
    assert told.exit_code == 0, told.exception


@pytest.mark.system
def test_a_static_file_server_with_tls_between_front_and_sidecars(run: Run, tmp_path: Path) -> None:
    authority = trustme.CA()
    certificate = authority.issue_cert("127.0.0.1")
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    certificate.cert_chain_pems[0].write_to_path(str(tmp_path / "cert.pem"))
    certificate.private_key_pem.write_to_path(str(tmp_path / "key.pem"))
    (tmp_path / "token").write_text("secret")
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "large.bin").write_bytes(b"x" * 300_000)
    ports, mesh = [free_port() for _ in "ab"], [free_port() for _ in "ab"]
    urls = [f"wss://127.0.0.1:{port}" for port in mesh]
    files = [
        run("-m", "http.server", str(port), "--bind", "127.0.0.1", "--directory", "site", "--protocol", "HTTP/1.1")
        for port in ports
    ]
    shared = ("--token-file", "token", "--tls-ca", "ca.pem")
    sidecars = [
        run(
            *("-m", "tiedreq", "proxy", "--upstream", f"http://127.0.0.1:{upstream}", "--name", name),
            *("--listen", f"127.0.0.1:{port}", "--peers", f"a={urls[0]},b={urls[1]}", *shared),
            *("--tls-cert", "cert.pem", "--tls-key", "key.pem"),
        )
        for name, upstream, port in zip("ab", ports, mesh, strict=True)
    ]
    assert [sidecar.line() for sidecar in sidecars] == [f"ready a {urls[0]}", f"ready b {urls[1]}"]
    front = run("-m", "tiedreq", "front", "--listen", "127.0.0.1:0", "--replicas", ",".join(urls), *shared)
    port = int(front.line().rpartition(":")[2])
    answered_by(port, {"a", "b"})
    assert ask(port, "GET", "/none")[0] == 404 and ask(port, "HEAD", "/large.bin")[2] == b""
    status, replica, _ = ask(port, "PUT", "/large.bin", iter([b"x" * 65536] * 64))
    assert status == 501 and replica in ("a", "b"), "the server's own answer to a long body, which passes once"

    files[0].signal(signal.SIGKILL)
    answered_by(port, {"b"})
    for child in (front, *sidecars):
        child.signal(signal.SIGTERM)
    assert [child.wait() for child in (front, *sidecars)] == [0, 0, 0], front.stderr
