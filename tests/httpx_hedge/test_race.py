"""Who wins a race of HTTP requests, and what becomes of the others: on Trio and on asyncio, in virtual time."""

from __future__ import annotations

import anyio
import httpx
import pytest
import trio
import trio.testing

from tests.httpx_hedge._backend import DELAY, Act, Backend, hedging
from tests.httpx_hedge._loops import on_asyncio, on_trio
from tiedreq.core.policy import Backup, Hedged, Plain
from tiedreq.hedging.starting import LATER
from tiedreq.httpx import HedgedTransport

URL = "http://service/things"
SLOW = 10.0


@pytest.fixture(params=[on_trio, on_asyncio], ids=["trio", "asyncio"])
def run(request):
    return request.param


def fetch(run, backend, *, method="GET", options=None, **request):
    """The response to one request with its body, the seconds it took, and the transport."""

    async def main():
        transport = hedging(backend, **(options or {}))
        async with httpx.AsyncClient(transport=transport) as client:
            began = anyio.current_time()
            response = await client.request(method, URL, **request)
            took = anyio.current_time() - began
        assert backend.open == 0 and backend.running == 0
        return response, took, transport.stats()["http://service"]

    return run(main)


def test_a_quick_answer_is_sent_once(run) -> None:
    backend = Backend(Act(0.01))
    response, took, stats = fetch(run, backend)
    assert response.content == b"ok" and took == pytest.approx(0.01)
    assert len(backend.requests) == 1 and stats["copies_sent"] == 1


def test_a_backup_answers_for_a_slow_copy_which_is_closed(run) -> None:
    backend = Backend(Act(SLOW), Act(0.01, chunks=(b"from ", b"the backup")))
    response, took, stats = fetch(run, backend)
    assert response.content == b"from the backup" and took == pytest.approx(DELAY + 0.01)
    assert backend.cancelled == 1 and stats["backups_won"] == 1 and stats["in_flight"] == 0
    assert [copy["kind"] for copy in response.extensions["tiedreq"]] == ["first", "backup"]
    assert stats["hosts"]["http://service"]["outstanding"] == 0


def test_the_first_copy_may_still_win(run) -> None:
    backend = Backend(Act(DELAY + 0.02, chunks=(b"first",)), Act(SLOW))
    response, took, stats = fetch(run, backend)
    assert response.content == b"first" and took == pytest.approx(DELAY + 0.02)
    assert stats["backups_sent"] == 1 and stats["backups_won"] == 0 and backend.cancelled == 1


def test_headers_alone_do_not_win(run) -> None:
    backend = Backend(Act(0.0, body_wait=SLOW), Act(0.01, chunks=(b"", b"content")))
    response, took, _ = fetch(run, backend)
    assert response.content == b"content" and took == pytest.approx(DELAY + 0.01)


def test_an_empty_chunk_does_not_win(run) -> None:
    backend = Backend(Act(0.0, chunks=(b"", b"late"), gap=SLOW), Act(0.01, chunks=(b"", b"content")))
    response, took, _ = fetch(run, backend)
    assert response.content == b"content" and took == pytest.approx(DELAY + 0.01)


def test_an_empty_body_wins(run) -> None:
    backend = Backend(Act(0.01, status=204, chunks=()))
    response, took, _ = fetch(run, backend, method="HEAD")
    assert response.status_code == 204 and took == pytest.approx(0.01)


@pytest.mark.parametrize("status", [408, 425, 429, 500, 502, 503, 504])
def test_a_failure_does_not_win_while_another_copy_lives(run, status) -> None:
    backend = Backend(Act(0.2), Act(0.0, status=status))
    response, took, _ = fetch(run, backend)
    assert response.status_code == 200 and took == pytest.approx(0.2)
    assert len(backend.requests) == 2


def test_a_failing_first_copy_waits_for_its_backup(run) -> None:
    backend = Backend(Act(DELAY + 0.01, status=503), Act(0.1))
    response, took, _ = fetch(run, backend)
    assert response.status_code == 200 and took == pytest.approx(DELAY + 0.1)


def test_an_exception_does_not_win_while_another_copy_lives(run) -> None:
    backend = Backend(Act(0.2), Act(0.0, error=lambda: httpx.ReadError("reset")))
    response, took, _ = fetch(run, backend)
    assert response.status_code == 200 and took == pytest.approx(0.2)


def test_a_body_that_breaks_before_its_first_byte_does_not_win(run) -> None:
    backend = Backend(Act(0.2), Act(0.0, breaks_after=0))
    response, _, _ = fetch(run, backend)
    assert response.content == b"ok"


def test_with_one_address_a_failure_is_handed_out_at_once(run) -> None:
    backend = Backend(Act(0.004, status=503, chunks=(b"too busy",)), Act(0.0))
    response, took, stats = fetch(run, backend)
    assert response.status_code == 503 and response.content == b"too busy"
    assert took == pytest.approx(0.004) and len(backend.requests) == 1 and stats["failed"] == 1


def test_when_all_fail_the_first_failure_is_handed_out_and_the_others_closed(run) -> None:
    backend = Backend(Act(0.2, status=500, chunks=(b"second",)), Act(0.0, status=503, chunks=(b"first",)))
    response, took, _ = fetch(run, backend)
    assert (response.status_code, response.content) == (503, b"first") and took == pytest.approx(0.2)


def test_errors_name_the_copies(run) -> None:
    backend = Backend(Act(0.2, error=lambda: httpx.ReadTimeout("slow")), Act(0.0, error=lambda: httpx.ReadError("cut")))
    with pytest.raises(httpx.ReadError, match="cut") as raised:
        fetch(run, backend)
    assert "first at http://service: failed, backup at http://service: failed" in raised.value.__notes__[0]


@pytest.mark.parametrize("status", [400, 401, 403, 422, 501])
def test_a_final_error_ends_the_race(run, status) -> None:
    backend = Backend(Act(SLOW), Act(0.0, status=status))
    response, took, _ = fetch(run, backend)
    assert response.status_code == status and took == pytest.approx(DELAY)


def test_accept_decides(run) -> None:
    def whole(response: httpx.Response) -> bool:
        return "x-partial" not in response.headers

    backend = Backend(Act(0.2), Act(0.0, headers={"x-partial": "1"}))
    response, took, _ = fetch(run, backend, options={"accept": whole})
    assert "x-partial" not in response.headers and took == pytest.approx(0.2)


def test_what_accept_raises_reaches_the_caller_and_closes_all(run) -> None:
    backend = Backend(Act(SLOW), Act(0.0))
    with pytest.raises(ZeroDivisionError):
        fetch(run, backend, options={"accept": lambda response: 1 / 0})
    assert backend.open == 0 and backend.running == 0 and backend.cancelled == 1


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE"])
def test_other_methods_are_sent_once(run, method) -> None:
    backend = Backend(Act(0.5), Act(0.0))
    _, took, _ = fetch(run, backend, method=method)
    assert len(backend.requests) == 1 and took == pytest.approx(0.5)


def test_methods_and_single_requests_can_be_told(run) -> None:
    backend = Backend(Act(SLOW), Act(0.0))
    fetch(run, backend, method="POST", content=b"query", extensions={"tiedreq_hedge": True})
    assert [request.content for request in backend.requests if request.read()] == [b"query", b"query"]
    backend = Backend(Act(SLOW), Act(0.0))
    fetch(run, backend, method="PUT", options={"methods": ("get", "put")})
    assert len(backend.requests) == 2
    backend = Backend(Act(0.5), Act(0.0))
    fetch(run, backend, extensions={"tiedreq_hedge": False})
    assert len(backend.requests) == 1


def test_a_body_that_can_be_sent_only_once_is(run) -> None:
    async def parts():
        yield b"a"

    backend = Backend(Act(0.5), Act(0.0))
    fetch(run, backend, content=parts())
    assert len(backend.requests) == 1


def test_plain_sends_no_backups(run) -> None:
    backend = Backend(Act(0.5), Act(0.0))
    fetch(run, backend, options={"policy": Plain()})
    assert len(backend.requests) == 1


def test_observe_only_counts_and_sends_nothing(run) -> None:
    backend = Backend(Act(0.5), Act(0.0))
    policy = Hedged(Backup(after=DELAY, budget=None), observe_only=True)
    _, took, stats = fetch(run, backend, options={"policy": policy})
    assert len(backend.requests) == 1 and took == pytest.approx(0.5) and stats["backups_observed"] == 2


def test_a_second_backup_follows_where_it_may(run) -> None:
    backend = Backend(Act(SLOW), Act(SLOW), Act(0.01, chunks=(b"third",)))
    response, took, _ = fetch(run, backend, options={"max_per_call": 2})
    assert response.content == b"third" and backend.cancelled == 2
    assert took == pytest.approx((1 + LATER) * DELAY + 0.01)


def test_a_loser_that_is_slow_to_close_is_given_up(run) -> None:
    backend = Backend(Act(0.0, body_wait=SLOW, close_wait=100.0), Act(0.01))
    _, took, _ = fetch(run, backend)
    assert took < 3.0


# ---- the winner's body ----------------------------------------------------------------------------------------


def test_the_winner_streams_on_after_the_race(run) -> None:
    chunks = [bytes([number]) * 1000 for number in range(200)]
    backend = Backend(Act(SLOW), Act(0.01, chunks=chunks, gap=0.001))

    async def main():
        async with (
            httpx.AsyncClient(transport=hedging(backend)) as client,
            client.stream("GET", URL) as response,
        ):
            assert backend.running == 0 and backend.chunks == 1, "the loser is gone, the body was not read ahead"
            return b"".join([chunk async for chunk in response.aiter_raw()])

    assert run(main) == b"".join(chunks)
    assert backend.open == 0


def test_a_body_that_is_not_read_is_closed(run) -> None:
    backend = Backend(Act(0.01, chunks=[b"x"] * 1000, gap=0.001))

    async def main():
        async with httpx.AsyncClient(transport=hedging(backend)) as client:
            async with client.stream("GET", URL) as response:
                assert response.status_code == 200
            assert backend.open == 0 and backend.chunks == 1

    run(main)


def test_a_body_that_breaks_later_is_the_callers_to_see(run) -> None:
    backend = Backend(Act(0.01, chunks=[b"a", b"b"], breaks_after=1))
    with pytest.raises(httpx.ReadError):
        fetch(run, backend)
    assert backend.open == 0


# ---- the caller leaves ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("after", [0.0, 0.01, DELAY, DELAY + 0.005, DELAY + 0.015, DELAY + 0.03])
def test_a_caller_that_leaves_closes_everything(run, after) -> None:
    backend = Backend(Act(0.03, body_wait=SLOW), Act(0.01, body_wait=SLOW))

    async def main():
        transport = hedging(backend)
        async with httpx.AsyncClient(transport=transport) as client:
            with anyio.move_on_after(after) as scope:
                await client.get(URL)
            assert scope.cancelled_caught and backend.open == 0 and backend.running == 0
            await anyio.sleep(SLOW)
            for stats in transport.stats().values():
                assert stats["in_flight"] == 0 and stats["hosts"]["http://service"]["outstanding"] == 0
            assert len(backend.requests) <= 2

    run(main)


def test_no_tasks_are_left_after_many_calls_that_were_left(run) -> None:
    backend = Backend(Act(0.03, body_wait=0.05))

    async def main():
        transport = hedging(backend)
        async with httpx.AsyncClient(transport=transport, limits=httpx.Limits(max_connections=None)) as client:

            async def leave(after: float) -> None:
                with anyio.move_on_after(after):
                    await client.get(URL)

            async with anyio.create_task_group() as group:
                for number in range(120):
                    group.start_soon(leave, number * 0.00125)
        assert backend.open == 0 and backend.running == 0
        assert transport.stats()["http://service"]["in_flight"] == 0

    run(main)


class TwoAtOnce(httpx.AsyncBaseTransport):
    """Waits in two tasks of Trio, as one that connects to two addresses does; the second request is answered."""

    requests = 0

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        self.requests += 1
        if self.requests == 1:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(trio.sleep, SLOW)
                nursery.start_soon(trio.sleep, SLOW)
        return httpx.Response(200, stream=httpx.ByteStream(b"ok"))


def test_a_copy_that_is_stopped_in_a_nursery_of_its_transport_cancels_nobody_else() -> None:
    async def main() -> None:
        transport = HedgedTransport(TwoAtOnce(), policy=Hedged(Backup(after=DELAY, since="send", budget=1.0)))
        async with httpx.AsyncClient(transport=transport) as client:
            began = trio.current_time()
            assert (await client.get(URL)).content == b"ok"
            assert trio.current_time() - began == pytest.approx(DELAY)

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
