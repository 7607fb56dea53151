"""TLS handshakes that fail: a server tells the other side why, and a client says so in words.

Trio's ``SSLStream`` leaves unsent what TLS has to say about a handshake that failed: a client whose certificate is
refused would see nothing but a lost connection, and with TLS 1.3 only after its own half was done.
"""

from __future__ import annotations

import ssl
from typing import Any, cast

import trio

LINGER_SECONDS = 0.5
"""For how long what still arrives is thrown away after the last word. A reset could overtake it."""
_THROWN_AWAY_BYTES = 64 * 1024
_SHOW_ONE = "show one: ssl_context, or --tls-cert and --tls-key"
_DISTRUST = "it does not trust the certificate that it was shown"
_ALERTS = {
    "CERTIFICATE_REQUIRED": f"it asks for a client's certificate, and was shown none ({_SHOW_ONE})",
    "HANDSHAKE_FAILURE": f"it refused the handshake, as one that asks for a client's certificate does ({_SHOW_ONE})",
    "UNKNOWN_CA": f"{_DISTRUST}: unknown authority",
    "ACCESS_DENIED": f"{_DISTRUST}: access denied",
    "BAD_CERTIFICATE": f"{_DISTRUST}: bad certificate",
    "CERTIFICATE_EXPIRED": f"{_DISTRUST}: certificate expired",
    "CERTIFICATE_REVOKED": f"{_DISTRUST}: certificate revoked",
    "CERTIFICATE_UNKNOWN": f"{_DISTRUST}: certificate unknown",
    "UNSUPPORTED_CERTIFICATE": f"{_DISTRUST}: unsupported certificate",
}
"""What a server says when it is not content with the certificate that it was shown, or with none."""


def certificate_refusal(error: ssl.SSLError) -> str | None:
    """In words, that the other side wants another certificate than it was shown; None when it said something else."""
    _, is_alert, alert = (error.reason or "").rpartition("ALERT_")
    return _ALERTS.get(alert) if is_alert else None


class _Overheard:
    """A context for one connection that keeps the end where TLS puts what is to be sent."""

    def __init__(self, context: ssl.SSLContext) -> None:
        self._context = context
        self.outgoing: ssl.MemoryBIO | None = None

    def wrap_bio(self, incoming: ssl.MemoryBIO, outgoing: ssl.MemoryBIO, **options: Any) -> ssl.SSLObject:
        """As ``ssl.SSLContext.wrap_bio``."""
        self.outgoing = outgoing
        return self._context.wrap_bio(incoming, outgoing, **options)


async def accept_tls(tcp: trio.SocketStream, context: ssl.SSLContext) -> trio.SSLStream[trio.SocketStream]:
    """Shake hands with who has connected. Raises ``trio.BrokenResourceError``, once the other side was told why."""
    overheard = _Overheard(context)
    stream = trio.SSLStream(tcp, cast(ssl.SSLContext, overheard), server_side=True, https_compatible=True)
    try:
        await stream.do_handshake()
    except trio.BrokenResourceError as error:
        last_words = overheard.outgoing.read() if overheard.outgoing is not None else b""
        if last_words and isinstance(error.__cause__, ssl.SSLError):
            await _say(tcp, last_words)
        raise
    return stream


async def _say(tcp: trio.SocketStream, last_words: bytes) -> None:
    """Send it, and wait a little until the other side has heard it."""
    with trio.move_on_after(LINGER_SECONDS):
        try:
            await tcp.send_all(last_words)
            await tcp.send_eof()
            while await tcp.receive_some(_THROWN_AWAY_BYTES):
                pass
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            pass
