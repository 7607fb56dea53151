"""Addresses, the quiet log, the alarm, frames in chunks."""

from __future__ import annotations

import logging

import pytest
import trio

from tests.net_layer.ends import reply
from tiedreq.core.errors import BadOption, RemoteViolation
from tiedreq.net.addresses import Address, parse_address, parse_url
from tiedreq.net.alarm import Alarm
from tiedreq.net.frames import FrameDecoder
from tiedreq.net.quiet import QuietLog
from tiedreq.wire.chunks import split
from tiedreq.wire.codec import encode_message, join_frame
from tiedreq.wire.limits import WireLimits


class TestAddresses:
    @pytest.mark.parametrize(
        ("text", "address"),
        [
            ("127.0.0.1:7000", ("127.0.0.1", 7000)),
            ("localhost:0", ("localhost", 0)),
            ("[::1]:9000", ("::1", 9000)),
            ("[::]:0", ("::", 0)),
            (":7000", ("", 7000)),
        ],
    )
    def test_parse(self, text: str, address: tuple[str, int]) -> None:
        assert parse_address(text) == address
        assert str(parse_address(text)) == text

    @pytest.mark.parametrize(
        "text", ["", "localhost", "::1:9000", "a:b", "a:65536", "a:-1", "a:²", "[::1]", "a..b:1", "a b:1"]
    )
    def test_no_address(self, text: str) -> None:
        with pytest.raises(BadOption):
            parse_address(text)

    @pytest.mark.parametrize(
        ("url", "secure", "address", "resource", "certified"),
        [
            ("ws://a:7000", False, ("a", 7000), "/", "a"),
            ("wss://a", True, ("a", 443), "/", "a"),
            ("ws://a", False, ("a", 80), "/", "a"),
            ("wss://[::1]:7000/x?y=1", True, ("::1", 7000), "/x?y=1", "::1"),
            ("wss://10.0.0.7:7000#a.example", True, ("10.0.0.7", 7000), "/", "a.example"),
        ],
    )
    def test_urls(self, url: str, secure: bool, address: tuple[str, int], resource: str, certified: str) -> None:
        assert parse_url(url) == (url, secure, Address(*address), resource, certified)

    @pytest.mark.parametrize(
        "url", ["a:1", "http://a:1", "ws://", "ws://a:65536", "ws://a..b:1", f"wss://{'a' * 64}:1"]
    )
    def test_no_url(self, url: str) -> None:
        with pytest.raises(BadOption, match="url"):
            parse_url(url)


class TestQuietLog:
    def test_leaves_out_and_counts(self, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
        now = [100.0]
        monkeypatch.setattr("time.monotonic", lambda: now[0])
        quiet = QuietLog(logging.getLogger("test"), lines_max=2, window=10.0)
        for number in range(7):
            quiet.log("a", logging.WARNING, "peer %s", number)
        quiet.log("b", logging.WARNING, "another kind")
        assert [record.message for record in caplog.records] == ["peer 0", "peer 1", "another kind"]
        now[0] += 10.0
        quiet.log("a", logging.WARNING, "peer %s", 7)
        assert caplog.records[-1].message == "peer 7 (5 more like this were not shown)"

    def test_shows_the_error(self, caplog: pytest.LogCaptureFixture) -> None:
        QuietLog(logging.getLogger("test")).log("a", logging.ERROR, "broken", error=ValueError("why"))
        assert "ValueError: why" in caplog.text


class TestAlarm:
    async def test_rings_when_the_time_comes_and_follows_changes(self, autojump_clock) -> None:
        began = trio.current_time()
        times: list[float | None] = [began + 5.0]
        rung: list[float] = []

        def ring() -> None:
            rung.append(trio.current_time() - began)
            times[0] = None

        alarm = Alarm(lambda: times[0], ring)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(alarm.run)
            await trio.sleep(1)
            times[0] = began + 2.0
            alarm.check()
            await trio.sleep(100)
            assert rung == [2.0]
            times[0] = trio.current_time() + 3.0
            alarm.check()
            await trio.sleep(10)
            assert rung == [2.0, 104.0]
            nursery.cancel_scope.cancel()


class TestFrameDecoder:
    def test_chunks_before_they_may(self) -> None:
        (chunk, *_) = split(encode_message(reply(1, 1000)), 1, 100)
        frame = join_frame([encode_message(chunk)])
        with pytest.raises(RemoteViolation, match="before the handshake"):
            FrameDecoder(WireLimits()).decode(frame, takes_chunks=False)

    def test_unknown_types_are_told_apart(self) -> None:
        frame = join_frame([b"\x92\xcd\x12\x34\x01", encode_message(reply(1, 10)), b"\x91\xcd\x12\x35"])
        decoded = FrameDecoder(WireLimits()).decode(frame, takes_chunks=True)
        assert decoded == ([reply(1, 10)], [0x1234, 0x1235])
