"""Mutual TLS as an operator sets it up: by options of the console command."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import trustme

from tests.cluster._launcher import Child, write_app
from tiedreq.cli import main

pytestmark = pytest.mark.system

Run = Callable[..., Child]


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    write_app(tmp_path)
    started: list[Child] = []

    def start(*arguments: str) -> Child:
        started.append(Child(["-m", "tiedreq", *arguments], tmp_path))
        return started[-1]

    yield start
    for child in started:
        child.end()


def write_certificates(folder: Path) -> None:
    """``ca.pem``; ``cert.pem`` and ``key.pem`` of it for 127.0.0.1, which also stand for a client here."""
    authority = trustme.CA()
    certificate = authority.issue_cert("127.0.0.1")
    authority.cert_pem.write_to_path(folder / "ca.pem")
    certificate.cert_chain_pems[0].write_to_path(folder / "cert.pem")
    certificate.private_key_pem.write_to_path(folder / "key.pem")


def test_mutual_tls_from_the_command_line(run: Run, tmp_path: Path) -> None:
    """Two replicas link, a client with a certificate calls, one without it gets one line."""
    write_certificates(tmp_path)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    own = ["--tls-cert", "cert.pem", "--tls-key", "key.pem", "--tls-ca", "ca.pem"]
    both = ["serve", "app:service", *own, "--tls-clients", "ca.pem", "--listen"]
    a = run(*both, "127.0.0.1:0", "--name", "a", "--peers", f"b=wss://127.0.0.1:{port}")
    url = a.line().split()[-1]
    b = run(*both, f"127.0.0.1:{port}", "--name", "b", "--peers", f"a={url}")
    b.line()
    where = ["--replicas", f"{url},wss://127.0.0.1:{port}"]
    call = run("call", "lookup", "{}", "--policy", "tied", *where, *own)
    assert call.wait() == 0, call.stderr
    (tmp_path / "other").mkdir()
    write_certificates(tmp_path / "other")
    others = ["--tls-cert", "other/cert.pem", "--tls-key", "other/key.pem"]
    refused = {
        "asks for a client's certificate": ["--tls-ca", "ca.pem"],
        "does not trust the certificate that it was shown": ["--tls-ca", "ca.pem", *others],
        "its certificate is not trusted": [],  # the system's authorities don't know ours
    }
    for why, options in refused.items():
        began = time.monotonic()
        one = run("call", "lookup", "{}", "--timeout", "1h", *where, *options)
        assert one.wait() == 1 and time.monotonic() - began < 60, "it is told at once"
        assert len(one.error) == 1 and "AuthRefused" in one.stderr and why in one.stderr, one.stderr
    for child in (a, b):
        child.popen.terminate()
    assert [child.wait() for child in (a, b)] == [0, 0]


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["status", "--replicas", "wss://a:1", "--tls-cert", "cert.pem"], "go together"),
        (["serve", "app:service", "--name", "c", "--tls-clients", "ca.pem"], "--tls-clients goes with"),
        (["serve", "app:service", "--name", "c", "--tls-cert", "cert.pem"], "go together"),
        (
            ["serve", "x:y", "--name", "c", "--tls-cert", "cert.pem", "--tls-key", "key.pem", "--tls-clients", "no"],
            "no",
        ),
    ],
)
def test_half_of_what_it_takes(
    arguments: list[str],
    why: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    write_certificates(tmp_path)
    (tmp_path / "no").write_text("no certificate")
    monkeypatch.chdir(tmp_path)
    assert main(arguments) == 2
    assert why in capsys.readouterr().err
