"""What of a request and an answer is passed on."""

from __future__ import annotations

import pytest

from tiedreq.core.errors import BadOption
from tiedreq.proxy.headers import (
    for_client,
    for_upstream,
    may_go_on,
    origin_form,
    refusal,
    retry_after,
    trailers,
)
from tiedreq.proxy.messages import Ask, BadMessage, Head, pack_trailers, unpack_part
from tiedreq.proxy.rules import Rules

US = b"tiedreq-0123abcd"


def upstream(
    headers: list[tuple[bytes, bytes]], *, method: bytes = b"GET", trusted: bool = False
) -> dict[bytes, bytes]:
    kept = for_upstream(method, headers, version=b"1.1", peer="192.0.2.7", scheme="http", pseudonym=US, trusted=trusted)
    assert len(dict(kept)) == len(kept)
    return dict(kept)


def refused(method: bytes = b"GET", target: bytes = b"/", version: bytes = b"1.1", **headers: bytes) -> int | None:
    fields = [(name.replace("_", "-").encode(), value) for name, value in headers.items()]
    found = refusal(method, target, fields, version, US)
    return None if found is None else found.status


def test_fields_of_one_connection_are_dropped() -> None:
    kept = upstream(
        [
            (b"host", b"shop.example"),
            (b"connection", b"close, X-Hop"),
            (b"x-hop", b"1"),
            (b"keep-alive", b"timeout=5"),
            (b"proxy-authorization", b"Basic x"),
            (b"te", b"trailers"),
            (b"upgrade", b"h2c"),
            (b"transfer-encoding", b"chunked"),
            (b"expect", b"100-continue"),
            (b"accept", b"text/html"),
            (b"authorization", b"Bearer t"),
            (b"tiedreq-ticket", b"stolen"),
        ]
    )
    assert sorted(kept) == [
        b"accept",
        b"authorization",
        b"host",
        b"via",
        b"x-forwarded-for",
        b"x-forwarded-host",
        b"x-forwarded-proto",
    ]
    assert kept[b"via"] == b"1.1 " + US and kept[b"host"] == kept[b"x-forwarded-host"] == b"shop.example"


def test_connection_can_not_drop_what_a_message_needs() -> None:
    kept = upstream([(b"host", b"a"), (b"connection", b"host, x-forwarded-for")])
    assert kept[b"host"] == b"a" and kept[b"x-forwarded-for"] == b"192.0.2.7"
    answer = dict(for_client(200, [(b"content-length", b"2"), (b"connection", b"content-length")], pseudonym=US))
    assert answer[b"content-length"] == b"2"


def test_what_a_client_says_of_those_before_it_counts_only_where_it_is_trusted() -> None:
    told = [(b"host", b"in"), (b"x-forwarded-for", b"10.0.0.1"), (b"x-forwarded-proto", b"https")]
    told += [(b"x-forwarded-host", b"shop.example"), (b"forwarded", b"for=10.0.0.1")]
    kept = upstream(told)
    assert kept[b"x-forwarded-for"] == b"192.0.2.7" and kept[b"x-forwarded-proto"] == b"http"
    assert kept[b"x-forwarded-host"] == b"in" and b"forwarded" not in kept
    kept = upstream(told, trusted=True)
    assert kept[b"x-forwarded-for"] == b"10.0.0.1, 192.0.2.7" and kept[b"x-forwarded-proto"] == b"https"
    assert kept[b"x-forwarded-host"] == b"shop.example" and kept[b"forwarded"] == b"for=10.0.0.1"
    kept = upstream([*told, (b"connection", b"x-forwarded-for, x-forwarded-proto, x-real-ip")], trusted=True)
    assert kept[b"x-forwarded-for"] == b"10.0.0.1, 192.0.2.7" and kept[b"x-forwarded-proto"] == b"https"
    for name in (b"x-forwarded-prefix", b"x-forwarded-port", b"x-real-ip"):
        assert name not in upstream([(name, b"1")]) and name in upstream([(name, b"1")], trusted=True)


@pytest.mark.parametrize(
    "name", [b"x_forwarded_for", b"x-forwarded_proto", b"content_length", b"tiedreq_ticket", b"via_"]
)
def test_an_underscore_is_no_disguise(name: bytes) -> None:
    """CGI and WSGI applications can't tell it from a hyphen."""
    for trusted in (False, True):
        kept = upstream([(name, b"1"), (b"x_own", b"2")], trusted=trusted)
        assert (name in kept) is (name == b"via_") and kept[b"x_own"] == b"2"


def test_a_request_of_http_1_0_gets_the_host_that_it_lacks() -> None:
    assert upstream([])[b"host"] == b"" and b"x-forwarded-host" not in upstream([])


def test_max_forwards_counts_down() -> None:
    hops = [(b"host", b"a"), (b"max-forwards", b"3")]
    assert upstream(hops, method=b"OPTIONS")[b"max-forwards"] == b"2"
    assert upstream(hops, method=b"GET")[b"max-forwards"] == b"3"
    assert may_go_on(b"OPTIONS", hops) and not may_go_on(b"TRACE", [(b"max-forwards", b"0")])
    assert may_go_on(b"GET", [(b"max-forwards", b"0")])


@pytest.mark.parametrize(
    ("status", "request_"),
    [
        (400, {"transfer_encoding": b"chunked", "content_length": b"5"}),
        (400, {"transfer_encoding": b"chunked", "version": b"1.0"}),
        (400, {"target": b"/a#b"}),
        (400, {"target": b"a"}),
        (400, {"target": b"*"}),
        (400, {"target": b"ftp://a/b"}),
        (400, {"target": b"http://user@a/b"}),
        (400, {"target": b"http:///b"}),
        (417, {"expect": b"cheese"}),
        (501, {"method": b"CONNECT", "target": b"a:443"}),
        (501, {"connection": b"upgrade", "upgrade": b"WebSocket"}),
        (508, {"via": b"1.1 other, 1.1 " + US}),
    ],
)
def test_what_is_refused(status: int, request_: dict) -> None:
    assert refused(**request_) == status


def test_what_is_not_refused() -> None:
    assert refused() is None
    assert refused(b"OPTIONS", b"*") is None
    assert refused(b"POST", expect=b"100-Continue", content_length=b"5") is None
    assert refused(connection=b"upgrade", upgrade=b"h2c") is None, "an upgrade may be passed over"
    assert refused(via=b"1.1 tiedreq-other") is None
    assert refused(target=b"http://shop.example/a?b=http://c") is None


def test_an_absolute_target_names_the_host() -> None:
    headers = [(b"host", b"other"), (b"accept", b"*/*")]
    assert origin_form(b"HTTP://shop.example:81/a?b", headers) == (
        b"/a?b",
        [(b"host", b"shop.example:81"), (b"accept", b"*/*")],
    )
    assert origin_form(b"http://shop.example?b=/c", headers)[0] == b"/?b=/c"
    assert origin_form(b"http://shop.example", headers)[0] == b"/"
    assert origin_form(b"http://shop.example", headers, b"OPTIONS")[0] == b"*"
    assert origin_form(b"http://shop.example/", headers, b"OPTIONS")[0] == b"/"
    assert origin_form(b"http://shop/shop", headers, b"OPTIONS")[0] == b"/shop"
    assert origin_form(b"http://shop.example?a", headers, b"OPTIONS")[0] == b"/?a"
    assert origin_form(b"/a", headers) == (b"/a", headers)
    assert origin_form(b"*", headers) == (b"*", headers)


def test_an_answer_for_the_client() -> None:
    headers = [(b"date", b"then"), (b"connection", b"keep-alive"), (b"content-length", b"0"), (b"set-cookie", b"a=1")]
    kept = for_client(200, [*headers, (b"set-cookie", b"b=2"), (b"tiedreq-replica", b"x")], pseudonym=US)
    assert kept == [
        (b"date", b"then"),
        (b"content-length", b"0"),
        (b"set-cookie", b"a=1"),
        (b"set-cookie", b"b=2"),
        (b"via", b"1.1 " + US),
    ]
    bare = dict(for_client(204, [(b"content-length", b"0")], pseudonym=US))
    assert set(bare) == {b"date", b"via"} and bare[b"date"].endswith(b" GMT")


def test_trailers_that_change_a_message_are_dropped() -> None:
    assert trailers([(b"x-sum", b"1"), (b"content-length", b"9"), (b"set-cookie", b"a")]) == [(b"x-sum", b"1")]


def test_retry_after() -> None:
    assert retry_after(503, [(b"retry-after", b" 3 ")]) == 3.0
    assert retry_after(503, [(b"retry-after", b"Fri, 31 Dec 2027 23:59:59 GMT")]) == 1.0
    assert retry_after(503, []) is None and retry_after(500, [(b"retry-after", b"3")]) is None


# ---- rules --------------------------------------------------------------------------------------------------------


def test_safe_methods_are_tied_and_others_when_named() -> None:
    rules = Rules.read()
    assert all(rules.tied(method, b"/") for method in (b"GET", b"HEAD", b"OPTIONS"))
    assert not rules.tied(b"POST", b"/search") and not rules.tied(b"TRACE", b"/")
    rules = Rules.read(["POST:/search*", "/pure/*"], ["GET:/next", "*:/pure/but/*"])
    assert rules.tied(b"POST", b"/search?q=/x") and rules.tied(b"DELETE", b"/pure/a")
    assert not rules.tied(b"GET", b"/next?at=1") and rules.tied(b"GET", b"/next/")
    assert not rules.tied(b"GET", b"/pure/but/a") and not rules.tied(b"POST", b"/other")
    assert Rules.read(["PUT"]).tied(b"PUT", b"/anything")


@pytest.mark.parametrize("text", ["", "GET:", "GET:search", ":/a", "G T:/a", "GET:/a?b=c", "é"])
def test_what_is_no_rule(text: str) -> None:
    with pytest.raises(BadOption, match=r"^tie: .* is not METHOD, /PATH or METHOD:/PATH"):
        Rules.read([text])


# ---- messages -----------------------------------------------------------------------------------------------------


def test_messages_come_back_as_they_were() -> None:
    ask = Ask(b"GET", b"/a", [(b"a", b"1"), (b"a", b"\xe9")], b"body")
    assert Ask.unpack(ask.pack()) == ask
    head = Head(404, [(b"x", b"")], b"part", True)
    assert Head.unpack(head.pack()) == head
    assert unpack_part(pack_trailers([(b"x", b"1")])) == [(b"x", b"1")] and unpack_part(b"") == b""
    for headers in ([], [(b"", b"")], [(b"a", b""), (b"", b"b")]):
        assert Head.unpack(Head(200, headers).pack()).headers == headers


@pytest.mark.parametrize("field", [(b"a\nb", b"c"), (b"a", b"b\n"), (b"a", b"b\nc\nd")])
def test_a_line_break_within_a_header_is_not_sent(field: tuple[bytes, bytes]) -> None:
    with pytest.raises(BadMessage):
        Ask(b"GET", b"/", [(b"host", b"a"), field]).pack()


@pytest.mark.parametrize(
    "value",
    [None, {}, [b"GET", b"/"], [b"GET", "/", b"", b""], [b"GET", b"/", b"a", b""], [b"", b"", [b"a", b"b"], b""]],
)
def test_what_is_no_request(value: object) -> None:
    with pytest.raises(BadMessage):
        Ask.unpack(value)


@pytest.mark.parametrize(
    "value", [None, [199, b"", b"", True], [200, b"", b""], [200, b"", b"", 1], [200, [b"a", b"b"], b"", True]]
)
def test_what_is_no_head(value: object) -> None:
    with pytest.raises(BadMessage):
        Head.unpack(value)
    with pytest.raises(BadMessage):
        unpack_part([b"odd"])
