"""What waits to be written on one connection: synchronous to fill, bounded, emptied a frame at a time.

Three lanes. *Link*: the link's own few messages, always first, with a small bound of their own. *Small*: messages of up
to ``chunk_bytes``, in order. *Bulk*: larger ones, cut into chunks; a frame takes one chunk, of each message under way
in turn, so that a message of any size delays the small ones by no more than one chunk.

Messages are encoded when they are put: what can't be sent is refused there, and the bounds count real bytes. A bulk
message is taken when its lane is empty whatever its size, so that every message that the limits allow can leave.

Synchronous throughout; ``net.outbox_waits`` has what waits for it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, fields

import trio

from tiedreq.core.errors import BadOption
from tiedreq.core.messages import Cancel, Chunk, Credit, Goodbye, Item, Message, Next, Started, Submit
from tiedreq.core.types import CopyId
from tiedreq.errors import TooLarge
from tiedreq.net.bell import Bell
from tiedreq.wire.chunks import abandoned, split
from tiedreq.wire.codec import encode_message, join_frame
from tiedreq.wire.limits import (
    FRAME_MESSAGES_MAX,
    FRAME_SPLIT_BYTES,
    MESSAGE_BYTES_BESIDE_PAYLOAD,
    WireLimits,
    chunk_bytes_sent_max,
)

_LINK_MESSAGES_MAX = 64
_UNDER_WAY_MAX = 4
_CHUNK_HEADER_BYTES_MAX = 32
_TAKEN_BACK_MAX = 64
"""So many places of messages that were taken back stay in the small lane, besides as many as wait there."""
_NOTICES = (Started, Next)
_OWED = (Cancel, Credit)
"""Taken though the lane of small messages is full: without a Credit its stream would stand still, without a Cancel its
copy would go on. Each answers for a copy that has left, so that they are few; twice as many messages is the bound."""


@dataclass(frozen=True, slots=True)
class OutboxLimits:
    """What may wait on one connection: small messages, their bytes, and the bytes of large messages."""

    messages_max: int = 8192
    bytes_max: int = 4 * 1024 * 1024
    bulk_bytes_max: int = 32 * 1024 * 1024

    def __post_init__(self) -> None:
        for field in fields(self):
            if getattr(self, field.name) < 1:
                raise BadOption(f"{field.name} must be at least 1, not {getattr(self, field.name)}")
        if self.bytes_max < FRAME_SPLIT_BYTES:
            raise BadOption(f"bytes_max must be at least {FRAME_SPLIT_BYTES}, one full frame, not {self.bytes_max}")


class _Waiting:
    """An encoded message in the bulk lane, or one in the small lane that may be taken back: a Submit or a notice.

    Once it was taken back ``encoded`` is empty and ``message`` None. Other small messages wait as their bytes alone.
    """

    __slots__ = ("chunks", "encoded", "message", "stream")

    def __init__(self, message: Message, encoded: bytes) -> None:
        self.message: Message | None = message
        self.encoded = encoded
        self.stream = 0
        self.chunks: Iterator[Chunk] | None = None


class Outbox:
    """The messages of one connection that are not written yet. For one writer task; anybody may put."""

    def __init__(self, limits: OutboxLimits, wire_limits: WireLimits) -> None:
        self.small_messages = 0
        self.small_bytes = 0
        self.bulk_bytes = 0
        self.closed = False
        self._limits = limits
        self._messages_max = limits.messages_max
        self._bytes_max = limits.bytes_max
        self._chunk_bytes = wire_limits.chunk_bytes
        self._message_bytes_max = 0
        self._under_way_bytes_max = 0
        self.agree(wire_limits.payload_bytes_max)
        self.bell = Bell()
        self._link_lane: deque[bytes] = deque()
        self._abandoned: deque[bytes] = deque()
        self._small: deque[bytes | _Waiting] = deque()
        self._notices: deque[_Waiting] = deque()
        """Those of the small lane that are notices and were not taken back, in order: nobody has to look for them."""
        self._bulk: deque[_Waiting] = deque()
        self._under_way: deque[_Waiting] = deque()
        self._taken_back = 0
        """Places in the small lane whose message was taken back."""
        self._submits: dict[CopyId, _Waiting] = {}
        self.left_behind: tuple[CopyId, ...] = ()
        """Once it is closed: the copies whose Submit had not left, or not whole, so that nobody can have run them."""
        self._streams = 0
        self._in_flight = False
        self.waiters = trio.lowlevel.ParkingLot()
        """Tasks that wait for room, or until something has left: all look again whenever that changes."""
        self.writer_idle = False
        """The writer has found nothing, and waits for ``bell``."""

    def __len__(self) -> int:
        return (
            len(self._link_lane) + len(self._abandoned) + self.small_messages + len(self._bulk) + len(self._under_way)
        )

    @property
    def places(self) -> int:
        """As ``len``, and the places of messages that were taken back and that the writer has not passed yet."""
        return len(self) + self._taken_back

    def agree(self, payload_bytes_max: int) -> None:
        """The Welcome of this connection said how large a payload may be: sizes of messages follow from that."""
        self._message_bytes_max = payload_bytes_max + MESSAGE_BYTES_BESIDE_PAYLOAD
        self._under_way_bytes_max = chunk_bytes_sent_max(payload_bytes_max)

    # ---- filling

    def put(self, message: Message) -> bool:
        """Let ``message`` wait; False when there is no room, or nothing is written any more.

        Raises ``UsageError``: ``BadOption`` when it can't be encoded, ``TooLarge`` when the other side would not take
        it.
        """
        if self.closed:
            return False
        encoded = encode_message(message)
        size = len(encoded)
        if size > self._message_bytes_max:
            text = f"{type(message).__name__} of {size} bytes; the other side takes {self._message_bytes_max} at most"
            raise TooLarge(text, limit=self._message_bytes_max, field="message")
        if (
            size > self._chunk_bytes
            or self.small_messages >= self._messages_max
            or self.small_bytes + size > self._bytes_max
        ) and not self._takes(message, size):
            return False
        if size > self._chunk_bytes:
            waiting = _Waiting(message, encoded)
            self.bulk_bytes += size
            self._bulk.append(waiting)
            if type(message) is Submit:
                self._submits[message.copy] = waiting
        else:
            self.small_messages += 1
            self.small_bytes += size
            if type(message) is Submit:
                waiting = _Waiting(message, encoded)
                self._submits[message.copy] = waiting
                self._small.append(waiting)
            elif type(message) in _NOTICES:
                waiting = _Waiting(message, encoded)
                self._notices.append(waiting)
                self._small.append(waiting)
            else:
                self._small.append(encoded)
        if self.writer_idle:
            self._wake_writer()
        return True

    def put_link(self, message: Message) -> bool:
        """Let a message of the link itself wait, ahead of everything.

        False when its lane is full of echoes that the other side does not take; a Goodbye always fits.
        """
        if self.closed or (len(self._link_lane) >= _LINK_MESSAGES_MAX and type(message) is not Goodbye):
            return False
        encoded = encode_message(message)
        if len(encoded) > self._chunk_bytes:  # a long method table: in chunks, but still ahead
            self._streams += 1
            self._link_lane.extend(map(encode_message, split(encoded, self._streams, self._chunk_data_bytes)))
        else:
            self._link_lane.append(encoded)
        self._wake_writer()
        return True

    def discard(self, copy: CopyId) -> bool:
        """Take back the Submit of ``copy``; False when it has left already (or was never here).

        One that has left in part is abandoned: the other side forgets it, and the answer is True.
        """
        waiting = self._submits.pop(copy, None)
        if waiting is None:
            return False
        if waiting.chunks is not None:
            self._under_way.remove(waiting)
            self.bulk_bytes -= len(waiting.encoded)
            self._abandoned.append(encode_message(abandoned(waiting.stream)))
            self._wake_writer()
        elif len(waiting.encoded) > self._chunk_bytes:
            self._bulk.remove(waiting)
            self.bulk_bytes -= len(waiting.encoded)
        else:
            self._take_back(waiting)
            self._close_ranks()
        self._wake_waiters()
        return True

    def shed_oldest_notices(self, count: int) -> int:
        """Drop up to ``count`` waiting notices, oldest first; says how many. Each costs a double start at most."""
        shed = min(count, len(self._notices))
        for _ in range(shed):
            self._take_back(self._notices.popleft())
        self._close_ranks()
        return shed

    def has_room(self, size: int, spare: int = 0) -> bool:
        """True when a message of ``size`` to ``size + spare`` encoded bytes would be taken, and half of the small lane
        is left to messages that nobody can hold back; also once nothing is written any more."""
        return self.closed or (self._roomy(size) and self._roomy(size + spare))

    def holds_item(self, copy: CopyId) -> bool:
        """True while an item of ``copy`` is in the bulk lane, where small messages pass it."""
        for lane in (self._bulk, self._under_way):
            for one in lane:
                if type(one.message) is Item and one.message.copy == copy:
                    return True
        return False

    def close(self) -> None:
        """Take nothing more; what waits in the link's lane may still leave, the rest is dropped."""
        if not self.closed:
            self.left_behind = tuple(self._submits)
        self.closed = True
        self._small.clear()
        self._notices.clear()
        self._bulk.clear()
        self._under_way.clear()
        self._abandoned.clear()
        self._submits.clear()
        self.small_messages = self.small_bytes = self.bulk_bytes = self._taken_back = 0
        self._wake_writer()
        self._wake_waiters()

    # ---- emptying

    @property
    def anything(self) -> bool:
        """True while something waits to be written."""
        return bool(self._link_lane or self._abandoned or self.small_messages or self._bulk or self._under_way)

    @property
    def busy(self) -> bool:
        """True while something waits to be written, or was taken and is not handed to the transport yet."""
        return self._in_flight or self.anything

    def take_frame(self) -> bytes | None:
        """(writer) The next frame, or None when nothing waits.

        All of the link's messages, small ones up to ``FRAME_SPLIT_BYTES``, and one chunk.
        """
        parts: list[bytes] = []
        size = 4
        for lane in (self._link_lane, self._abandoned):
            while lane and (not parts or size + len(lane[0]) <= FRAME_SPLIT_BYTES):
                size += len(lane[0])
                parts.append(lane.popleft())
        small = self._small
        while small and not self._link_lane and len(parts) < FRAME_MESSAGES_MAX - 1:
            waiting = small[0]
            encoded = waiting if isinstance(waiting, bytes) else waiting.encoded
            if size + len(encoded) > FRAME_SPLIT_BYTES and parts:
                break
            small.popleft()
            if encoded:
                size += len(encoded)
                parts.append(encoded)
                self.small_messages -= 1
                self.small_bytes -= len(encoded)
                if not isinstance(waiting, bytes):
                    if type(waiting.message) is Submit:
                        self._submits.pop(waiting.message.copy, None)
                    else:
                        self._notices.popleft()
            else:
                self._taken_back -= 1
        chunk = self._next_chunk() if not self._link_lane else None
        if chunk is not None:
            parts.append(chunk)
        if not parts:
            return None
        self._in_flight = True
        return join_frame(parts)

    def written(self) -> None:
        """(writer) The frame that was taken has been handed to the transport."""
        self._in_flight = False
        self._wake_waiters()

    def _takes(self, message: Message, size: int) -> bool:
        """Whether a message is taken that is large, or finds the small lane full."""
        return self._fits(size) or (type(message) in _OWED and self.small_messages < 2 * self._messages_max)

    def _fits(self, size: int) -> bool:
        if size > self._chunk_bytes:
            return not self.bulk_bytes or self.bulk_bytes + size <= self._limits.bulk_bytes_max
        return self.small_messages < self._messages_max and self.small_bytes + size <= self._bytes_max

    def _roomy(self, size: int) -> bool:
        if size > self._chunk_bytes or not self.small_messages:
            return self._fits(size)
        messages, total = 2 * self.small_messages, 2 * (self.small_bytes + size)
        return messages < self._messages_max and total <= self._bytes_max

    def _take_back(self, waiting: _Waiting) -> None:
        """Out of the small lane, but for its place. (Its place is looked for by nobody: that would cost by length.)"""
        self.small_messages -= 1
        self.small_bytes -= len(waiting.encoded)
        waiting.encoded, waiting.message = b"", None
        self._taken_back += 1

    def _close_ranks(self) -> None:
        """A writer that stands still passes no places: drop the empty ones before they are many."""
        if self._taken_back > self.small_messages + _TAKEN_BACK_MAX:
            self._small = deque(one for one in self._small if isinstance(one, bytes) or one.encoded)
            self._taken_back = 0

    def _next_chunk(self) -> bytes | None:
        """One encoded chunk of the message whose turn it is."""
        while self._bulk and len(self._under_way) < _UNDER_WAY_MAX and self._other_side_takes(self._bulk[0]):
            waiting = self._bulk.popleft()
            self._streams += 1
            waiting.stream = self._streams
            waiting.chunks = split(waiting.encoded, waiting.stream, self._chunk_data_bytes)
            self._under_way.append(waiting)
        if not self._under_way:
            return None
        waiting = self._under_way.popleft()
        assert waiting.chunks is not None
        chunk = next(waiting.chunks)
        if chunk.last:
            self.bulk_bytes -= len(waiting.encoded)
            if type(waiting.message) is Submit:
                self._submits.pop(waiting.message.copy, None)
        else:
            self._under_way.append(waiting)
        return encode_message(chunk)

    def _other_side_takes(self, waiting: _Waiting) -> bool:
        """Messages under way at the same time stay within what the other side keeps of unfinished ones."""
        under_way = sum(len(other.encoded) for other in self._under_way)
        return not under_way or under_way + len(waiting.encoded) <= self._under_way_bytes_max

    @property
    def _chunk_data_bytes(self) -> int:
        return self._chunk_bytes - _CHUNK_HEADER_BYTES_MAX

    def _wake_waiters(self) -> None:
        if self.waiters:
            self.waiters.unpark_all()

    def _wake_writer(self) -> None:
        self.writer_idle = False
        self.bell.ring()
