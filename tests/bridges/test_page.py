"""docs/clients.md: every example runs as printed, in the order of the page.

The web frameworks are not there: stand-ins keep what is registered with them, and the tests call it.
"""

from __future__ import annotations

import ast
import asyncio
import inspect
import os
import re
import subprocess
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import tiedreq
import tiedreq.aio
from tests.bridges.bench import serving
from tiedreq.clusterfile import ClusterAddress, ReplicaAddress, write_cluster_file

PAGE = (Path(__file__).parents[2] / "docs" / "clients.md").read_text("utf-8")
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
ASYNCIO, FASTAPI, NOTEBOOK, THREADS, FLASK, POOL, CLUSTERS, CONFTEST, FIXTURES = BLOCKS

MYSEARCH = re.findall(r"```python\n(.*?)```", (Path(__file__).parents[2] / "README.md").read_text("utf-8"), re.DOTALL)[
    1
]


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The service of the README over sockets, where ``connect()`` finds it."""
    module: dict[str, Any] = {}
    exec(MYSEARCH, module)
    with serving(module["service"]) as urls:
        replicas = tuple(ReplicaAddress(url, f"r{number}") for number, url in enumerate(urls))
        write_cluster_file(tmp_path / "cluster.json", ClusterAddress(replicas, "tiedreq", None, "", os.getpid()))
        monkeypatch.setenv("TIEDREQ_CLUSTER", str(tmp_path / "cluster.json"))
        yield


def run(block: str) -> dict[str, Any]:
    """The names that a block leaves."""
    names: dict[str, Any] = {"__name__": "__main__"}
    code = compile(block, "docs/clients.md", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    made = types.FunctionType(code, names)()
    if asyncio.iscoroutine(made):
        asyncio.run(made)
    return names


@pytest.mark.usefixtures("cluster")
class TestExamples:
    def test_asyncio(self, capsys: pytest.CaptureFixture[str]) -> None:
        run(ASYNCIO)
        one, several = (ast.literal_eval(line) for line in capsys.readouterr().out.splitlines()[:2])
        assert one["key"] == "k1" and [each["key"] for each in several] == ["k2", "k3", "k4"]

    def test_notebook(self) -> None:
        left = run(NOTEBOOK)
        assert left["answer"]["key"] == "k1" and left["reply"].value["key"] == "k2"

    def test_threads(self, capsys: pytest.CaptureFixture[str]) -> None:
        run(THREADS)
        assert re.search(r"'key': 'k1'.*\nanswered by r\d in \d+\.\d ms\n", capsys.readouterr().out)

    def test_pool(self) -> None:
        assert [answer["key"] for answer in run(POOL)["answers"]] == [f"k{number}" for number in range(100)]

    def test_fastapi(self, monkeypatch: pytest.MonkeyPatch) -> None:
        framework(monkeypatch, "fastapi", "FastAPI", HTTPException=Refused)
        left = run(FASTAPI)
        lookup = left["app"].routes["/lookup/{key}"]

        async def serve() -> None:
            async with left["app"].options["lifespan"](left["app"]):
                assert (await lookup("k9"))["key"] == "k9"
                await left["app"].state.tied.aclose()
                with pytest.raises(tiedreq.BadOption):
                    await lookup("k9")

        asyncio.run(serve())

    def test_in_a_web_application_on_asyncio(self) -> None:
        pytest.importorskip("starlette")
        httpx = pytest.importorskip("httpx")
        from starlette.applications import Starlette
        from starlette.requests import Request
        from starlette.responses import JSONResponse
        from starlette.routing import Route

        async def lookup(request: Request) -> JSONResponse:
            client = request.app.state.tied
            return JSONResponse(await client.tied_call("lookup", {"key": request.path_params["key"]}))

        async def requests() -> None:
            app = Starlette(routes=[Route("/lookup/{key}", lookup)])
            transport = httpx.ASGITransport(app=app)
            async with (
                tiedreq.aio.connect() as app.state.tied,
                httpx.AsyncClient(transport=transport, base_url="http://app") as browser,
            ):
                answers = await asyncio.gather(*(browser.get(f"/lookup/k{number}") for number in range(20)))
                assert [answer.json()["key"] for answer in answers] == [f"k{number}" for number in range(20)]

        asyncio.run(requests())

    def test_flask(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def abort(status: int) -> None:
            raise Refused(status)

        framework(monkeypatch, "flask", "Flask", abort=abort)
        left = run(FLASK)
        lookup = left["app"].routes["/lookup/<key>"]
        assert lookup("k9")["key"] == "k9"
        left["tied"].close()


def test_flask_without_replicas(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def abort(status: int) -> None:
        raise Refused(status)

    monkeypatch.setenv("TIEDREQ_CLUSTER", str(tmp_path / "none.json"))
    framework(monkeypatch, "flask", "Flask", abort=abort)
    left = run(FLASK)
    with pytest.raises(Refused) as refused:
        left["app"].routes["/lookup/<key>"]("k9")
    assert refused.value.status == 503


class Refused(Exception):
    """What a framework raises to answer with a status."""

    def __init__(self, status: int, headers: dict[str, str] | None = None) -> None:
        self.status = status


class App:
    """Keeps its options and the routes that are registered."""

    def __init__(self, *names: str, **options: Any) -> None:
        self.options = options
        self.routes: dict[str, Callable[..., Any]] = {}
        self.state = types.SimpleNamespace()

    def get(self, path: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        return lambda handler: self.routes.setdefault(path, handler)


def framework(monkeypatch: pytest.MonkeyPatch, name: str, app: str, **others: Any) -> None:
    module = types.ModuleType(name)
    vars(module).update({app: App, **others})
    monkeypatch.setitem(sys.modules, name, module)


@pytest.mark.system
def test_the_tests_of_ones_own_run_as_printed(tmp_path: Path) -> None:
    (tmp_path / "mysearch.py").write_text(MYSEARCH)
    (tmp_path / "conftest.py").write_text(CONFTEST + "\n\n" + RUNS_COROUTINES)
    (tmp_path / "test_clusters.py").write_text(CLUSTERS)
    (tmp_path / "test_fixtures.py").write_text(FIXTURES)
    (tmp_path / "pytest.ini").write_text("[pytest]\nfilterwarnings = error\n")
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:trio"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert ran.returncode == 0, ran.stdout
    assert "4 passed" in ran.stdout


# In the place of a plugin that runs coroutines on asyncio.
RUNS_COROUTINES = """
import asyncio
import inspect


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem):
    if inspect.iscoroutinefunction(pyfuncitem.obj):
        asyncio.run(pyfuncitem.obj())
        return True
"""


def test_every_name_is_in_all_three_clients() -> None:
    from tiedreq import aio, blocking

    trio_names = {name for name in vars(tiedreq.Client) if not name.startswith("_")}
    assert re.search(r"the same names \(([^)]*)\)", PAGE.replace("\n", " "))
    promised = re.findall(r"`(\w+)`", re.search(r"the same names \(([^)]*)\)", PAGE.replace("\n", " "))[1])  # type: ignore[index]
    for name in promised:
        assert name in trio_names and hasattr(aio.Client, name) and hasattr(blocking.Client, name)


def test_connecting_takes_the_same_options() -> None:
    from tiedreq import aio, blocking

    on_trio = dict(inspect.signature(tiedreq.connect).parameters)
    del on_trio["network"]  # for tests of tiedreq itself
    assert dict(inspect.signature(aio.connect).parameters) == on_trio
    assert dict(inspect.signature(blocking.connect).parameters) == on_trio


def test_a_request_takes_the_same_options() -> None:
    from tiedreq import aio, blocking

    on_trio = inspect.signature(tiedreq.Client.request).parameters
    assert inspect.signature(aio.Client.request).parameters == on_trio
    assert inspect.signature(blocking.Client.request).parameters == on_trio


@pytest.mark.system
def test_the_names_are_there_without_an_import_of_their_own() -> None:
    script = (
        "import sys, tiedreq; assert 'asyncio' not in sys.modules; "
        "print(tiedreq.aio.connect, tiedreq.blocking.connect, tiedreq.testing.LocalCluster); tiedreq.nothing"
    )
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert ran.stdout.count("connect") == 2
    assert ran.stderr.rstrip().endswith("AttributeError: module 'tiedreq' has no attribute 'nothing'")
