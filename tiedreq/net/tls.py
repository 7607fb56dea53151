"""The server's half of a TLS handshake. When it fails, the other side is told why, so that it can say so.

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
