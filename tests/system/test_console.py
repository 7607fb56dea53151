"""The console command as real processes: replicas on hosts of one's own, with TLS, and talk to them."""

from __future__ import annotations

import json
import signal
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import trustme

from tests.cluster._launcher import Child, eventually, write_app

pytestmark = pytest.mark.system

Run = Callable[..., Child]

APP = """
    import time, trio, tiedreq
    service = tiedreq.Service("app")

    @service.method(idempotent=True)
    async def lookup(ctx, args):
        open("running", "w").close()
        await trio.sleep((args or {}).get("sleep", 0))
        return {"args": args, "replica": ctx.replica}

    @service.method()
    def block(ctx, args):
        open("running", "w").close()
        time.sleep(args["sleep"])

    @service.method()
    async def charge(ctx, args):
        return ctx.kind

    @service.method()
    async def fail(ctx, args):
        raise tiedreq.Failure("no_luck", "the dice\\nsay no", details={"dice": [1, 1]})

    @service.method()
    async def raw(ctx, args):
        return {"bytes": b"\\x00\\x01", 1: "one"}
"""


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    """Start `tiedreq` with these arguments."""
    write_app(tmp_path, APP)
    started: list[Child] = []

    def start(*arguments: str) -> Child:
        started.append(Child(["-m", "tiedreq", *arguments], tmp_path))
        return started[-1]

    yield start
    for child in started:
        child.end()


def serve(run: Run, name: str, *options: str) -> tuple[Child, str]:
    child = run("serve", "app:service", "--name", name, *options)
    ready, shown, url = child.line().split()
    assert (ready, shown) == ("ready", name)
    return child, url


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
        return port


def test_two_replicas_with_tls_and_a_token(run: Run, tmp_path: Path) -> None:
    authority = trustme.CA()
    certificate = authority.issue_cert("127.0.0.1")
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    certificate.cert_chain_pems[0].write_to_path(tmp_path / "cert.pem")
    certificate.private_key_pem.write_to_path(tmp_path / "key.pem")
    (tmp_path / "token").write_text("secret\n")
    port = free_port()
    secure = ["--tls-cert", "cert.pem", "--tls-key", "key.pem", "--tls-ca", "ca.pem", "--token-file", "token"]
    a, url_a = serve(run, "a", *secure, "--peers", f"b=wss://127.0.0.1:{port}", "--cluster", "prod")
    b, url_b = serve(run, "b", *secure, "--listen", f"127.0.0.1:{port}", "--peers", f"a={url_a}", "--cluster", "prod")
    assert url_a.startswith("wss://") and url_b == f"wss://127.0.0.1:{port}"

    where = ["--replicas", f"{url_a},{url_b}", "--cluster-name", "prod", "--tls-ca", "ca.pem"]

    def linked() -> bool:
        status = run("status", *where, "--token-file", "token", "--json")
        assert status.wait() == 0, status.stderr
        found = json.loads("\n".join(status.out))
        return sorted(found) == ["a", "b"] and all(found[x]["links"][y]["up"] for x, y in ("ab", "ba"))

    assert eventually(linked)
    called = run("call", "lookup", '{"key": "k"}', *where, "--token-file", "token", "--explain")
    assert called.wait() == 0, called.stderr
    assert json.loads("\n".join(called.out))["args"] == {"key": "k"}
    refused = run("call", "lookup", *where)
    assert refused.wait() == 1
    assert len(refused.error) == 1 and "AuthRefused" in refused.stderr
    assert [child.popen.terminate() or child.wait() for child in (a, b)] == [0, 0]


def test_calls(run: Run) -> None:
    _, url = serve(run, "a")
    where = ["--replicas", url]

    def call(*arguments: str) -> tuple[int, str, list[str]]:
        child = run("call", *arguments, *where)
        return child.wait(), "\n".join(child.out), child.error

    assert json.loads(call("lookup")[1]) == {"args": None, "replica": "a"}
    assert call("charge")[:2] == (0, '"first"')
    for policy in ("tied", "hedged", "plain"):
        assert call("lookup", "{}", "--policy", policy)[0] == 0
    code, out, error = call("charge", "--policy", "tied")
    assert (code, out, len(error)) == (2, "", 1) and "not declared idempotent" in error[0]
    assert "--policy plain" in error[0] and "client.call" not in error[0], "as the command line names it"
    code, out, error = call("fail")
    assert (code, out) == (1, "")
    assert error == [
        'tiedreq: RemoteFailure: no_luck: the dice say no (at a); details: {"dice": [1, 1]}',
    ]
    code, out, error = call("lookup", '{"sleep": 10}', "--timeout", "300ms", "--explain")
    assert (code, out) == (1, "") and error[-1].startswith("tiedreq: DeadlineExceeded: ")
    assert any(line.startswith("a ") for line in error), "the story of a call that failed"
    assert json.loads(call("raw")[1]) == {"bytes": "AAE=", "1": "one"}
    code, _, error = call("nothing")
    assert code == 2 and "nothing" in error[-1] and "lookup" in error[-1]


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["call", "lookup", "{"], "Expecting"),
        (["call", "lookup", "--timeout", "2"], "has no unit"),
        (["call", "lookup", "--timeout", "0ms"], "without time"),
        (["status", "--timeout", "0"], "without time"),
        (["call", "lookup", "--cluster", "x.json", "--replicas", "ws://a:1"], "name one"),
        (["call", "lookup", "--replicas", "a:1"], "no address"),
        (["call", "lookup", "--replicas", "http://a:1"], "ws://"),
        (["call", "lookup", "--policy", "plain", "--backup-after", "1ms"], "sends no backups"),
        (["call", "lookup", "--policy", "all"], "all"),
        (["status", "--token-file", "app.py", "--replicas", ""], "no address"),
        (["serve", "app:service"], "--name"),
        (["serve", "app:service", "--name", "a b"], "white space"),
        (["serve", "app:service", "--name", "a,b"], "white space"),
        (["serve", "app", "--name", "a"], "MODULE:SERVICE"),
        (["serve", "app:nothing", "--name", "a"], "its services: service"),
        (["serve", "nothing:service", "--name", "a"], "ModuleNotFoundError: No module named 'nothing'"),
        (["serve", "app:service", "--name", "a", "--peers", "b"], "NAME=URL"),
        (["serve", "app:service", "--name", "a", "--listen", "7000"], "host:port"),
        (["serve", "app:service", "--name", "a", "--tls-cert", "app.py"], "--tls-key"),
        (["serve", "app:service", "--name", "a", "--tls-cert", "app.py", "--tls-key", "app.py"], "can't be used"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_bad_usage(run: Run, arguments: list[str], why: str) -> None:
    child = run(*arguments)
    assert child.wait() == 2
    assert child.out == [] and why in child.stderr
    assert "Traceback" not in child.stderr


def test_no_cluster(run: Run, tmp_path: Path) -> None:
    for arguments in (["status"], ["call", "lookup"], ["call", "lookup", "--cluster", "none.json"]):
        child = run(*arguments)
        assert child.wait() == 1
        assert len(child.error) == 1 and "ConnectError" in child.stderr
    nobody = run("status", "--replicas", f"ws://127.0.0.1:{free_port()}", "--timeout", "500ms")
    assert nobody.wait() == 1 and len(nobody.error) == 1


def test_an_import_error_shows_its_own_traceback(run: Run, tmp_path: Path) -> None:
    write_app(tmp_path, "def broken():\n    1 / 0\nbroken()\n", "broken.py")
    child = run("serve", "broken:service", "--name", "a")
    assert child.wait() == 2
    assert "ZeroDivisionError" in child.stderr and "broken.py" in child.stderr
    assert "importlib" not in child.stderr and "loading.py" not in child.stderr


@pytest.mark.parametrize(
    ("listen", "token", "warned"),
    [("0.0.0.0:0", False, True), ("0.0.0.0:0", True, False), ("127.0.0.1:0", False, False), ("[::1]:0", False, False)],
)
def test_a_replica_that_anybody_may_call(run: Run, tmp_path: Path, listen: str, token: bool, warned: bool) -> None:
    (tmp_path / "token").write_text("secret")
    child, _ = serve(run, "a", "--listen", listen, *(["--token-file", "token"] if token else []))
    child.signal(signal.SIGTERM)
    assert child.wait() == 0
    assert ("whoever reaches" in child.stderr) == warned


def test_a_taken_port(run: Run) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        listen = f"127.0.0.1:{taken.getsockname()[1]}"
        child = run("serve", "app:service", "--name", "a", "--listen", listen)
        assert child.wait() == 1
    assert child.error == [f"tiedreq: can't listen at {listen}: address already in use"]


@pytest.mark.parametrize("option", ["--listen", "--metrics"])
def test_a_host_that_nobody_knows(run: Run, option: str) -> None:
    child = run("serve", "app:service", "--name", "a", option, "nowhere.invalid:7000")
    assert child.wait() == 1
    (line,) = child.error
    assert line.startswith("tiedreq: can't listen at nowhere.invalid:7000: ") and "name" in line.rpartition(": ")[2]


def test_a_lifespan_that_fails(run: Run, tmp_path: Path) -> None:
    write_app(
        tmp_path,
        """
        import contextlib, tiedreq

        @contextlib.asynccontextmanager
        async def lifespan():
            raise RuntimeError("no database")
            yield

        service = tiedreq.Service("app", lifespan=lifespan)
        """,
        "late.py",
    )
    child = run("serve", "late:service", "--name", "a")
    assert child.wait() == 1
    assert "RuntimeError: no database" in child.stderr and "late.py" in child.stderr


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_drains(run: Run, tmp_path: Path, number: int) -> None:
    replica, url = serve(run, "a")
    call = run("call", "lookup", '{"sleep": 1.5}', "--replicas", url)
    assert eventually((tmp_path / "running").exists)
    replica.signal(number)
    assert call.wait() == 0, call.stderr
    assert replica.wait() == 0


def test_a_signal_with_the_ready_line(run: Run) -> None:
    for _ in range(5):
        replica, _ = serve(run, "a")
        replica.signal(signal.SIGTERM)
        assert replica.wait() == 0


def test_the_second_signal_ends_at_once(run: Run, tmp_path: Path) -> None:
    replica, url = serve(run, "a")
    run("call", "lookup", '{"sleep": 30}', "--replicas", url)
    assert eventually((tmp_path / "running").exists)
    replica.signal(signal.SIGTERM)
    time.sleep(0.5)
    assert replica.popen.poll() is None
    replica.signal(signal.SIGINT)
    assert replica.wait(5) == 130


def test_a_thread_that_goes_on_does_not_keep_it(run: Run, tmp_path: Path) -> None:
    replica, url = serve(run, "a", "--drain-timeout", "500ms")
    run("call", "block", '{"sleep": 30}', "--replicas", url)
    assert eventually((tmp_path / "running").exists)
    replica.signal(signal.SIGTERM)
    assert replica.wait(10) == 1


def test_help(run: Run) -> None:
    for command in ([], ["serve"], ["call"], ["status"]):
        child = run(*command, "--help")
        assert child.wait() == 0 and child.out[0].startswith("Usage: tiedreq")
