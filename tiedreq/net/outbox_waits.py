"""What waits for an outbox: its writer for messages, others for room in it, or until something has left."""

from __future__ import annotations

import trio

from tiedreq.core.types import CopyId
from tiedreq.net.outbox import Outbox


async def anything(outbox: Outbox) -> None:
    """(the writer) Wait until there may be something to take, or the outbox is closed."""
    if not outbox.closed and not outbox.anything:
        outbox.writer_idle = True
        await outbox.bell.wait_anew()


async def room(outbox: Outbox, size: int, spare: int = 0) -> bool:
    """Wait until ``outbox.has_room(size, spare)``; False when nothing is written any more.

    Put the message without waiting for anything else in between.
    """
    await trio.lowlevel.checkpoint()
    while not outbox.has_room(size, spare):
        await outbox.waiters.park()
    return not outbox.closed


async def left(outbox: Outbox, copy: CopyId) -> None:
    """Wait until no item of ``copy`` is in the bulk lane, where small messages pass it, or nothing is written."""
    await trio.lowlevel.checkpoint()
    while outbox.holds_item(copy):
        await outbox.waiters.park()


async def drained(outbox: Outbox) -> bool:
    """Wait until all that waits has been handed to the transport; False when the outbox was closed before."""
    await trio.lowlevel.checkpoint()
    while not outbox.closed and outbox.busy:
        await outbox.waiters.park()
    return not outbox.closed
