"""What only whole processes show: forks, Ctrl-C, and the end of the interpreter."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.bridges.bench import Journal, until

pytestmark = pytest.mark.system

ROOT = Path(__file__).parents[2]
HEADER = """
    import asyncio, os, sys, threading, time, warnings
    warnings.filterwarnings("ignore", "This process .* is multi-threaded", DeprecationWarning)
    import tiedreq.aio, tiedreq.blocking
    urls = sys.argv[1]
"""
START_SECONDS = 30.0
Run = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def start(urls: list[str]) -> Run:
    """Start a script that finds the replicas in ``urls``; warnings are errors in it."""

    def start(script: str) -> subprocess.Popen[str]:
        source = textwrap.dedent(HEADER) + textwrap.dedent(script)
        return subprocess.Popen(
            [sys.executable, "-W", "error", "-c", source, ",".join(urls)],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    return start


def ended(process: subprocess.Popen[str], code: int = 0) -> str:
    """What a script printed that ended with ``code``, and without another word."""
    out, error = told(process)
    assert process.returncode == code, error
    if code == 0:
        assert error == ""
    return out


def told(process: subprocess.Popen[str]) -> tuple[str, str]:
    """What a script printed on both streams by the time it ended."""
    try:
        return process.communicate(timeout=START_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        raise
    finally:
        with process:
            pass


def test_a_fork_leaves_both_with_a_working_client(start: Run) -> None:
    script = """
        client = tiedreq.blocking.connect(urls)
        other = tiedreq.aio.connect(urls)
        assert client.call("echo", "before") == "before"
        assert asyncio.run(other.call("echo", "before")) == "before"
        child = os.fork()
        name = "parent" if child else "child"
        for number in range(3):
            assert client.call("echo", [name, number]) == [name, number]
            assert asyncio.run(other.call("echo", number)) == number
        assert client.stats()["in_flight"] == 0
        if child:
            assert os.waitpid(child, 0)[1] == 0
        print(name, "ok", flush=True)
        client.close()
        asyncio.run(other.aclose())
    """
    assert ended(start(script)) == "child ok\nparent ok\n"


def test_workers_forked_in_the_middle_of_calls(start: Run) -> None:
    # As a web server does that loads the application before it forks its workers.
    script = """
        from concurrent.futures import ThreadPoolExecutor
        client = tiedreq.blocking.connect(urls)

        def work(number):
            return [client.call("echo", number + repeat) for repeat in range(20)]

        with ThreadPoolExecutor(4) as pool:
            busy = [pool.submit(work, 100 * number) for number in range(4)]
            children = []
            for worker in range(3):
                child = os.fork()
                if not child:
                    with ThreadPoolExecutor(4) as own:
                        for number, answers in enumerate(own.map(work, range(0, 400, 100))):
                            assert answers == list(range(100 * number, 100 * number + 20))
                    client.close()
                    os._exit(7)
                children.append(child)
            assert all(future.result()[0] == 100 * number for number, future in enumerate(busy))
        assert [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children] == [7, 7, 7]
        client.close()
        print("ok")
    """
    assert ended(start(script)) == "ok\n"


def test_multiprocessing(start: Run) -> None:
    script = """
        import multiprocessing
        client = tiedreq.blocking.connect(urls)
        client.call("echo")

        def work(number):
            return client.call("echo", number)

        with multiprocessing.get_context("fork").Pool(2) as pool:
            assert pool.map(work, range(10)) == list(range(10))
        client.close()
        print("ok")
    """
    assert ended(start(script)) == "ok\n"


def test_a_cluster_in_memory_does_not_follow_a_fork(start: Run) -> None:
    script = """
        import tiedreq
        from tiedreq.testing import BlockingCluster
        service = tiedreq.Service("s")

        @service.method()
        async def echo(ctx, args):
            return args

        with BlockingCluster(service, replicas=2) as client:
            assert client.call("echo", 1) == 1
            child = os.fork()
            if not child:
                try:
                    client.call("echo")
                except tiedreq.BadOption as error:
                    print(error, flush=True)
                os._exit(0)
            os.waitpid(child, 0)
            assert client.call("echo", 2) == 2
    """
    assert ended(start(script)) == "client: its replicas live in the process that forked this one\n"


@pytest.mark.parametrize(
    "rest",
    [
        "",
        "threading.Thread(target=client.call, args=('hang',), daemon=True).start(); time.sleep(0.1)",
        "sys.exit()",
        "import atexit; atexit.register(lambda: print(client.call('echo', 'late')))",
        "client.close(); client = tiedreq.blocking.connect(urls)",
    ],
    ids=["open", "in a call", "exit", "late call", "unused"],
)
def test_the_interpreter_ends_with_an_open_client(start: Run, journal: Journal, rest: str) -> None:
    script = f"""
        client = tiedreq.blocking.connect(urls)
        print(client.call("echo", "first"))
        threading.excepthook = lambda told: None
        {rest}
    """
    out = ended(start(script))
    assert out == ("first\nlate\n" if "late" in rest else "first\n")
    until(lambda: journal.running == 0)


def test_the_interpreter_ends_while_the_replicas_are_silent(start: Run, urls: list[str]) -> None:
    script = """
        import socket
        silent = socket.create_server(("127.0.0.1", 0))
        client = tiedreq.blocking.connect([f"ws://127.0.0.1:{silent.getsockname()[1]}"], timeout=60.0)
        threading.excepthook = lambda told: None
        threading.Thread(target=client.call, args=("echo",), daemon=True).start()
        while client._session is None:
            time.sleep(0.01)
        print(time.time(), flush=True)
    """
    began = float(ended(start(script)))
    assert time.time() - began < START_SECONDS / 2


BLOCKING = """
    with tiedreq.blocking.connect(urls) as client:
        client.call("echo")
        client.call("hang", timeout=60)
"""
ASYNCIO = """
    async def main():
        async with tiedreq.aio.connect(urls) as client:
            await client.call("echo")
            await client.call("hang", timeout=60)

    asyncio.run(main())
"""


@pytest.mark.parametrize("script", [BLOCKING, ASYNCIO], ids=["blocking", "asyncio"])
def test_ctrl_c_cancels_the_call_and_ends_the_process(start: Run, journal: Journal, script: str) -> None:
    process = start(script)
    until(lambda: journal.running >= 1)
    os.kill(process.pid, signal.SIGINT)
    until(lambda: journal.running == 0)
    error = told(process)[1]
    assert process.returncode == -signal.SIGINT and error.rstrip().endswith("KeyboardInterrupt"), error
