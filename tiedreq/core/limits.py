"""Limits: one frozen, self-validating dataclass for a replica, one for a client.

Every collection in tiedreq has a limit, and the limit is here. Counts are whole numbers, durations seconds, sizes
bytes.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

from tiedreq.core.checks import Reduced, check_count, check_number, reduced

_COUNT_MAX = 100_000_000
_BYTES_MAX = 2**40
_OF_MANY = frozenset({"held_bytes_max", "held_bytes_per_caller_max", "unfinished_bytes_max"})
"""Limits of what many connections hold together."""
_SECONDS_MAX = 86_400.0


def _check_all(options: Any) -> None:
    """Check each field by the kind its default has: whole numbers from 1, seconds above 0."""
    for field in fields(options):
        value = getattr(options, field.name)
        if isinstance(field.default, int):
            check_count(field.name, value, 1, _BYTES_MAX if field.name in _OF_MANY else _COUNT_MAX)
        else:
            object.__setattr__(options, field.name, check_number(field.name, value, 1e-6, _SECONDS_MAX, "seconds"))


@dataclass(frozen=True, slots=True)
class ReplicaLimits:
    """Limits of one replica.

    ``queue_length_max`` copies wait at most, and ``copies_per_caller_max`` are held for one connection, so that one
    client can't take the whole queue; the arguments of those held come to ``held_bytes_max`` bytes at most, and to
    ``held_bytes_per_caller_max`` for one connection (who holds nothing may always add one copy). A Submit beyond any of
    these is refused with a hint. ``markers_per_peer_max`` and ``marker_age_max`` bound the notices that
    arrived before their copy (size them for calls/s x age: every call whose copy 1 was never sent leaves one);
    ``cancel_markers_per_caller_max`` the cancels that did, ``parked_claims_max`` and ``parked_claim_age_max`` the
    claims of exclusive ties that overtook the arbiter's Submit (it may be lost with its link, so they don't wait long).
    ``tombstones_max`` ended copies are remembered. ``outbox_messages_max`` and ``outbox_bytes_max`` bound what waits
    for one link. ``payload_bytes_max`` bounds arguments and results, ``unfinished_bytes_max`` what all links together
    keep of messages that have not arrived whole; beyond it the link that keeps the most is closed (one link may always
    keep four payloads of the largest size). Of more than ``peers_max`` members the rest are passed over; in a
    cluster of more than ``mesh_full_max`` replicas links open on first use, and close once they have not been used for
    ``mesh_idle`` seconds (docs/membership.md).
    """

    queue_length_max: int = 10_000
    copies_per_caller_max: int = 2_500
    held_bytes_max: int = 512 * 1024 * 1024
    held_bytes_per_caller_max: int = 128 * 1024 * 1024
    markers_per_peer_max: int = 50_000
    marker_age_max: float = 5.0
    cancel_markers_per_caller_max: int = 10_000
    parked_claims_max: int = 10_000
    parked_claim_age_max: float = 0.5
    tombstones_max: int = 50_000
    payload_bytes_max: int = 32 * 1024 * 1024
    unfinished_bytes_max: int = 256 * 1024 * 1024
    outbox_messages_max: int = 20_000
    outbox_bytes_max: int = 64 * 1024 * 1024
    connections_max: int = 1_024
    connections_per_address_max: int = 512
    handshake_timeout: float = 5.0
    heartbeat_interval: float = 0.25
    heartbeat_misses_max: int = 4
    report_interval: float = 0.5
    peers_max: int = 1_024
    mesh_full_max: int = 16
    mesh_idle: float = 60.0

    def __reduce__(self) -> Reduced:
        return reduced(self)

    def __post_init__(self) -> None:
        _check_all(self)


@dataclass(frozen=True, slots=True)
class ClientLimits:
    """Limits of one client.

    ``calls_in_flight_max`` calls are open at once; one more is refused with ``Overloaded``. ``rounds_max`` bounds
    how often one call fails over. ``lessons_max`` methods are learned of, each with its own budget. Of a stream at most
    ``stream_items_max`` items, and ``stream_bytes_max`` bytes and one item more, are on their way or wait for the user.
    The rest as in ``ReplicaLimits``.
    """

    calls_in_flight_max: int = 10_000
    rounds_max: int = 5
    lessons_max: int = 256
    stream_items_max: int = 64
    stream_bytes_max: int = 1024 * 1024
    replicas_max: int = 1_024
    payload_bytes_max: int = 32 * 1024 * 1024
    outbox_messages_max: int = 20_000
    outbox_bytes_max: int = 64 * 1024 * 1024
    handshake_timeout: float = 5.0
    heartbeat_interval: float = 0.25
    heartbeat_misses_max: int = 4

    def __reduce__(self) -> Reduced:
        return reduced(self)

    def __post_init__(self) -> None:
        _check_all(self)
