"""Messages to bytes and frames to messages.

A frame is a msgpack array of messages, a message an array of a type code and fields (``layout``). Each message is
packed once, by itself; a frame is its header and the packed messages joined. Whatever arrives, ``decode_frame``
returns messages whose every field is valid, or raises ``RemoteViolation``, in memory bounded by the frame's size.

(Errors are raised after the ``except`` that led to them: a compiled ``raise … from None`` would keep what it hides.)
"""

from __future__ import annotations

from typing import Any, NamedTuple

from tiedreq.core.errors import BadOption, RemoteViolation
from tiedreq.core.messages import Failed, Goodbye, Message, Welcome
from tiedreq.wire.fields import CONTROL, BadField
from tiedreq.wire.hot import READERS, TESTERS
from tiedreq.wire.layout import LAYOUTS, LINK_CODES, Layout
from tiedreq.wire.limits import (
    FAILURE_CHARS_MAX,
    FRAME_BYTES_SENT_MAX,
    FRAME_MESSAGES_MAX,
    MESSAGE_DEPTH_MAX,
    MESSAGE_ITEMS_MAX,
    METHODS_MAX,
    REASON_CHARS_MAX,
    TYPE_CODE_MAX,
    WireLimits,
)
from tiedreq.wire.packing import PACK_ERRORS, UNPACK_ERRORS, packers, refuse_extension, unpackb
from tiedreq.wire.structure import check_structure, depth_within


class UnknownMessage(NamedTuple):
    """A message whose type is unknown here. The link answers ``Unsupported`` with its type code."""

    type_code: int


_ENCODE = {layout.message: (layout.code, TESTERS.get(layout.message)) for layout in LAYOUTS}
_DECODE = {layout.code: (READERS.get(layout.message), layout) for layout in LAYOUTS}
_ARRAY_MAX = max(FRAME_MESSAGES_MAX, METHODS_MAX)
_OWN = WireLimits(payload_bytes_max=2**30, message_bytes_max=2**31, chunk_total_bytes_max=2**32)
"""For what this side encodes, where the size of a payload is not the codec's business."""


def encode_message(message: Message) -> bytes:
    """The bytes of one message, to be joined into a frame or split into chunks.

    Raises ``BadOption`` naming the field when the other side would refuse it. Text for people (the reason of a Goodbye,
    the message of a failure) is cut to its limit instead. The size of a payload is the caller's to check: it depends on
    what the other side announced.
    """
    known = _ENCODE.get(type(message))
    if known is None:
        raise BadOption(f"{type(message).__name__} is not a message")
    code, tester = known
    try:
        if tester is None:
            message = _readable(message)
        encoded = packers.pack((code, *message))
        if tester is not None and tester(message):
            return encoded
    except PACK_ERRORS as error:
        problem = f"{type(message).__name__} can't be packed: {error}"
    else:
        try:
            _read(_unpack(encoded, type(message).__name__, array_max=len(encoded)), _OWN)
            return encoded
        except RemoteViolation as error:
            problem = str(error)
    raise BadOption(problem)


def _readable(message: Message) -> Message:
    """The message with its text for people made fit to travel."""
    if isinstance(message, Goodbye):
        return message._replace(reason=CONTROL.sub(" ", _unicode(message.reason[:REASON_CHARS_MAX])))
    if isinstance(message, Failed):
        return message._replace(message=_unicode(message.message[:FAILURE_CHARS_MAX]))
    return message


def _unicode(text: str) -> str:
    return text.encode("utf-8", "replace").decode()


def join_frame(encoded: list[bytes]) -> bytes:
    """One frame of already encoded messages, at least one, at most ``FRAME_MESSAGES_MAX``."""
    number = len(encoded)
    if not 0 < number <= FRAME_MESSAGES_MAX:
        raise BadOption(f"a frame holds 1 to {FRAME_MESSAGES_MAX} messages, not {number}")
    header = bytes((0x90 | number,)) if number < 16 else b"\xdc" + number.to_bytes(2, "big")
    frame = header + b"".join(encoded)
    if len(frame) > FRAME_BYTES_SENT_MAX:
        raise BadOption(f"a frame holds at most {FRAME_BYTES_SENT_MAX} bytes, not {len(frame)}")
    return frame


def decode_frame(frame: bytes, limits: WireLimits) -> list[Message | UnknownMessage]:
    """The messages of one frame, in order."""
    if len(frame) > limits.frame_bytes_max:
        raise RemoteViolation(f"frame of {len(frame)} bytes; the limit is {limits.frame_bytes_max}")
    raw = _unpack(frame, "frame")
    if type(raw) is not tuple or not 0 < len(raw) <= FRAME_MESSAGES_MAX:
        raise RemoteViolation(f"frame: expected an array of 1 to {FRAME_MESSAGES_MAX} messages")
    messages: list[Message | UnknownMessage] = []
    for one in raw:
        messages.append(_read(one, limits))
    return messages


def decode_message(encoded: bytes | bytearray, limits: WireLimits) -> Message | UnknownMessage:
    """One message that arrived in chunks. Of the link's own messages only Welcome may."""
    if len(encoded) > limits.message_bytes_max:
        raise RemoteViolation(f"message of {len(encoded)} bytes; the limit is {limits.message_bytes_max}")
    check_structure(encoded, depth_max=MESSAGE_DEPTH_MAX, items_max=MESSAGE_ITEMS_MAX, what="chunked message")
    raw = _unpack(encoded, "chunked message")
    message = _read(raw, limits)
    if raw[0] in LINK_CODES and type(message) is not Welcome:
        raise RemoteViolation(f"{type(message).__name__} may not arrive in chunks")
    return message


def _unpack(data: bytes | bytearray, what: str, *, array_max: int = _ARRAY_MAX) -> Any:
    """msgpack to Python with arrays as tuples; no maps (messages have none), no extensions, short arrays only."""
    try:
        return unpackb(
            data,
            use_list=False,
            max_array_len=array_max,
            max_map_len=0,
            max_ext_len=0,
            ext_hook=refuse_extension,
        )
    except UNPACK_ERRORS as error:
        problem = type(error).__name__
    raise RemoteViolation(f"{what}: not the msgpack expected here ({problem})")


def _read(raw: Any, limits: WireLimits) -> Message | UnknownMessage:
    if type(raw) is not tuple or not raw:
        raise RemoteViolation("message: expected an array that begins with a type code")
    code = raw[0]
    if type(code) is not int:
        raise RemoteViolation("message: expected a type code")
    known = _DECODE.get(code)
    if known is None:
        return _unknown(raw)
    reader, layout = known
    if reader is not None:
        message: Message | None = reader(raw, limits)
        if message is not None:
            return message
    return read_by_layout(layout, raw, limits)


def read_by_layout(layout: Layout, raw: tuple[Any, ...], limits: WireLimits) -> Message:
    """The message by its layout, field by field; further fields are ignored, the last ones may have a default."""
    names = layout.field_names
    given = len(raw) - 1
    if given < layout.required:
        raise RemoteViolation(f"{layout.name}.{names[given]}: missing")
    if given > len(names) and not depth_within(raw, MESSAGE_DEPTH_MAX):
        raise RemoteViolation(f"{layout.name}: nested more than {MESSAGE_DEPTH_MAX} deep")
    values = []
    for name, check, value in zip(names, layout.checks, raw[1:], strict=False):
        try:
            values.append(check(value, limits))
            continue
        except BadField as expected:
            problem = str(expected)
        raise RemoteViolation(f"{layout.name}.{name}: expected {problem}")
    message: Message = layout.message(*values)
    try:
        layout.rule(message)
        return message
    except BadField as expected:
        problem = str(expected)
    raise RemoteViolation(f"{layout.name}: expected {problem}")


def _unknown(raw: tuple[Any, ...]) -> UnknownMessage:
    code = raw[0]
    if not 0 <= code <= TYPE_CODE_MAX:
        raise RemoteViolation(f"message: expected a type code from 0 to {TYPE_CODE_MAX}")
    if not depth_within(raw, MESSAGE_DEPTH_MAX):
        raise RemoteViolation(f"message: nested more than {MESSAGE_DEPTH_MAX} deep")
    return UnknownMessage(code)
