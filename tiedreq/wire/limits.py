"""Every number of the wire: what the protocol fixes for both sides, and what each side may choose.

The constants are part of the protocol: both sides rely on them, and docs/protocol.md lists them. ``WireLimits`` holds
what a process chooses for itself. Text is measured in characters (Unicode code points), everything else in bytes.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

from tiedreq.core.errors import BadOption

FRAME_MESSAGES_MAX = 1024
"""Messages in one frame."""
FRAME_BYTES_SENT_MAX = 131_072
"""No sender makes a larger frame, so every receiver takes frames of this size."""
FRAME_SPLIT_BYTES = 65_536
"""A writer begins a new frame rather than let one grow beyond this."""
MESSAGE_BYTES_BESIDE_PAYLOAD = 131_072
"""More than the fields of a message other than its payload can come to (a Welcome apart, which has none)."""
MESSAGE_DEPTH_MAX = 32
"""Arrays inside each other in a message, itself included."""
MESSAGE_ITEMS_MAX = 16_384
"""Values in all arrays of a message that arrives in chunks."""
CHUNK_STREAMS_SENT_MAX = 64
"""Messages that a sender has under way in chunks at the same time."""

NAME_CHARS_MAX = 128
"""Names of clusters, replicas and clients; at least one character, one line."""
METHOD_CHARS_MAX = 128
"""Names of methods; at least one character, one line."""
CODE_CHARS_MAX = 64
"""Codes of failures and of Goodbye; at least one character, one line."""
REASON_CHARS_MAX = 512
"""The reason of a Goodbye; one line, may be empty."""
FAILURE_CHARS_MAX = 4096
"""The message of a failure; may be empty, may have several lines."""
KEY_CHARS_MAX = 256
"""An idempotency key; at least one character."""
METADATA_ENTRIES_MAX = 16
METADATA_KEY_CHARS_MAX = 64
"""At least one character, one line."""
METADATA_VALUE_CHARS_MAX = 1024
PARTNERS_MIN = 2
PARTNERS_MAX = 8
"""Copies of one tie, so ranks go from 0 to 7."""
METHODS_MAX = 1024
"""Rows of a method table."""
PEERS_MAX = 256
"""Rows of a Report."""

CHALLENGE_BYTES = 32
PROOF_BYTES = 32
SECONDS_MAX = 1e6
"""The longest duration that travels (11.6 days)."""
COUNT_MAX = 2**32 - 1
ID_MAX = 2**64 - 1
VERSION_MAX = 65_535
TYPE_CODE_MAX = 65_535

_KIB = 1024
_MIB = 1024 * 1024


PAYLOAD_BYTES_MAX = 1024 * _MIB
"""The largest limit of payloads that a process may choose."""


def chunk_bytes_sent_max(payload_bytes_max: int) -> int:
    """Bytes of all messages that a sender has under way in chunks, where the receiver takes such payloads."""
    return 2 * (payload_bytes_max + MESSAGE_BYTES_BESIDE_PAYLOAD)


@dataclass(frozen=True)
class WireLimits:
    """What one process accepts from the wire. Sizes are in bytes.

    ``frame_bytes_max``: a frame. ``message_bytes_max``: a message put together from chunks. ``payload_bytes_max``: a
    payload or the details of a failure; announced to the other side. ``chunk_bytes``: messages larger than this are
    sent in chunks of this size. ``chunk_streams_max`` and ``chunk_total_bytes_max``: messages on one link that are
    under way in chunks at the same time, and their bytes together. ``depth_max``: arrays and maps inside each other in
    a payload. ``items_max``: values in all its arrays and maps (a pair of a map counts two).
    """

    frame_bytes_max: int = 256 * _KIB
    message_bytes_max: int = 64 * _MIB
    payload_bytes_max: int = 32 * _MIB
    chunk_bytes: int = 64 * _KIB
    chunk_streams_max: int = 64
    chunk_total_bytes_max: int = 128 * _MIB
    depth_max: int = 32
    items_max: int = 1_000_000

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            low, high = _RANGES[field.name]
            if type(value) is not int or not low <= value <= high:
                raise BadOption(f"{field.name} must be a whole number from {low} to {high}, not {value!r}")
        payload = self.payload_bytes_max
        self._at_least("message_bytes_max", payload + MESSAGE_BYTES_BESIDE_PAYLOAD, "payload_bytes_max")
        self._at_least("chunk_total_bytes_max", chunk_bytes_sent_max(payload), "payload_bytes_max")
        self._at_least("chunk_total_bytes_max", self.message_bytes_max, "message_bytes_max")

    def _at_least(self, field: str, least: int, because_of: str) -> None:
        value = getattr(self, field)
        if value < least:
            needed = f"with {because_of}={getattr(self, because_of)}"
            raise BadOption(f"{field} must be at least {least} {needed}, not {value}")


_RANGES = {
    "frame_bytes_max": (FRAME_BYTES_SENT_MAX, 16 * _MIB),
    "message_bytes_max": (_MIB, 2048 * _MIB),
    "payload_bytes_max": (_KIB, PAYLOAD_BYTES_MAX),
    "chunk_bytes": (_KIB, FRAME_SPLIT_BYTES),
    "chunk_streams_max": (CHUNK_STREAMS_SENT_MAX, 4096),
    "chunk_total_bytes_max": (_MIB, 16_384 * _MIB),
    "depth_max": (1, 256),
    "items_max": (1, 100_000_000),
}

DEFAULT_LIMITS = WireLimits()


def wire_limits(payload_bytes_max: int) -> WireLimits:
    """The limits of a process that takes payloads of up to ``payload_bytes_max`` bytes."""
    message = max(2 * payload_bytes_max, _MIB)
    return WireLimits(payload_bytes_max=payload_bytes_max, message_bytes_max=message, chunk_total_bytes_max=2 * message)
