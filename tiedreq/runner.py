"""What a program that runs one replica does about signals: drain at the first, end at once at the second.

Not for what a replica is told otherwise; ``tiedreq serve`` and the launcher's children both use it.
"""

from __future__ import annotations

import os
import signal
import threading
from typing import Protocol

import trio

INTERRUPTED = 130
GRACE_SECONDS = 2.0
"""Beyond the drain time-out, for what comes after the handlers' end."""


class Drainable(Protocol):
    """What can be told to drain, such as a ``ReplicaHandle``."""

    def drain(self) -> None:
        """Begin to drain."""
        ...


async def drain_on_signals(
    handle: Drainable, drain_timeout: float, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
) -> None:
    """Wait for SIGTERM or SIGINT and drain; a second one ends the process at once with 130.

    Reports that it is started when no signal is missed any more: say "ready" to nobody before that. A handler
    whose thread can't be stopped does not keep the process beyond ``drain_timeout`` seconds and a little.
    """
    with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        task_status.started()
        draining = False
        async for _ in signals:
            if draining:
                os._exit(INTERRUPTED)
            draining = True
            handle.drain()
            end_within(drain_timeout + GRACE_SECONDS)


def end_within(seconds: float) -> None:
    """End this process with 1 by then, whatever its threads do."""
    timer = threading.Timer(seconds, os._exit, (1,))
    timer.daemon = True
    timer.start()
