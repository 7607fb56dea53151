"""Several hosts, push-back, budgets and what is learned: on Trio's virtual clock."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import anyio
import httpx
import pytest

from tests.httpx_hedge._backend import DELAY, Act, Backend, hedging
from tests.httpx_hedge._loops import on_trio
from tiedreq.core.errors import BadOption
from tiedreq.core.policy import Auto, Backup, Hedged, Tied
from tiedreq.httpx import HedgedTransport, HedgeEvent, ThrottleOptions, endpoint_of
from tiedreq.httpx.rules import Hosts, origin_of, pause_wanted

HOSTS = {"http://search": ["http://a:8000", "http://b:8000/base"]}
BACKUP = Backup(after=DELAY, budget=None, since="send")


def run(backend, calls, *, options=None, url="http://search/q?x=1", pause=0.0, **request):
    """The responses to so many requests, one after the other, and the transport's statistics."""

    async def main():
        transport = hedging(backend, **({"hosts": HOSTS} | (options or {})))
        responses = []
        async with httpx.AsyncClient(transport=transport) as client:
            for _ in range(calls):
                responses.append(await client.request(request.get("method", "GET"), url))
                await anyio.sleep(pause)
        assert backend.open == 0 and backend.running == 0
        return responses, transport.stats()

    return on_trio(main)


def test_a_backup_goes_to_another_host() -> None:
    backend = Backend(Act(0.2))
    run(backend, 20)
    pairs = [set(backend.hosts[n : n + 2]) for n in range(0, 40, 2)]
    assert pairs == [{"a", "b"}] * 20


def test_a_copy_has_the_url_and_the_host_header_of_its_host() -> None:
    backend = Backend(Act(0.2))
    run(backend, 1)
    urls = sorted((str(request.url), request.headers["Host"]) for request in backend.requests)
    assert urls == [("http://a:8000/q?x=1", "a:8000"), ("http://b:8000/base/q?x=1", "b:8000")]
    backend = Backend(Act(0.2))
    run(backend, 1, options={"keep_host": True})
    assert {request.headers["Host"] for request in backend.requests} == {"search"}


def test_a_failed_call_goes_to_another_host() -> None:
    bad, good = Act(0.001, status=503), Act(0.001)
    backend = Backend(hosts={"a": [bad], "b": [good]})
    responses, stats = run(backend, 30)
    assert {response.status_code for response in responses} == {200}
    assert 0 < stats["http://search"]["failovers"] <= 3, "a host that goes on failing is passed over for a while"


def test_a_host_that_answers_again_is_used_again() -> None:
    backend = Backend(hosts={"a": [*[Act(0.001, status=503)] * 3, Act(0.001)], "b": [Act(0.001)]})
    run(backend, 100, pause=0.1)
    assert backend.hosts.count("a") > 20


def test_it_is_tried_once_at_each_host() -> None:
    backend = Backend(Act(0.001, status=502))
    responses, _ = run(backend, 1)
    assert responses[0].status_code == 502 and sorted(backend.hosts) == ["a", "b"]
    backend = Backend(Act(0.001, status=502))
    run(backend, 1, options={"failovers": 0})
    assert len(backend.hosts) == 1


def test_a_post_is_tried_elsewhere_only_if_it_certainly_was_not_sent() -> None:
    def cut() -> Exception:
        return httpx.ReadError("cut")

    def refused() -> Exception:
        return httpx.ConnectError("refused")

    backend = Backend(Act(0.001, error=cut))
    with pytest.raises(httpx.ReadError):
        run(backend, 1, method="POST")
    assert len(backend.hosts) == 1
    backend = Backend(hosts={"a": [Act(error=refused)], "b": [Act()]})
    responses, _ = run(backend, 10, method="POST")
    assert {response.status_code for response in responses} == {200}
    assert backend.hosts.count("b") == 10
    assert backend.hosts.count("a") < 5, "a host that refuses connections is passed over for a while"


def test_a_host_that_fails_now_and_then_is_not_passed_over() -> None:
    now_and_then = [Act(0.001, status=503), Act(0.001, status=503), Act(0.001)]
    backend = Backend(hosts={"a": now_and_then * 100, "b": [Act(0.001)]})
    policy = Hedged(BACKUP)
    run(backend, 60, options={"policy": policy, "throttle": ThrottleOptions(1000, 0.1), "rng": random.Random(1)})
    assert backend.hosts.count("a") > 20


def test_a_pool_that_is_full_says_nothing_of_the_host() -> None:
    full = Act(error=lambda: httpx.PoolTimeout("full"))
    backend = Backend(hosts={"a": [full, Act()], "b": [Act()]})
    responses, _ = run(backend, 20)
    assert {response.status_code for response in responses} == {200} and backend.hosts.count("a") > 3


def test_retry_after_pushes_backups_back() -> None:
    refusal = Act(0.001, status=503, headers={"retry-after": "7"})
    backend = Backend(refusal, Act(0.2))

    async def main():
        transport = hedging(backend)
        async with httpx.AsyncClient(transport=transport) as client:
            began = anyio.current_time()
            assert (await client.get("http://one/x")).status_code == 503
            while anyio.current_time() < began + 6.5:
                await client.get("http://one/x")
            calls = len(backend.requests)
            assert transport.stats()["http://one"]["backups_sent"] == 0
            assert transport.stats()["http://one"]["backups_without_target"] == calls - 1
            assert 0 < transport.stats()["http://one"]["hosts"]["http://one"]["pushback"] < 7
            await anyio.sleep(1)
            await client.get("http://one/x")
            assert transport.stats()["http://one"]["backups_sent"] == 1

    on_trio(main)


def test_hosts_that_ask_for_a_pause_are_passed_over_and_not_tried_again() -> None:
    refusal = Act(0.001, status=429, headers={"retry-after": "30"})
    backend = Backend(hosts={"a": [refusal], "b": [Act(0.001)]})
    run(backend, 20)
    assert backend.hosts.count("a") <= 1
    backend = Backend(refusal)
    responses, _ = run(backend, 1, options={"failovers": 5})
    assert responses[0].status_code == 429 and sorted(backend.hosts) == ["a", "b"]


def test_a_pause_lasts_whatever_happens_at_other_hosts() -> None:
    refusal = Act(0.001, status=429, headers={"retry-after": "30"})
    broken = Act(0.001, error=lambda: httpx.ConnectError("refused"))
    backend = Backend(hosts={"a": [refusal], "b": [broken], "c": [Act(0.001)]})
    three = {"http://search": ["http://a", "http://b", "http://c"]}
    run(backend, 100, options={"hosts": three}, pause=0.2)
    assert backend.hosts.count("a") <= 1 < backend.hosts.count("b")


@pytest.mark.parametrize(
    ("status", "text", "wanted"),
    [
        (503, "120", 120.0),
        (429, " 3 ", 3.0),
        (503, "0", None),
        (503, "-1", None),
        (503, "soon", None),
        (503, "1.5", None),
        (503, "Wed, 21 Oct 2015 07:28:00 GMT", None),
        (503, "Wed, 21 Oct 2015 07:28:00", None),
        (500, "120", None),
        (503, None, None),
    ],
)
def test_retry_after_is_read_as_the_standard_says(status, text, wanted) -> None:
    assert pause_wanted(httpx.Response(status, headers={} if text is None else {"retry-after": text})) == wanted


def test_retry_after_may_be_a_date() -> None:
    text = format_datetime(datetime.now(UTC) + timedelta(seconds=90), usegmt=True)
    wanted = pause_wanted(httpx.Response(503, headers={"retry-after": text}))
    assert wanted is not None and 60 < wanted <= 90


# ---- budget, throttle and learning ----------------------------------------------------------------------------


def test_the_budget_bounds_extra_copies_when_everything_is_slow() -> None:
    backend = Backend(Act(0.2))
    policy = Hedged(Backup(after=DELAY, budget=0.05, since="send"))
    _, stats = run(backend, 200, options={"policy": policy})
    extra = len(backend.requests) - 200
    assert 0 < extra < 0.15 * 200, "5 %, and what the bucket holds at the start"
    assert stats["http://search"]["backups_denied"] > 100


def test_the_throttle_ends_further_tries_when_most_fail() -> None:
    backend = Backend(Act(0.001, status=500))
    _, stats = run(backend, 60, options={"throttle": ThrottleOptions(10, 0.1)})
    assert stats["http://search"]["throttle"]["open"] is False
    assert stats["http://search"]["failovers_denied"] > 50
    assert len(backend.requests) < 70


def test_a_delay_is_learned_for_each_endpoint_and_does_not_ratchet() -> None:
    law = random.Random(5)

    class Mixed(Backend):
        async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
            scale = 0.01 if request.url.path == "/quick" else 0.1
            self._acts = [Act(scale * (20.0 if law.random() < 0.05 else law.uniform(0.8, 1.2)))]
            return await super().handle_async_request(request)

    backend = Mixed(Act())
    seen: list[float] = []

    async def main():
        transport = HedgedTransport(backend, policy=Hedged(Backup(budget=0.1)), rng=random.Random(1))
        async with httpx.AsyncClient(transport=transport) as client:
            for number in range(900):
                await client.get(f"http://one/{'quick' if number % 2 else 'slow'}")
                if number >= 450 and number % 50 == 0:
                    endpoints = transport.stats()["http://one"]["endpoints"]
                    seen.append(endpoints["GET /quick"]["delay"])
                    assert 0.08 < endpoints["GET /slow"]["delay"] < 0.3

    on_trio(main)
    assert all(0.009 < delay < 0.02 for delay in seen), seen
    assert max(seen) < 1.5 * min(seen)


def test_endpoints_are_bounded() -> None:
    async def main():
        transport = hedging(Backend(Act()), endpoints_max=8, services_max=3)
        async with httpx.AsyncClient(transport=transport) as client:
            for number in range(40):
                await client.get(f"http://host{number % 5}/p", extensions={"tiedreq_endpoint": f"e{number}"})
                await client.get("http://one/p", extensions={"tiedreq_endpoint": f"e{number}"})
        stats = transport.stats()
        assert len(stats) == 3 and len(stats["http://one"]["endpoints"]) == 8

    on_trio(main)


@pytest.mark.parametrize(
    ("path", "endpoint"),
    [
        ("/users/17/orders/9f2c1", "GET /users/*/orders/*"),
        ("/api/v1/search?q=3", "GET /api/v1/search"),
        ("/" + "x" * 33, "GET /*"),
        ("/", "GET /"),
    ],
)
def test_what_varies_in_a_path_is_no_endpoint(path, endpoint) -> None:
    assert endpoint_of(httpx.Request("GET", f"http://one{path}")) == endpoint


# ---- observers, statistics, options ---------------------------------------------------------------------------


def test_observers_are_told() -> None:
    events: list[HedgeEvent] = []
    backend = Backend(Act(DELAY + 0.02, status=503), Act(0.05))
    run(backend, 1, options={"observer": events.append}, url="http://one/x")
    assert [(event.what, event.kind) for event in events] == [
        ("sent", "first"),
        ("sent", "backup"),
        ("failed", "first"),
        ("won", "backup"),
        ("answered", ""),
    ]
    assert events[2].reason == "status 503" and events[2].endpoint == "GET /x"
    assert [event.seconds for event in events] == pytest.approx([0, DELAY, DELAY + 0.02, 0.1, 0.1])


def test_an_observer_that_fails_is_logged(caplog) -> None:
    responses, _ = run(Backend(Act()), 1, options={"observer": lambda event: 1 / 0})
    assert responses[0].status_code == 200 and "ZeroDivisionError" in caplog.text


def test_counters_add_up() -> None:
    backend = Backend(*[Act(0.01 if n % 3 else 0.2) for n in range(300)])
    _, stats = run(backend, 100)
    counts = stats["http://search"]
    assert counts["calls"] == counts["answered"] + counts["failed"] + counts["cancelled"] == 100
    assert counts["copies_sent"] == 100 + counts["backups_sent"] == len(backend.requests)
    assert sum(host["sent"] for host in counts["hosts"].values()) == len(backend.requests)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"policy": Tied()}, "policy"),
        ({"policy": Auto()}, "policy"),
        ({"policy": Hedged(cancel_losers=False)}, "cancel_losers"),
        ({"hosts": {"search": ["http://a"]}}, "base URL"),
        ({"hosts": {"http://search": []}}, "1 to 64"),
        ({"hosts": {"http://search": "http://a"}}, "1 to 64"),
        ({"hosts": {"http://search": ["ftp://a"]}}, "base URL"),
        ({"hosts": {"http://search": ["http://a", "http://a"]}}, "twice"),
        ({"methods": "GET"}, "methods"),
        ({"endpoint": "x"}, "endpoint"),
        ({"accept": 1}, "accept"),
        ({"observer": 1}, "observer"),
        ({"failovers": -1}, "failovers"),
        ({"endpoints_max": 0}, "endpoints_max"),
        ({"threads_max": 0}, "threads_max"),
        ({"picker": "best"}, "picker"),
        ({"throttle": 3}, "throttle"),
        ({"keep_host": "yes"}, "keep_host"),
        ({"inner": 3}, "inner"),
    ],
)
def test_what_cannot_be_is_refused(options, told) -> None:
    with pytest.raises(BadOption, match=told):
        HedgedTransport(**options)


def test_throttles_are_checked() -> None:
    with pytest.raises(BadOption, match="max_tokens"):
        ThrottleOptions(0)
    with pytest.raises(BadOption, match="token_ratio"):
        ThrottleOptions(10, -1)


def test_a_transport_for_the_other_client_is_refused() -> None:
    with pytest.raises(BadOption, match="AsyncClient"):
        httpx.Client(transport=HedgedTransport(Backend(Act()))).get("http://one")


@pytest.mark.parametrize(
    ("url", "origin"),
    [
        ("http://user:secret@a/x", "http://a"),
        ("https://a:443", "https://a"),
        ("https://a:80", "https://a:80"),
        ("http://[::1]:80/", "http://[::1]"),
        ("http://[::1]:8080/", "http://[::1]:8080"),
    ],
)
def test_a_service_is_named_by_its_origin(url, origin) -> None:
    assert origin_of(httpx.URL(url)) == origin


def test_a_path_keeps_its_escapes() -> None:
    hosts = Hosts({"http://s": ["http://a/base/"]}, keep_host=False)
    copy = hosts.copy(httpx.Request("GET", "http://s/a%2Fb/%20?q=%26"), "http://s", 0)
    assert copy.url.raw_path == b"/base/a%2Fb/%20?q=%26"


def test_another_clock_starts_anew() -> None:
    transport = hedging(Backend(Act()))

    async def main():
        async with httpx.AsyncClient(transport=transport) as client:
            await client.get("http://one")
            await anyio.sleep(100)
            await client.get("http://two")

    on_trio(main)
    assert set(transport.stats()) == {"http://one", "http://two"}
    on_trio(main)
    assert transport.stats()["http://one"]["calls"] == 1, "the second run's clock began at 0 again"
