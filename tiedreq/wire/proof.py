"""Proof that a side of a link holds the cluster's token, without sending it.

A proof is HMAC-SHA256, keyed with the token, over the transcript of the handshake (``tiedreq.core.link_rules``): who
proves, and both Hellos with their fresh challenges. So a recorded proof fits no other handshake, and one can't be sent
back to where it came from. It proves nothing about what follows on the link: that takes TLS. A token has to be random
(16 bytes or more): who dials without it gets a proof to test guesses on.

A cluster without a token has empty proofs, and a side without one refuses a side that has one.
"""

from __future__ import annotations

import hashlib
import hmac

from tiedreq.core.errors import BadOption


class TokenAuthenticator:
    """Makes and checks proofs for one token; None is a cluster without one. The ``Authenticator`` of LinkCore."""

    def __init__(self, token: bytes | None) -> None:
        if token is not None and not token:
            raise BadOption("token must not be empty; None stands for a cluster without one")
        self._token = token

    @classmethod
    def of(cls, token: str | None) -> TokenAuthenticator:
        """For a token as users give it. Raises ``BadOption``, which never quotes it."""
        if token is None:
            return cls(None)
        if not isinstance(token, str):
            raise BadOption(f"token: {type(token).__name__} where a text is expected")
        return cls(token.encode("utf-8", "surrogatepass"))

    def __repr__(self) -> str:
        return f"TokenAuthenticator({'no token' if self._token is None else 'token hidden'})"

    def make(self, transcript: bytes) -> bytes:
        """The 32 bytes that prove this side's token over ``transcript``; empty without one."""
        if self._token is None:
            return b""
        return hmac.new(self._token, transcript, hashlib.sha256).digest()

    def check(self, transcript: bytes, proof: bytes) -> bool:
        """True when ``proof`` was made over ``transcript`` with the same token. Takes the same time either way."""
        return hmac.compare_digest(self.make(transcript), proof)
