"""The blocking client over sockets: results, errors, threads, interruptions, closing."""

from __future__ import annotations

import contextvars
import gc
import signal
import socket
import threading
import traceback
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random

import pytest

import tiedreq
import tiedreq.blocking
from tests.bridges.bench import Journal, until
from tiedreq import Plain, Tied
from tiedreq.blocking import connect


def test_every_kind_of_call(urls: list[str]) -> None:
    with connect(urls) as client:
        assert client.call("echo", {"a": [1, 2.5, None]}) == {"a": [1, 2.5, None]}
        assert client.tied_call("echo", "tied") == "tied"
        assert client.hedged_call("echo", "hedged") == "hedged"
        reply = client.request("about", key="k", metadata={"m": "1"}, timeout=3.0, policy=Plain())
        assert isinstance(reply, tiedreq.Reply) and reply.attempts[0].replica == reply.replica
        assert reply.value["key"] == "k" and reply.value["metadata"] == {"m": "1"} and reply.value["kind"] == "first"
        assert 2.0 < reply.value["remaining"] <= 3.0
        assert client.stats()["in_flight"] == 0 and len(client.stats()["replicas"]) == len(urls)
        assert sorted(client.replica_status()) == ["r0", "r1", "r2"]


def test_bind_calls_the_method_of_that_name(urls: list[str]) -> None:
    def echo(ctx: object, args: object) -> object:
        """Says it again."""

    with connect(urls) as client:
        bound = client.bind(echo)
        assert bound([1], timeout=5.0) == [1] and bound.__name__ == "echo" and bound.__doc__ == "Says it again."
        with pytest.raises(tiedreq.BadOption, match="has no name"):
            client.bind(3)  # type: ignore[arg-type]


def test_errors_keep_their_type_and_show_the_caller(urls: list[str]) -> None:
    with connect(urls) as client:
        with pytest.raises(tiedreq.RemoteFailure, match="no_stock: none is left") as failed:
            client.call("fail")
        assert failed.value.details == {"left": 0} and failed.value.attempts[0].end == "failed"
        files = {Path(frame.filename).name for frame in traceback.extract_tb(failed.value.__traceback__)}
        assert {"test_blocking.py", "blocking.py", "opencall.py"} <= files, "from the caller to where it was raised"
        with pytest.raises(tiedreq.UnsafeToDuplicate, match="Nothing was sent"):
            client.tied_call("charge")
        with pytest.raises(tiedreq.UnknownMethod, match="Methods: about, charge"):
            client.call("nothing")
        with pytest.raises(tiedreq.DeadlineExceeded) as late:
            client.call("hang", timeout=0.02)
        assert isinstance(late.value, TimeoutError) and late.value.call_id
        with pytest.raises(tiedreq.BadOption, match="timeout"):
            client.call("echo", timeout=-1)
        with pytest.raises(TypeError, match="tiemout"):
            client.call("echo", tiemout=1)
        assert client.call("charge") == "charged"


def test_options_are_checked_before_anything_connects() -> None:
    for options in ({"timeout": "soon"}, {"policy": "tied"}, {"limits": 3}):
        with pytest.raises(tiedreq.BadOption):
            connect("ws://127.0.0.1:1", **options)  # type: ignore[arg-type]


def test_nobody_there_is_told_each_time() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        client = connect(f"ws://127.0.0.1:{taken.getsockname()[1]}", timeout=0.05)
        for _ in range(2):
            with pytest.raises(tiedreq.ConnectError, match="no replica could be reached"):
                client.call("echo")
        with pytest.raises(tiedreq.ConnectError), client:
            raise AssertionError("it is not connected")
        with pytest.raises(tiedreq.BadOption, match="closed"):
            client.call("echo")


def test_a_client_connects_when_it_is_first_used(urls: list[str]) -> None:
    client = connect(iter(urls))
    assert repr(client) == "<tiedreq.blocking.Client, not connected>"
    assert client.call("echo", 1) == 1
    assert repr(client) == "<tiedreq.blocking.Client, connected>"
    client.close()
    client.close()
    assert repr(client) == "<tiedreq.blocking.Client, closed>"


def test_use_after_close(urls: list[str]) -> None:
    with connect(urls) as client:
        client.call("echo")
    for use in (lambda: client.call("echo"), client.stats, client.__enter__):
        with pytest.raises(tiedreq.BadOption, match="client: it is closed"):
            use()


def test_closing_ends_open_calls_and_their_copies(urls: list[str], journal: Journal) -> None:
    client = connect(urls)
    with ThreadPoolExecutor(4) as pool:
        calls = [pool.submit(client.tied_call, "hang") for _ in range(4)]
        until(lambda: journal.running >= 4)
        client.close()
        assert {type(call.exception()) for call in calls} == {tiedreq.Unavailable}
    until(lambda: journal.running == 0)


def test_many_threads_at_once(urls: list[str]) -> None:
    threads, calls = 1000, 1
    answers: dict[int, list[int]] = {}
    together = threading.Barrier(threads)
    with connect(urls, timeout=60.0) as client:

        def work(number: int) -> None:
            together.wait()
            answers[number] = [client.call("echo", number + repeat) for repeat in range(calls)]

        crowd = [threading.Thread(target=work, args=(number,)) for number in range(threads)]
        for thread in crowd:
            thread.start()
        for thread in crowd:
            thread.join()
        assert client.stats()["in_flight"] == 0
    assert answers == {number: [number + repeat for repeat in range(calls)] for number in range(threads)}


def test_calls_in_flight_are_limited(urls: list[str], journal: Journal) -> None:
    with (
        ThreadPoolExecutor(3) as pool,
        connect(urls, limits=tiedreq.ClientLimits(calls_in_flight_max=3)) as client,
    ):
        calls = [pool.submit(client.call, "hang") for _ in range(3)]
        until(lambda: client.stats()["in_flight"] == 3)
        with pytest.raises(tiedreq.Overloaded, match="3 calls are in flight"):
            client.call("echo")
        client.close()
        assert all(isinstance(call.exception(), tiedreq.Unavailable) for call in calls)


class Stop(Exception):
    pass


@pytest.mark.parametrize("kind", [KeyboardInterrupt, Stop])
def test_what_interrupts_a_call_cancels_it(urls: list[str], journal: Journal, kind: type[BaseException]) -> None:
    def interrupt(number: int, frame: object) -> None:
        raise kind

    def watch() -> None:
        until(lambda: journal.running >= 1)
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR1)

    former = signal.signal(signal.SIGUSR1, interrupt)
    watcher = threading.Thread(target=watch)
    try:
        with connect(urls) as client:
            watcher.start()
            with pytest.raises(kind):
                client.call("hang")
            until(lambda: journal.running == 0)
            until(lambda: client.stats()["in_flight"] == 0)
            assert client.call("echo", "again") == "again"
    finally:
        watcher.join()
        signal.signal(signal.SIGUSR1, former)


def test_interrupted_at_any_moment_the_client_goes_on(urls: list[str], journal: Journal) -> None:
    inside = False

    def interrupt(number: int, frame: object) -> None:
        if inside:
            raise Stop

    moments = Random(7)
    interrupted = 0
    former = signal.signal(signal.SIGALRM, interrupt)
    try:
        with connect(urls, timeout=60.0) as client:
            for _ in range(150):
                signal.setitimer(signal.ITIMER_REAL, moments.uniform(1e-6, 1e-3))
                try:
                    inside = True
                    client.tied_call("nap", 0.0002)
                    inside = False
                except Stop:
                    interrupted += 1
                finally:
                    inside = False
                    signal.setitimer(signal.ITIMER_REAL, 0)
            assert client.call("echo", "again") == "again"
            until(lambda: client.stats()["in_flight"] == 0)
            assert client._session is not None and not client._session.errands
    finally:
        signal.signal(signal.SIGALRM, former)
    assert interrupted


def test_a_loop_that_fails_ends_its_calls_and_is_replaced(
    urls: list[str], journal: Journal, caplog: pytest.LogCaptureFixture
) -> None:
    def fail() -> None:
        raise LookupError("on purpose")

    with connect(urls) as client, ThreadPoolExecutor(2) as pool:
        calls = [pool.submit(client.call, "hang") for _ in range(2)]
        until(lambda: journal.running >= 2)
        assert client._session is not None
        client._session.loop.inbox.put(fail)
        assert [type(call.exception()) for call in calls] == [tiedreq.Unavailable] * 2
        loop = client._session.loop
        until(lambda: loop.ended)
        assert [record.message for record in caplog.records if record.levelname == "CRITICAL"] == [
            "the loop of the clients failed"
        ]
        assert client.call("echo", "again") == "again"
    until(lambda: journal.running == 0)


colour: contextvars.ContextVar[str] = contextvars.ContextVar("colour", default="none")


def test_accept_sees_the_callers_context_and_its_errors_come_out(urls: list[str]) -> None:
    seen = []

    def accept(value: object) -> bool:
        seen.append((colour.get(), threading.current_thread().name))
        return True

    def refuse(value: object) -> bool:
        raise LookupError("not that one")

    with connect(urls) as client:
        colour.set("red")
        client.call("echo", accept=accept)
        assert seen == [("red", "tiedreq")]
        with pytest.raises(LookupError, match="not that one"):
            client.call("echo", accept=refuse)
        with pytest.raises(tiedreq.BadOption, match="accept= must not make calls"):
            client.call("echo", accept=lambda value: client.call("echo"))
        assert client.tied_call("echo", 1, policy=Tied(backup=None)) == 1


def test_a_client_that_is_forgotten_is_closed(urls: list[str], journal: Journal) -> None:
    client = connect(urls)
    client.call("echo")
    session = client._session
    assert session is not None
    with pytest.warns(ResourceWarning, match="never closed"):
        del client
        until(lambda: gc.collect() >= 0 and session.over.done)


def test_a_client_can_not_be_pickled(urls: list[str]) -> None:
    import pickle

    with pytest.raises(TypeError, match="connect there"):
        pickle.dumps(connect(urls))
