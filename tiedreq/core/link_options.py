"""Who a side of a link is, and the times that govern it. Frozen, self-validating, printable."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Protocol

from tiedreq.core.checks import Reduced, reduced
from tiedreq.core.errors import BadOption
from tiedreq.core.messages import PROTOCOL_MAX, PROTOCOL_MIN

ROLES = ("client", "replica")


class Authenticator(Protocol):
    """Holds the cluster's token: makes and checks proofs over a transcript of the handshake.

    ``check`` takes the same time whatever the proof. The core can't see the token.
    """

    def make(self, transcript: bytes) -> bytes:
        """The proof that this side holds the token."""
        ...

    def check(self, transcript: bytes, proof: bytes) -> bool:
        """True when ``proof`` was made over ``transcript`` with the same token."""
        ...


@dataclass(frozen=True, slots=True)
class LinkSide:
    """This side of a link, as its Hello tells it. For a client ``incarnation`` is its nonce."""

    cluster: str
    role: str
    name: str
    incarnation: int
    protocol_min: int = PROTOCOL_MIN
    protocol_max: int = PROTOCOL_MAX

    def __post_init__(self) -> None:
        if self.role not in ROLES:
            raise BadOption(f"role must be one of {', '.join(ROLES)}, not {self.role!r}")
        if self.role == "replica" and not self.name:
            raise BadOption("name of a replica must not be empty")
        if not 0 <= self.incarnation < 2**64:
            raise BadOption("incarnation must be an unsigned 64-bit number")
        if not 1 <= self.protocol_min <= self.protocol_max:
            raise BadOption(f"protocol range {self.protocol_min} to {self.protocol_max} is empty")


@dataclass(frozen=True, slots=True)
class LinkTiming:
    """The times of a link, in seconds.

    A peer that is silent for ``heartbeat_interval`` × ``heartbeat_misses`` is lost. A dialer waits ``backoff_first``
    after a failure, twice as long after each further one up to ``backoff_max``, each wait drawn between half and all of
    that; it begins anew after a link that was up for ``useful_after`` and heard something.
    """

    heartbeat_interval: float = 0.25
    heartbeat_misses: int = 4
    dial_timeout: float = 5.0
    handshake_timeout: float = 5.0
    backoff_first: float = 0.05
    backoff_max: float = 2.0
    useful_after: float = 1.0

    def __reduce__(self) -> Reduced:
        return reduced(self)

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if not 0 < value < float("inf"):
                raise BadOption(f"{field.name} must be positive, not {value!r}")
        if self.heartbeat_misses < 2:
            raise BadOption(f"heartbeat_misses must be at least 2, not {self.heartbeat_misses}")
        if self.backoff_max < self.backoff_first:
            raise BadOption(f"backoff_max {self.backoff_max} is below backoff_first {self.backoff_first}")

    @property
    def silence_max(self) -> float:
        """How long a peer may be silent."""
        return self.heartbeat_interval * self.heartbeat_misses
