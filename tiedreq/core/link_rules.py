"""The rules of a link's handshake that need no state: ranges, clusters, transcripts, back-off."""

from __future__ import annotations

from random import Random

from tiedreq.core.errors import RemoteViolation
from tiedreq.core.link_options import ROLES, LinkSide, LinkTiming
from tiedreq.core.messages import Goodbye, Hello

CHALLENGE_BYTES = 32
LASTING_CODES = frozenset({"version", "cluster", "auth"})
"""Goodbyes that no second attempt can change while both sides stay as they are configured."""

DRAINED = "draining"
"""The Goodbye of a replica that said all it had to say on this link: what it said nothing of, it never started."""


class Refusal(Exception):
    """The other side is well-behaved but unwanted: the code and the reason of the Goodbye that tells it so."""

    def __init__(self, code: str, reason: str) -> None:
        super().__init__(f"{code}: {reason}")
        self.code = code
        self.reason = reason


def check_hello(side: LinkSide, hello: Hello, *, dialing: bool) -> None:
    """Raise ``Refusal`` when the two sides can't talk, ``RemoteViolation`` when the Hello is malformed."""
    if hello.protocol_max < side.protocol_min or hello.protocol_min > side.protocol_max:
        raise Refusal(
            "version",
            f"no common protocol version: {side.role} {side.name!r} speaks {side.protocol_min} to {side.protocol_max}, "
            f"{hello.role} {hello.name!r} speaks {hello.protocol_min} to {hello.protocol_max}",
        )
    if len(hello.challenge) != CHALLENGE_BYTES:
        raise RemoteViolation(f"Hello with a challenge of {len(hello.challenge)} bytes, not {CHALLENGE_BYTES}")
    if hello.role not in (("replica",) if dialing else ROLES):
        raise RemoteViolation("Hello with a role that has no place on this link")
    if hello.role == "replica" and not hello.name:
        raise RemoteViolation("Hello of a replica without a name")
    if hello.cluster != side.cluster:
        raise Refusal("cluster", "this is another cluster")


def goodbye(code: str, reason: str) -> Goodbye:
    """A Goodbye that the other side takes whatever the words: printable, and not too long."""
    return Goodbye(_sayable(code, 64) or "closed", _sayable(reason, 512))


def _sayable(text: str, chars_max: int) -> str:
    return "".join(letter if letter.isprintable() else "?" for letter in text[:chars_max])


def transcript(prover: str, dialer: Hello, acceptor: Hello) -> bytes:
    """What a proof is made over: who proves, and both Hellos with both challenges (the acceptor's proof left out).

    Both challenges are fresh, so nothing recorded fits again; the prover's side is part of it, so that a proof can't be
    sent back to where it came from; the names and ranges are part of it, so that nobody between can change them.
    """
    parts = [b"tiedreq link", prover.encode()]
    for hello in (dialer, acceptor):
        for value in hello._replace(proof=b""):
            parts.append(value if isinstance(value, bytes) else str(value).encode("utf-8", "surrogatepass"))
    return b"".join(len(part).to_bytes(4, "big") + part for part in parts)


def backoff(timing: LinkTiming, failures: int, rng: Random) -> float:
    """Seconds to wait after ``failures`` (>= 1) useless attempts in a row: between half and all of the doubled wait."""
    whole = min(timing.backoff_max, timing.backoff_first * 2.0 ** min(failures - 1, 60))
    return whole * (0.5 + 0.5 * rng.random())
