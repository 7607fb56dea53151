"""Questions of a client to all replicas that it reaches, and their answers. None of them waits in a queue of calls."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from typing import Any

import trio

from tiedreq.core.errors import RemoteViolation
from tiedreq.core.messages import Inquiry, Status
from tiedreq.net.link import Link
from tiedreq.wire.limits import WireLimits
from tiedreq.wire.payload import decode_payload


class Inquiries:
    """The questions that a client has asked and whose answers it still waits for."""

    def __init__(self, limits: WireLimits) -> None:
        self._limits = limits
        self._number = 0
        self._waiting: dict[int, trio.MemorySendChannel[dict[str, Any]]] = {}

    async def ask(self, links: Iterable[Link], about: str, timeout: float) -> dict[str, dict[str, Any]]:
        """The answers by replica; one that does not answer within ``timeout`` seconds is left out."""
        self._number += 1
        number = self._number
        asked = [link for link in links if link.send(Inquiry(number, about))]
        if not asked:
            return {}
        send, receive = trio.open_memory_channel[dict[str, Any]](len(asked))
        self._waiting[number] = send
        found: dict[str, dict[str, Any]] = {}
        try:
            with trio.move_on_after(timeout):
                for _ in asked:
                    answer = await receive.receive()
                    found[str(answer.get("name"))] = answer
        finally:
            del self._waiting[number]
        return dict(sorted(found.items()))

    def arrived(self, message: Status) -> None:
        """An answer; one that nobody waits for any more changes nothing."""
        channel = self._waiting.get(message.number)
        if channel is None:
            return
        try:
            answer = decode_payload(message.payload, self._limits)
        except RemoteViolation:
            return
        if isinstance(answer, dict):
            with suppress(trio.WouldBlock):
                channel.send_nowait(answer)
