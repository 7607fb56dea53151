"""Every limit of every field, at its edge and one beyond, on the side that sends and on the side that receives."""

from __future__ import annotations

from typing import Any

import msgpack
import pytest

from tiedreq.core import messages as m
from tiedreq.core.errors import BadOption, RemoteViolation
from tiedreq.core.types import Cause, CopyId, CopyKind, CopyState, Identity, Load, MethodInfo, Window
from tiedreq.wire.codec import decode_frame, decode_message, encode_message, join_frame
from tiedreq.wire.limits import DEFAULT_LIMITS, WireLimits

LOAD = Load(1, 2, 3, 0.0)
TIED = CopyId(1, 2, 3, 0)
UNTIED = CopyId(1, 2, 3, -1)
HELLO = m.Hello(1, 1, "c", "replica", "r0", 5, b"c" * 32, b"")
WELCOME = m.Welcome(8, False, 1024, ())
SUBMIT = m.Submit(UNTIED, CopyKind.FIRST, "m", b"", 1.0, (), True, False, False, None, ())
RESULT = m.Result(UNTIED, b"", 0.1, 0.1, LOAD)
FAILED = m.Failed(UNTIED, "c", "", b"", False, 0.1, 0.1, LOAD)
ENDED = m.Ended(UNTIED, CopyState.DROPPED, Cause.STARTED, 0.0, 0.0, LOAD)
STARTED = m.Started(UNTIED, 1.0, LOAD)
WINDOW = Window(64, 1000, False)
ITEM = m.Item(UNTIED, 0, b"", 0.1, 0.1, None)
BEYOND_SECONDS = 1_000_000.1


def partners(number: int) -> tuple[Identity, ...]:
    return tuple(Identity(f"r{i}", i) for i in range(number))


def tie(number: int, rank: int) -> m.Submit:
    return SUBMIT._replace(copy=TIED._replace(rank=rank), partners=partners(number))


def metadata(number: int) -> m.Submit:
    return SUBMIT._replace(metadata=tuple((f"k{i}", "v") for i in range(number)))


def methods(number: int) -> m.Welcome:
    return WELCOME._replace(methods=tuple(MethodInfo(f"m{i}", True, True, 60.0) for i in range(number)))


def peers(number: int) -> m.Report:
    return m.Report(tuple((f"r{i}", 0.001) for i in range(number)))


# The field, the last message that is taken, and the first that is not.
EDGES: list[tuple[str, Any, Any]] = [
    ("Hello.cluster", HELLO._replace(cluster="é" * 128), HELLO._replace(cluster="é" * 129)),
    ("Hello.name", HELLO._replace(name="é" * 128), HELLO._replace(name="é" * 129)),
    ("Hello", HELLO._replace(role="client", name=""), HELLO._replace(name="")),
    ("Hello.name", HELLO._replace(name="a b\u0301\u00a0"), HELLO._replace(name="a\u202eb")),
    ("Hello.role", HELLO._replace(role="client"), HELLO._replace(role="Client")),
    ("Hello.challenge", HELLO, HELLO._replace(challenge=b"c" * 31)),
    ("Hello.challenge", HELLO, HELLO._replace(challenge=b"c" * 33)),
    ("Hello.challenge", HELLO, HELLO._replace(challenge=b"")),
    ("Hello.proof", HELLO._replace(proof=b"p" * 32), HELLO._replace(proof=b"p" * 33)),
    ("Hello.proof", HELLO, HELLO._replace(proof=b"p")),
    ("Hello.protocol_max", HELLO._replace(protocol_max=65_535), HELLO._replace(protocol_max=65_536)),
    ("Hello", HELLO._replace(protocol_min=1, protocol_max=1), HELLO._replace(protocol_min=2, protocol_max=1)),
    ("Hello.incarnation", HELLO._replace(incarnation=2**64 - 1), HELLO._replace(incarnation=-1)),
    ("Proof.proof", m.Proof(b"p" * 32), m.Proof(b"p" * 31)),
    ("Welcome.slots", WELCOME._replace(slots=2**32 - 1), WELCOME._replace(slots=2**32)),
    ("Welcome.zone", WELCOME._replace(zone="é" * 128), WELCOME._replace(zone="é" * 129)),
    ("Welcome.methods", methods(1024), methods(1025)),
    ("Welcome.methods", methods(2), WELCOME._replace(methods=methods(1).methods * 2)),
    (
        "Welcome.methods",
        WELCOME._replace(methods=(MethodInfo("m" * 128, True, True, 1e6),)),
        WELCOME._replace(methods=(MethodInfo("m" * 129, True, True, 1e6),)),
    ),
    ("Welcome.methods", methods(1), WELCOME._replace(methods=(MethodInfo("m", True, True, float("inf")),))),
    ("Goodbye.code", m.Goodbye("c" * 64, ""), m.Goodbye("c" * 65, "")),
    ("Goodbye.code", m.Goodbye("c", ""), m.Goodbye("", "")),
    ("Heartbeat.number", m.Heartbeat(2**64 - 1), m.Heartbeat(-1)),
    ("Chunk", m.Chunk(1, True, b""), m.Chunk(1, False, b"")),
    ("Unsupported.type_code", m.Unsupported(65_535), m.Unsupported(65_536)),
    ("Submit.method", SUBMIT._replace(method="é" * 128), SUBMIT._replace(method="é" * 129)),
    ("Submit.method", SUBMIT._replace(method="m"), SUBMIT._replace(method="")),
    ("Submit.method", SUBMIT._replace(method="a b"), SUBMIT._replace(method="a\x1b[31m")),
    ("Submit.remaining", SUBMIT._replace(remaining=1e6), SUBMIT._replace(remaining=BEYOND_SECONDS)),
    ("Submit.remaining", SUBMIT._replace(remaining=0.0), SUBMIT._replace(remaining=-1e-9)),
    ("Submit.remaining", SUBMIT, SUBMIT._replace(remaining=float("nan"))),
    ("Submit.partners", tie(8, 7), tie(9, 7)),
    ("Submit", tie(2, 1), tie(1, 0)),
    ("Submit", tie(3, 2), tie(3, 3)),
    ("Submit", SUBMIT, SUBMIT._replace(partners=partners(2))),
    ("Submit", tie(2, 0), tie(0, 0)),
    ("Submit.key", SUBMIT._replace(key="é" * 256), SUBMIT._replace(key="é" * 257)),
    ("Submit.key", SUBMIT._replace(key="\n"), SUBMIT._replace(key="")),
    ("Submit.metadata", metadata(16), metadata(17)),
    ("Submit.metadata", metadata(2), SUBMIT._replace(metadata=metadata(1).metadata * 2)),
    (
        "Submit.metadata",
        SUBMIT._replace(metadata=(("k" * 64, "é" * 1024),)),
        SUBMIT._replace(metadata=(("k" * 65, ""),)),
    ),
    ("Submit.metadata", metadata(1), SUBMIT._replace(metadata=(("k", "v" * 1025),))),
    ("Submit.metadata", metadata(1), SUBMIT._replace(metadata=(("", "v"),))),
    ("Submit.metadata", metadata(1), SUBMIT._replace(metadata=(("k\n", "v"),))),
    ("Result.service_time", RESULT._replace(service_time=1e6), RESULT._replace(service_time=BEYOND_SECONDS)),
    ("Result.queue_wait", RESULT._replace(queue_wait=1e6), RESULT._replace(queue_wait=-0.1)),
    (
        "Result.load",
        RESULT._replace(load=LOAD._replace(pushback=1e6)),
        RESULT._replace(load=LOAD._replace(pushback=BEYOND_SECONDS)),
    ),
    ("Failed.code", FAILED._replace(code="c" * 64), FAILED._replace(code="c" * 65)),
    ("Failed.code", FAILED, FAILED._replace(code="")),
    ("Failed.service_time", FAILED, FAILED._replace(service_time=float("inf"))),
    ("Ended.retry_after", ENDED._replace(retry_after=1e6), ENDED._replace(retry_after=float("inf"))),
    ("Started.remaining", STARTED._replace(remaining=1e6), STARTED._replace(remaining=-1.0)),
    ("Next.remaining", m.Next(TIED, 1e6), m.Next(TIED, float("inf"))),
    ("Submit.window", SUBMIT._replace(window=WINDOW), SUBMIT._replace(window=WINDOW._replace(items=0))),
    ("Submit.window", SUBMIT._replace(window=WINDOW), SUBMIT._replace(window=WINDOW._replace(bytes=-1))),
    ("Item.number", ITEM._replace(number=2**64 - 1), ITEM._replace(number=-1)),
    ("Item.service_time", ITEM._replace(service_time=1e6), ITEM._replace(service_time=float("nan"))),
    ("Item.queue_wait", ITEM._replace(queue_wait=0.0), ITEM._replace(queue_wait=BEYOND_SECONDS)),
    ("Item.load", ITEM._replace(load=LOAD), ITEM._replace(load=LOAD._replace(pushback=BEYOND_SECONDS))),
    ("Credit.items", m.Credit(TIED, 1, 2**64 - 1), m.Credit(TIED, 0, 1)),
    ("Credit.bytes", m.Credit(TIED, 1, 1), m.Credit(TIED, 1, 0)),
    ("Report.notice_latencies", peers(256), peers(257)),
    ("Report.notice_latencies", peers(2), m.Report(peers(1).notice_latencies * 2)),
]

# What only a broken or hostile sender packs: the field, what it packed in place of it, and the message it is in.
HOSTILE: list[tuple[str, Any, Any]] = [
    ("Hello.protocol_min", True, HELLO),
    ("Hello.cluster", b"c", HELLO),
    ("Hello.cluster", None, HELLO),
    ("Hello.role", 1, HELLO),
    ("Hello.role", [], HELLO),
    ("Hello.incarnation", 1.0, HELLO),
    ("Hello.challenge", "c" * 32, HELLO),
    ("Welcome.draining", 0, WELCOME),
    ("Welcome.methods", None, WELCOME),
    ("Welcome.methods", [["m", True, True]], WELCOME),
    ("Welcome.methods", [["m", 1, True, 60.0]], WELCOME),
    ("Goodbye.reason", "a\nb", m.Goodbye("c", "")),
    ("Goodbye.reason", "x" * 513, m.Goodbye("c", "")),
    ("Heartbeat.number", True, m.Heartbeat(1)),
    ("Chunk.last", 1, m.Chunk(1, True, b"d")),
    ("Chunk.data", "d", m.Chunk(1, True, b"d")),
    ("Submit.copy", [1, 2, 3], SUBMIT),
    ("Submit.copy", [1, 2, 3, -2], SUBMIT),
    ("Submit.copy", [1, 2, 3, 8], SUBMIT),
    ("Submit.copy", [-1, 2, 3, -1], SUBMIT),
    ("Submit.copy", [1, 2, 3, False], SUBMIT),
    ("Submit.copy", [1, 2.0, 3, -1], SUBMIT),
    ("Submit.copy", 7, SUBMIT),
    ("Submit.kind", 4, SUBMIT),
    ("Submit.kind", -1, SUBMIT),
    ("Submit.kind", True, SUBMIT),
    ("Submit.kind", "first", SUBMIT),
    ("Submit.method", b"m", SUBMIT),
    ("Submit.payload", "text", SUBMIT),
    ("Submit.payload", None, SUBMIT),
    ("Submit.remaining", True, SUBMIT),
    ("Submit.remaining", "1", SUBMIT),
    ("Submit.remaining", 2**64 - 1, SUBMIT),
    ("Submit.partners", None, SUBMIT),
    ("Submit.partners", [["r0", 1], ["r1", True]], tie(2, 0)),
    ("Submit.partners", [["r0", 1], ["r0", 2]], tie(2, 0)),
    ("Submit.partners", [["r0", 1], ["", 2]], tie(2, 0)),
    ("Submit.partners", [["r0", 1], ["r1" * 65, 2]], tie(2, 0)),
    ("Submit.partners", [["r0", 1], ["r1\n", 2]], tie(2, 0)),
    ("Submit.partners", [["r0", 1], ["r1", 2, 3]], tie(2, 0)),
    ("Submit.partners", [["r0", 1], [b"r1", 2]], SUBMIT),
    ("Submit.yield_", 1, SUBMIT),
    ("Submit.exclusive", None, SUBMIT),
    ("Submit.layered", "yes", SUBMIT),
    ("Submit.key", 5, SUBMIT),
    ("Submit.metadata", [["k"]], SUBMIT),
    ("Submit.metadata", [["k", 1]], SUBMIT),
    ("Submit.metadata", "kv", SUBMIT),
    ("Submit.metadata", None, SUBMIT),
    ("Submit.window", [], SUBMIT),
    ("Submit.window", [1, 1], SUBMIT),
    ("Submit.window", [True, 1, True], SUBMIT),
    ("Submit.window", [1, 1.0, True], SUBMIT),
    ("Submit.window", [1, 1, 1], SUBMIT),
    ("Welcome.methods", [["m", True, True, 60.0, 1]], WELCOME),
    ("Welcome.methods", [["m", True, True, 60.0, True, True]], WELCOME),
    ("Item.payload", None, ITEM),
    ("Item.number", True, ITEM),
    ("Item.load", [], ITEM),
    ("Credit.items", None, m.Credit(TIED, 1, 1)),
    ("Result.payload", [], RESULT),
    ("Result.load", None, RESULT),
    ("Result.load", [1, 2, 3], RESULT),
    ("Result.load", [-1, 2, 3, 0.0], RESULT),
    ("Result.load", [2**32, 2, 3, 0.0], RESULT),
    ("Result.load", [1, 2**32, 3, 0.0], RESULT),
    ("Result.load", [1, 2, True, 0.0], RESULT),
    ("Result.load", [1, 2, 3, None], RESULT),
    ("Failed.message", "x" * 4097, FAILED),
    ("Failed.message", b"x", FAILED),
    ("Failed.details", None, FAILED),
    ("Failed.retryable", 0, FAILED),
    ("Ended.state", CopyState.QUEUED.value, ENDED),
    ("Ended.state", CopyState.RUNNING.value, ENDED),
    ("Ended.state", CopyState.DONE.value, ENDED),
    ("Ended.state", CopyState.FAILED.value, ENDED),
    ("Ended.state", 9, ENDED),
    ("Ended.state", 4.0, ENDED),
    ("Ended.cause", Cause.LINK_LOST.value, ENDED),
    ("Ended.cause", Cause.UNSENT.value, ENDED),
    ("Ended.cause", 14, ENDED),
    ("Ended.cause", True, ENDED),
    ("Started.load", [], STARTED),
    ("Started.load", 0, STARTED),
    ("Report.notice_latencies", [["r0", -0.1]], peers(1)),
    ("Report.notice_latencies", [["r0"]], peers(1)),
]


def label(case: Any) -> str:
    return case if isinstance(case, str) else "-"


def receive(encoded: bytes) -> Any:
    return (
        decode_message(encoded, DEFAULT_LIMITS)
        if len(encoded) > 65_536
        else decode_frame(join_frame([encoded]), DEFAULT_LIMITS)[0]
    )


def packed_unchecked(message: Any) -> bytes:
    code = msgpack.unpackb(encode_message(next(good for _, good, _ in EDGES if type(good) is type(message))))[0]
    return msgpack.packb((code, *message))


@pytest.mark.parametrize(("field", "inside", "beyond"), EDGES, ids=label)
class TestEdge:
    def test_sender(self, field: str, inside: Any, beyond: Any) -> None:
        encode_message(inside)
        with pytest.raises(BadOption, match=rf"^{field}: expected "):
            encode_message(beyond)

    def test_receiver(self, field: str, inside: Any, beyond: Any, both_msgpacks: str) -> None:
        assert receive(encode_message(inside)) == inside
        if field == "Welcome.methods" and len(beyond.methods) > 1024:
            field = "chunked message|frame"  # refused before there are fields
        with pytest.raises(RemoteViolation, match=rf"^({field}): "):
            receive(packed_unchecked(beyond))


@pytest.mark.parametrize(("field", "value", "message"), HOSTILE, ids=label)
def test_hostile_field(field: str, value: Any, message: Any, both_msgpacks: str) -> None:
    raw = msgpack.unpackb(encode_message(message))
    raw[1 + message._fields.index(field.partition(".")[2])] = value
    with pytest.raises(RemoteViolation, match=rf"^{field}: expected "):
        decode_frame(msgpack.packb([raw]), DEFAULT_LIMITS)


@pytest.mark.parametrize("message", [good for _, good, _ in EDGES[::5]] + [SUBMIT, RESULT, ENDED], ids=label)
def test_missing_fields(message: Any) -> None:
    raw = msgpack.unpackb(encode_message(message))
    for length in range(1, len(raw) - len(message._field_defaults)):
        with pytest.raises(
            RemoteViolation, match=rf"^{type(message).__name__}\.{message._fields[length - 1]}: missing"
        ):
            decode_frame(msgpack.packb([raw[:length]]), DEFAULT_LIMITS)


def test_a_submit_of_a_speaker_that_knows_no_streams_has_no_window() -> None:
    raw = msgpack.unpackb(encode_message(SUBMIT._replace(window=WINDOW)))
    assert decode_frame(msgpack.packb([raw]), DEFAULT_LIMITS) == [SUBMIT._replace(window=WINDOW)]
    assert decode_frame(msgpack.packb([raw[:-1]]), DEFAULT_LIMITS) == [SUBMIT]


def test_a_method_of_a_speaker_that_knows_no_streams_is_none() -> None:
    raw = msgpack.unpackb(encode_message(methods(1)))
    row = raw[4][0]
    raw[4] = [row[:-1]]
    assert decode_frame(msgpack.packb([raw]), DEFAULT_LIMITS) == [methods(1)]


def test_a_welcome_of_a_speaker_that_knows_no_zones_has_none() -> None:
    raw = msgpack.unpackb(encode_message(methods(2)._replace(zone="a")))
    assert decode_frame(msgpack.packb([raw[:-1]]), DEFAULT_LIMITS) == [methods(2)]
    with pytest.raises(RemoteViolation, match=r"^Welcome\.methods: missing"):
        decode_frame(msgpack.packb([raw[:-2]]), DEFAULT_LIMITS)


@pytest.mark.parametrize(("message", "field"), [(SUBMIT, "payload"), (RESULT, "payload"), (FAILED, "details")])
def test_payload_bytes(message: Any, field: str) -> None:
    limits = WireLimits(payload_bytes_max=1024)
    inside, beyond = message._replace(**{field: bytes(1024)}), message._replace(**{field: bytes(1025)})
    assert decode_frame(join_frame([encode_message(inside)]), limits) == [inside]
    with pytest.raises(RemoteViolation, match=rf"\.{field}: expected up to 1024 bytes"):
        decode_frame(join_frame([encode_message(beyond)]), limits)


def test_errors_do_not_quote_what_is_hostile() -> None:
    raw = msgpack.unpackb(encode_message(SUBMIT))
    raw[3] = "\x1b]0;evil" + "x" * 100_000
    with pytest.raises(RemoteViolation) as caught:
        decode_frame(msgpack.packb([raw]), DEFAULT_LIMITS)
    assert str(caught.value) == "Submit.method: expected one line of 1 to 128 characters"
    assert caught.value.__context__ is None
