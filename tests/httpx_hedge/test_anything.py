"""Whatever the hosts do and whenever the caller leaves: one outcome, nothing left open, counters that add up."""

from __future__ import annotations

import ast
import random
import sys

import anyio
import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.httpx_hedge._backend import DELAY, Act, Backend, hedging
from tests.httpx_hedge._loops import on_asyncio, on_trio
from tests.tidy._tree import ROOT, modules

TIMES = st.sampled_from([0.0, DELAY / 2, DELAY, 1.5 * DELAY, 2.5 * DELAY, 10.0])
ERRORS = st.sampled_from([httpx.ReadError, httpx.ConnectError, httpx.ReadTimeout, httpx.RemoteProtocolError])
ACTS = st.builds(
    Act,
    wait=TIMES,
    status=st.sampled_from([200, 200, 200, 204, 404, 429, 500, 503, 401]),
    chunks=st.sampled_from([(), (b"a",), (b"", b"a", b"b")]),
    body_wait=TIMES,
    gap=TIMES,
    headers=st.sampled_from([{}, {}, {"retry-after": "1"}]),
    error=st.one_of(st.none(), st.none(), ERRORS.map(lambda kind: lambda: kind("as told"))),
    breaks_after=st.sampled_from([None, None, 0, 1]),
    close_wait=st.sampled_from([0.0, 0.0, DELAY]),
)
CALLS = st.tuples(st.sampled_from(["GET", "HEAD", "POST"]), st.sampled_from(["http://one/x", "http://many/x"]), TIMES)


async def play(acts: list[Act], calls: list[tuple[str, str, float]], backups: int, seed: int) -> list[str]:
    """How the calls ended. What is left open is asserted to be nothing."""
    backend = Backend(*acts)
    hosts = {"http://many": [f"http://{name}" for name in "abc"]}
    transport = hedging(backend, max_per_call=backups, hosts=hosts, rng=random.Random(seed))
    ends: list[str] = []

    async def call(client: httpx.AsyncClient, method: str, url: str, patience: float) -> None:
        end = "left"
        with anyio.move_on_after(patience):
            try:
                response = await client.request(method, url)
            except httpx.TransportError:
                end = "error"
            else:
                end = "answer"
                assert response.is_closed
        ends.append(end)

    async with httpx.AsyncClient(transport=transport) as client, anyio.create_task_group() as group:
        for method, url, patience in calls:
            group.start_soon(call, client, method, url, patience)
            await anyio.sleep(DELAY / 4)
    assert backend.open == 0 and backend.running == 0
    copies = 0
    for stats in transport.stats().values():
        assert stats["calls"] == stats["answered"] + stats["failed"] + stats["cancelled"]
        assert stats["in_flight"] == 0
        assert all(host["outstanding"] == 0 for host in stats["hosts"].values())
        copies += stats["copies_sent"]
    assert len(backend.requests) <= copies
    lanes = [lane for service in transport._async_services._known.values() for lane in service.lanes]
    assert all(lane.view.load(1e9) == 0 for lane in lanes), "no copy is taken to be under way"
    posts = sum(1 for method, _, _ in calls if method == "POST")
    unsent = sum(1 for act in acts if act.error is not None and isinstance(act.error(), httpx.ConnectError))
    if not unsent:
        assert sum(1 for request in backend.requests if request.method == "POST") <= posts
    return ends


@given(
    run=st.sampled_from([on_trio, on_asyncio]),
    acts=st.lists(ACTS, min_size=1, max_size=8),
    calls=st.lists(CALLS, min_size=1, max_size=5),
    backups=st.integers(1, 3),
    seed=st.integers(0, 99),
)
def test_nothing_is_left_open(run, acts, calls, backups, seed) -> None:
    ends = run(lambda: play(list(acts), calls, backups, seed))
    assert len(ends) == len(calls)


def test_an_asgi_application_can_be_the_service() -> None:
    async def application(scope, receive, send):
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": scope["path"].encode()})

    async def main() -> bytes:
        async with httpx.AsyncClient(transport=hedging(httpx.ASGITransport(application))) as client:
            return (await client.get("http://one/path")).content

    assert on_trio(main) == on_asyncio(main) == b"/path"


@pytest.mark.parametrize("path", [path for path in modules("tiedreq") if path.parts[1] == "hedging"], ids=str)
def test_what_http_and_grpc_share_knows_neither_loops_nor_protocols(path) -> None:
    tree = ast.parse((ROOT / path).read_text())
    names = [node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    names += [alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names]
    for name in names:
        assert name.startswith(("tiedreq.core.", "tiedreq.hedging.")) or name.split(".")[0] in sys.stdlib_module_names
        assert name.split(".")[0] not in ("asyncio", "threading", "time", "socket")
