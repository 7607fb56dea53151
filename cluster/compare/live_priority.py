"""Run before other programs, so that what is measured is not who else uses the machine.

Where the system allows it (for the superuser as a rule), the client and the replicas of a live run get the lowest
real-time priority: each runs as soon as it has something to do. They sleep nearly all the time, and the kernel keeps a
share of every processor for the others. Where it does not, everything works at the ordinary priority; a run that did
not keep up then says so.

Not for somebody's own service, of which nobody knows how long it computes.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress

__all__ = ["before_others"]


@contextmanager
def before_others() -> Iterator[bool]:
    """This thread, and threads it starts, run before ordinary programs inside the block; yields whether they do."""
    if sys.platform != "linux":
        yield False
        return
    policy, parameters = os.sched_getscheduler(0), os.sched_getparam(0)
    try:
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(os.sched_get_priority_min(os.SCHED_RR)))
    except OSError:
        yield False
        return
    try:
        yield True
    finally:
        with suppress(OSError):
            os.sched_setscheduler(0, policy, parameters)
