"""The transport in threads: real time and real sockets, no assertion on how long anything takes."""

from __future__ import annotations

import signal
import socket
import threading
import time

import httpx
import pytest

from tests.httpx_hedge._backend import hedging
from tests.httpx_hedge._server import OK, PATIENCE, SOON, Server, first_hangs, wait_until
from tiedreq.httpx.workers import Workers


def client_of(transport: httpx.BaseTransport) -> httpx.Client:
    return httpx.Client(transport=transport, timeout=None)


def test_a_backup_answers_and_the_losers_connection_is_closed(serve) -> None:
    server = serve(first_hangs)
    transport = hedging(None, SOON)
    with client_of(transport) as client:
        response = client.get(server.url)
        assert response.content == b"ok"
        assert [copy["kind"] for copy in response.extensions["tiedreq"]] == ["first", "backup"]
        # While the client goes on: the loser waits for no timeout.
        wait_until(lambda: server.closed_by_client == 1)
        wait_until(lambda: transport._workers.idle == len(transport._workers))
        assert client.get(server.url).content == b"ok"
    stats = transport.stats()[f"threads:{server.url}"]
    assert stats["backups_sent"] >= 1 and stats["answered"] == 2 and stats["in_flight"] == 0


def test_a_failure_does_not_win_while_another_copy_lives(serve) -> None:
    go = threading.Event()

    def answer(server: Server, number: int, connection: socket.socket) -> None:
        if number == 1:
            assert go.wait(PATIENCE)
            connection.sendall(OK)
        else:
            connection.sendall(b"HTTP/1.1 503 Busy\r\nContent-Length: 0\r\n\r\n")
            go.set()

    with client_of(hedging(None, SOON)) as client:
        assert client.get(serve(answer).url).status_code == 200


def test_the_winner_streams_on(serve) -> None:
    body = bytes(range(256)) * 400

    def answer(server: Server, number: int, connection: socket.socket) -> None:
        if number == 1:
            server.hang(connection)
            return
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body))
        for start in range(0, len(body), 10_000):
            time.sleep(0.001)
            connection.sendall(body[start : start + 10_000])

    with client_of(hedging(None, SOON)) as client, client.stream("GET", serve(answer).url) as response:
        assert b"".join(response.iter_raw()) == body


def test_posts_are_sent_once(serve) -> None:
    def answer(server: Server, number: int, connection: socket.socket) -> None:
        time.sleep(5 * SOON)
        connection.sendall(OK)

    server = serve(answer)
    with client_of(hedging(None, SOON)) as client:
        assert client.post(server.url).content == b"ok"
    assert server.requests == 1


def test_with_no_thread_free_the_call_runs_in_its_own(serve) -> None:
    server = serve(lambda server, number, connection: connection.sendall(OK))
    transport = hedging(None, SOON, threads_max=1)
    busy = threading.Event()
    transport._workers.run(lambda: assert_true(busy.wait(PATIENCE)))
    with client_of(transport) as client:
        assert client.get(server.url).content == b"ok"
        busy.set()
    assert len(transport._workers) <= 1


def assert_true(true: bool) -> None:
    assert true


def test_errors_reach_the_caller() -> None:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        url = f"http://127.0.0.1:{probe.getsockname()[1]}"
    with client_of(hedging(None, SOON)) as client, pytest.raises(httpx.ConnectError):
        client.get(url)


def test_what_accept_raises_reaches_the_caller(serve) -> None:
    server = serve(first_hangs)
    with client_of(hedging(None, SOON, accept=lambda response: 1 / 0)) as client:
        with pytest.raises(ZeroDivisionError):
            client.get(server.url)
        wait_until(lambda: server.closed_by_client == 1)


def test_ctrl_c_closes_everything(serve) -> None:
    def answer(server: Server, number: int, connection: socket.socket) -> None:
        if number == 2:
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
        server.hang(connection)

    server = serve(answer)
    transport = hedging(None, SOON)
    with client_of(transport) as client:
        with pytest.raises(KeyboardInterrupt):
            client.get(server.url)
        wait_until(lambda: server.closed_by_client == 2)
    assert transport.stats()[f"threads:{server.url}"]["cancelled"] == 1


def test_many_threads_share_a_transport(serve) -> None:
    def answer(server: Server, number: int, connection: socket.socket) -> None:
        if number % 5 == 0:
            server.hang(connection)
        else:
            connection.sendall(OK)

    server = serve(answer)
    transport = hedging(None, SOON, 8, threads_max=40)
    got: list[bytes] = []
    with client_of(transport) as client:

        def calls() -> None:
            for _ in range(10):
                got.append(client.get(server.url).content)

        threads = [threading.Thread(target=calls) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE)
    assert got == [b"ok"] * 80
    stats = transport.stats()[f"threads:{server.url}"]
    assert stats["answered"] == 80 and stats["in_flight"] == 0
    assert 80 <= server.requests <= stats["copies_sent"], "a loser may be stopped before anything of it has left"


def test_a_transport_of_ones_own_serves_threads() -> None:
    with client_of(hedging(httpx.MockTransport(lambda request: httpx.Response(200, text=request.url.path)))) as client:
        assert client.get("http://one/path").text == "/path"


def test_workers_are_bounded_and_end() -> None:
    workers, go, done = Workers(2), threading.Event(), []

    def work() -> None:
        go.wait(PATIENCE)
        done.append(1)

    assert workers.run(work) and workers.run(work) and not workers.run(work)
    go.set()
    wait_until(lambda: workers.idle == 2)
    assert workers.run(work) and len(workers) == 2
    workers.close()
    assert not workers.run(work)
    wait_until(lambda: len(workers) == 0)
    assert len(done) == 3
